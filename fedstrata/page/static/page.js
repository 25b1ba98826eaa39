// The page: its sections, filled from the document, which stands in the page or is told by the GPS as the run goes on.
"use strict";

(() => {
  const { bytes, counted, decimal, element, grouped, joules, numbers, seconds, tables } = fedstrata;
  const DRAW_MS = 400; // between two drawings
  const MOST_NAMED = 5; // of those that the run waits for; the table of devices has all
  const run = new fedstrata.RunDocument();
  const now = () => performance.now() / 1000;

  // --- sections ------------------------------------------------------------------------------------

  /** A part of the page that is drawn anew only when what it shows has changed. */
  class Section {
    /** `title` is a text, or a function of the view. */
    constructor(title, { figures = [], numbers: behind = [], texts = [], tables: shown = [], isWhole = false }) {
      this.titleOf = typeof title === "function" ? title : () => title;
      this.heading = element("h2");
      this.figures = figures.map((draw) => ({ draw, node: element("figure") }));
      this.texts = texts.map((write) => ({ write, node: element("p", { class: "said" }) }));
      this.tables = shown.map((draw) => ({ draw, node: element("div", { class: "wide long", tabindex: "0", role: "region" }) }));
      this.numbers = behind; // each gives the rows behind a figure
      this.saves = [["SVG", () => this.figureFiles()], ["CSV", () => this.numberFiles()]].map(([kind, files]) => {
        const button = element("button", { type: "button" }, `Save as ${kind}`);
        button.addEventListener("click", () => this.save(kind, files()));
        return { kind, button };
      });
      this.node = element(
        "section", isWhole ? { class: "whole" } : {},
        element("div", { class: "head" }, this.heading, element("div", { class: "saves" }, ...this.saves.map(({ button }) => button))),
        ...[...this.figures, ...this.texts, ...this.tables].map((part) => part.node),
      );
    }

    show(view, look) {
      this.view = view;
      this.heading.textContent = this.titleOf(view);
      for (const { kind, button } of this.saves) button.setAttribute("aria-label", `Save as ${kind}: ${this.heading.textContent}`);
      for (const node of [this.node, ...this.figures.map((figure) => figure.node)]) node.hidden = false; // to have a width
      for (const figure of this.figures) {
        const svg = figure.draw(view, look, Math.max(280, Math.floor(figure.node.clientWidth)));
        figure.node.hidden = !svg;
        figure.node.replaceChildren(...(svg ? [svg] : []));
      }
      for (const { write, node } of this.texts) {
        node.textContent = write(view);
        node.hidden = !node.textContent;
      }
      for (const { draw, node } of this.tables) {
        const drawn = draw(view, look);
        node.hidden = !drawn.querySelector("td");
        node.setAttribute("aria-label", drawn.caption.textContent);
        const [left, top] = [node.scrollLeft, node.scrollTop];
        node.replaceChildren(drawn);
        node.scrollTo(left, top);
      }
      const isDrawn = this.figures.some(({ node }) => !node.hidden);
      for (const { kind, button } of this.saves) button.hidden = !isDrawn || (kind === "CSV" && !this.numbers.length);
      this.node.hidden = [...this.figures, ...this.texts, ...this.tables].every(({ node }) => node.hidden);
    }

    figureFiles() {
      return this.figures.map(({ node }) => node.querySelector("svg")).filter(Boolean).map(fedstrata.svgFile);
    }

    numberFiles() {
      return this.numbers.map((rowsOf) => rowsOf(this.view)).filter((rows) => rows.length).map(fedstrata.csvFile);
    }

    save(kind, files) {
      const [suffix, type] = [kind.toLowerCase(), kind === "SVG" ? "image/svg+xml" : "text/csv"];
      files.forEach((text, i) => {
        const url = URL.createObjectURL(new Blob([text], { type }));
        const name = this.heading.textContent.toLowerCase().replaceAll(" ", "-") + (files.length > 1 ? `-${i + 1}` : "");
        element("a", { href: url, download: `${name}.${suffix}` }).click();
        setTimeout(() => URL.revokeObjectURL(url), 10_000);
      });
    }
  }

  const metric = (view) => ({
    key: "metric", title: view.metric.inUnit(view.metric.label), scale: view.metric.scale, low: "lowest", high: "highest",
    cohort: "cohort",
  });
  const loss = { key: "loss", title: "Loss" };
  const SECTIONS = [
    new Section("Topology", { figures: [fedstrata.topology], texts: [clusterRule], isWhole: true }),
    new Section((view) => view.metric.label, { figures: [(view, look, width) => fedstrata.curve(view, look, width, metric(view))], numbers: [numbers.metric], texts: [notMeasured] }),
    new Section("Loss", { figures: [(view, look, width) => fedstrata.curve(view, look, width, loss)], numbers: [numbers.loss] }),
    new Section("Devices", { figures: [fedstrata.deviceSpread], numbers: [numbers.devices], texts: [spreadSaid] }),
    new Section("Newest round by wall time", { figures: [(view, _, width) => fedstrata.timeline(view, width)], numbers: [numbers.seconds] }),
    new Section("Bytes over rounds", { figures: [(view, _, width) => fedstrata.growth(view, width)], numbers: [numbers.growth] }),
    new Section("Bytes by link", { figures: [(view, _, width) => fedstrata.totals(view, width)], numbers: [numbers.links] }),
    new Section("Relevance", { figures: [fedstrata.relevance], texts: [relevanceSaid], isWhole: true }),
    new Section("Labels by device", { figures: [(view, _, width) => fedstrata.labelPicture(view, width)], texts: [labelsSaid], isWhole: true }),
    new Section("Results", { tables: [tables.clusters, tables.tasks], isWhole: true }),
    new Section("Events", { tables: [tables.events], isWhole: true }),
    new Section("Time", { tables: [tables.times] }),
    new Section("Virtual time", { figures: [fedstrata.virtualCurve], numbers: [numbers.virtualCurve], tables: [tables.virtualTimes] }),
    new Section("Asynchronous rounds", { figures: [fedstrata.staleness, fedstrata.contributions], numbers: [numbers.staleness, numbers.contributions], texts: [asynchronousSaid] }),
    new Section("Energy", { texts: [energySaid], tables: [tables.energy] }),
    new Section("Who waits for whom", { figures: [fedstrata.roundPicture], numbers: [numbers.lanes], texts: [pictureSaid], isWhole: true }),
    new Section("Links on the real clock", { tables: [tables.realParts, tables.realLinks], isWhole: true }),
    new Section("Traffic", { tables: [tables.links] }),
  ];

  function clusterRule(view) {
    const rule = (view.summary.clusters_rule ?? "").trim().replace(/\.$/, "");
    if (view.isOver && !Object.keys(view.clusters).length) return "The run ended before its devices were grouped.";
    return `Bytes are of gRPC messages, without HTTP/2 and TCP: ↓ towards the devices, ↑ towards the GPS.${rule ? ` Number of clusters: ${rule}.` : ""}`;
  }

  function notMeasured(view) {
    if (!view.rounds.length) return view.isOver ? "No LPS round was completed." : "";
    const has = (isIn) => view.rounds.some(isIn);
    const isCohorts = has((row) => fedstrata.isNumber(row.cohort));
    if (!isCohorts && !has((row) => fedstrata.isNumber(row.metric))) return "Not measured.";
    const between = has((row) => !row.isGlobal) ? " Circles: models between the LPS rounds of a global round." : "";
    const cohorts = isCohorts ? " Crosses: measured only by devices of the next round, other devices each time." : "";
    const on = view.measuredOn ? `On ${view.measuredOn}. ` : "";
    return `${on}By all devices, after global rounds G1, G2, ….${between}${cohorts}${view.spans ? " By LPS, since clusters span them." : ""}`;
  }

  function spreadSaid(view) {
    if (view.devices.some((device) => fedstrata.isNumber(device.metric))) return "Each device at the end, with what it would use; the line is a cluster's median.";
    return view.rounds.length ? "In the newest round that was measured; the line is all of a cluster's examples together." : "";
  }

  function energySaid(view) {
    const spent = view.summary.energy;
    if (!spent) return "";
    const devices = Object.keys(spent.by_device).length;
    const mean = `, ${joules(spent.joules / devices)} a mean device`;
    const late = spent.late ? ` ${joules(spent.late)} went into updates that missed their round.` : "";
    return `${joules(spent.joules)}${mean}.${late} Idle time and radios that stay on after a transfer are not in it.`;
  }

  function pictureSaid(view) {
    const given = view.roundPicture;
    if (!given) return "";
    const shown = new Set(given.lanes.filter((bar) => bar.tier === "device").map((bar) => bar.lane)).size;
    const cut = shown < given.devices ? ` Of ${given.devices} devices those ${shown} that their LPS waits for most.` : "";
    const few = view.summary.asynchronous ? ` Of ${given.devices} devices those ${shown}, by the length of their work.` : cut;
    return `${fedstrata.pictured(given)}: each lane from the beginning on. An LPS computes while its LPS rounds last.${shown < given.devices ? few : ""}`;
  }

  function asynchronousSaid(view) {
    const given = view.summary.asynchronous;
    if (!given) return "";
    const never = given.never.length ? ` Without any: ${given.never.slice(0, MOST_NAMED).join(", ")}${given.never.length > MOST_NAMED ? ` and ${grouped(given.never.length - MOST_NAMED)} more` : ""}.` : "";
    return `${grouped(given.updates)} updates, of a device ${grouped(given.fewest)} to ${grouped(given.most)}.${never}`;
  }

  function labelsSaid(view) {
    if (!view.labelPicture) return "";
    const drift = view.labelPicture.said ? ` Label shares: ${view.labelPicture.said}.` : "";
    return `Training examples, worked out on this machine from the experiment: devices tell nobody their labels. The darker, the larger a label's share.${drift}`;
  }

  function relevanceSaid(view) {
    const given = view.relevance;
    if (!given) return view.isOver && view.summary.status === "completed" ? "There is no relevance matrix: the method groups devices by no such matrix." : "";
    const means = [given.within, given.between].every(fedstrata.isNumber)
      ? ` Mean relevance is ${given.within.toFixed(2)} within clusters and ${given.between.toFixed(2)} between them.` : "";
    return `Framed: the clusters of the run; dashed: where the dendrogram is cut into as many.${means}`;
  }

  // --- head ----------------------------------------------------------------------------------------

  const head = {
    name: element("h1"), status: element("span", { class: "pill" }), link: element("span", { class: "pill", hidden: "" }),
    run: element("p", { class: "run" }), failure: element("p", { class: "notice", role: "alert", hidden: "" }),
    waits: element("p", { class: "notice", hidden: "" }),
    said: element("span", { role: "status" }), bar: element("progress", { "aria-label": "Global rounds" }),
    left: element("span"), facts: element("dl", { class: "facts" }),
  };
  head.progress = element("div", { class: "progress" }, head.said, head.bar, head.left);

  const write = (node, text) => node.textContent !== text && (node.textContent = text);

  function showHead(view) {
    const { summary, live } = view;
    document.title = `${view.name} · Fedstrata run`;
    write(head.name, view.name);
    write(head.status, summary.status ?? "");
    head.status.className = `pill ${summary.status}`;
    write(head.run, `Run ${summary.run_id ?? ""}`);
    head.failure.hidden = summary.status !== "failed";
    write(head.failure, head.failure.hidden ? "" : `This run failed: ${summary.reason ?? "no reason was recorded"}`);
    head.progress.hidden = !live;
    if (live) {
      write(head.said, live.phase === "training" ? `training, global round ${live.global_round} of ${live.global_rounds} done` : live.phase);
      Object.assign(head.bar, { max: Math.max(1, live.global_rounds), value: live.global_round });
    }
    showTimes(view);
  }

  /** Whom the run waits for, in one line: the longest first. */
  function waitsSaid(view, since) {
    const waits = view.live?.waits ?? [];
    const named = waits.slice(0, MOST_NAMED).map((wait) => `${wait.name} (${wait.what}, ${seconds(Math.round(wait.seconds + since))})`);
    const more = waits.length > MOST_NAMED ? ` and ${grouped(waits.length - MOST_NAMED)} more` : "";
    return named.length ? `Waits for ${named.join(", ")}${more}.` : "";
  }

  /** ε of noised updates, as far as it is spent; nothing where none are noised, or for research, which protects nobody. */
  function privacyFacts(view) {
    const privacy = view.summary.privacy, updates = privacy?.updates;
    if (!updates) return [];
    const spent = `${decimal(updates.epsilon_spent)} of ${decimal(updates.epsilon)}`;
    return [[`ε of ${updates.covers}s${privacy.is_protection ? "" : ", noise for research"}`, spent]];
  }

  /** Who attacks the run on purpose, and the main metric of honest devices. */
  function attackFacts(view) {
    const attacks = view.summary.attacks;
    if (!attacks) return [];
    const said = [[attacks.devices.length, "devices"], [attacks.lps.length, "LPSs"]].filter(([count]) => count);
    const honest = view.metric.said(attacks.honest[view.metric.name] ?? null);
    return [["With attacks of", said.map((words) => words.join(" ")).join(", ")], ["Honest devices", honest]];
  }

  function showTimes(view) {
    const since = view.sinceTold(now());
    write(head.waits, waitsSaid(view, since));
    head.waits.hidden = !head.waits.textContent;
    const left = view.live?.seconds_left;
    write(head.left, fedstrata.isNumber(left) ? `about ${seconds(Math.max(1, Math.round(left - since)))} left` : "");
    const means = Object.keys(view.byLps).map((name) => fedstrata.lastMetric(view, name)).filter(fedstrata.isNumber);
    const mean = view.summary[view.metric.name]?.mean ?? (means.length ? d3.mean(means) : null);
    const total = d3.sum(view.links, (link) => link.up + link.down);
    const facts = [
      [`Mean ${view.metric.isPercent ? view.metric.label.toLowerCase() : view.metric.label}`, view.metric.said(mean)],
      ["Adjusted Rand index", decimal(view.summary.adjusted_rand_index)],
      ...(view.isOver && view.summary.virtual ? [["Virtual time", seconds(view.summary.virtual.seconds)]] : []),
      ["Wall time", seconds(view.live && !view.isOver ? Math.round(view.live.seconds + since) : view.summary.wall_seconds?.total)],
      ["Total bytes", total ? bytes(total) : fedstrata.NO_VALUE],
      ["Method", view.summary.method ?? ""], ["Devices", grouped(view.summary.devices)],
      ["Clusters", grouped(Object.keys(view.clusters).length)], ["Global rounds", grouped(view.summary.rounds)],
      ["Seed", String(view.summary.seed ?? "")], ...privacyFacts(view), ...attackFacts(view),
    ];
    facts.forEach(([name, value], i) => {
      const place = head.facts.children[i] ?? head.facts.appendChild(element("div", {}, element("dt"), element("dd")));
      write(place.firstChild, name);
      write(place.lastChild, value);
    });
  }

  // --- devices, experiment, foot ---------------------------------------------------------------------

  const filter = element("input", { type: "search", id: "filter" });
  const deviceTable = element("div", { class: "wide long", tabindex: "0", role: "region", "aria-label": "Devices" });
  const deviceDetails = element(
    "details", {}, element("summary", {}, "Devices, one by one"),
    element("label", { class: "filter", for: "filter" }, "Only those with: ", filter), deviceTable,
  );
  const experiment = element("pre", { tabindex: "0" });
  const foot = element("footer");

  function showDevices() {
    if (deviceDetails.open) deviceTable.replaceChildren(tables.devices(run.view(), filter.value));
  }
  filter.addEventListener("input", showDevices);
  deviceDetails.addEventListener("toggle", showDevices);

  // --- drawing ---------------------------------------------------------------------------------------

  let due = null;
  let shown = null; // the view last drawn

  function draw() {
    due = null;
    if (!("summary/run_id" in run.parts)) return;
    const view = run.view();
    shown = view;
    const look = fedstrata.lookOf(view);
    showHead(view);
    for (const section of SECTIONS) section.show(view, look);
    showDevices();
    write(experiment, view.experiment);
    write(foot, `Experiment SHA-256 ${view.summary.experiment_sha256 ?? fedstrata.NO_VALUE}. Drawn by Fedstrata from ${view.live ? "what the GPS tells" : "the record in this folder"}.`);
    document.body.dataset.phase = view.live?.phase ?? view.summary.status;
  }

  /** Draw soon, once for all that comes until then; not while nobody can see it. */
  function drawSoon() {
    if (due === null && !document.hidden) due = setTimeout(draw, DRAW_MS);
  }

  function follow() {
    const source = new EventSource("page/events");
    const say = (text, kind) => Object.assign(head.link, { hidden: !text, textContent: text, className: `pill ${kind}` });
    source.addEventListener("open", () => say("live", "running"));
    source.addEventListener("error", () => say("not connected; trying again", "lost"));
    source.addEventListener("document", (event) => {
      run.clear();
      take(event);
    });
    source.addEventListener("change", take);
    setInterval(() => shown && !document.hidden && showTimes(shown), 1000);
    document.addEventListener("visibilitychange", drawSoon);

    function take(event) {
      run.take(JSON.parse(event.data), now());
      if (run.parts["live/has_record"]) {
        source.close();
        say("", "");
      }
      drawSoon();
    }
  }

  function begin() {
    const sections = element("div", { class: "sections" }, ...SECTIONS.map((section) => section.node));
    const rest = [deviceDetails, element("details", {}, element("summary", {}, "Experiment, as resolved"), experiment)];
    sections.append(...rest.map((details) => element("section", { class: "whole" }, details)));
    document.getElementById("page").replaceChildren(
      element("header", {}, element("div", { class: "title" }, head.name, head.status, head.link), head.run, head.failure, head.progress, head.waits, head.facts),
      sections, foot, element("div", { id: "paper", hidden: "" }),
    );
    const given = document.getElementById("document");
    if (given) {
      run.take(JSON.parse(given.textContent), 0);
      draw();
    } else {
      write(head.name, "Fedstrata");
      follow();
    }
    new ResizeObserver(drawSoon).observe(sections);
  }

  begin();
})();
