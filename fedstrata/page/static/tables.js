// The page's tables. Every text enters the page as text.
"use strict";

(() => {
  const { NO_VALUE, bytes, counted, decimal, grouped, isNumber, joules, seconds } = fedstrata;
  const PHASES = { enrol: "enrolment", relevance: "questions", group: "grouping", train: "training" };
  const MOST_ROWS = 300;

  /** An element with attributes and children; strings become text. */
  function element(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
    return node;
  }

  /** A table; a column's heading that ends with `#` is of numbers. */
  function table(caption, heads, rows) {
    const isNumeric = heads.map((head) => head.endsWith("#"));
    const attributes = (i) => (isNumeric[i] ? { class: "n" } : {});
    const top = heads.map((head, i) => element("th", { scope: "col", ...attributes(i) }, head.replace(/#$/, "")));
    const body = rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", attributes(i), cell))));
    return element(
      "table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...top)), element("tbody", {}, ...body),
    );
  }

  function bar(share) {
    if (!isNumber(share)) return "";
    const inner = element("i");
    inner.style.width = `${100 * Math.min(1, share)}%`;
    return element("span", { class: "bar" }, inner);
  }

  function swatch(look, task) {
    const svg = d3.create("svg").attr("class", "swatch").attr("width", 12).attr("height", 12).attr("viewBox", "-6 -6 12 12").attr("aria-hidden", "true");
    const own = look.tasks.get(task);
    if (own) svg.append("path").attr("d", fedstrata.shape(own.symbol, 60)).attr("fill", own.colour).attr("stroke", own.colour);
    return svg.node();
  }

  function clusters(view, look) {
    const taskOf = view.summary.device_tasks ?? {};
    const rows = Object.entries(view.clusters).map(([name, ids]) => {
      const own = view.rounds.filter((row) => row.lps_id === name);
      const tasks = d3.rollups(ids, (same) => same.length, (id) => taskOf[id] ?? "unknown").sort((a, b) => b[1] - a[1]);
      const losses = own.filter((row) => row.isGlobal && isNumber(row.loss));
      const sha = view.summary.model_sha256?.[name] ?? "";
      return [
        name, grouped(ids.length), look.tasks.size ? taskList(look, tasks) : NO_VALUE,
        view.metric.said(fedstrata.lastMetric(view, name)), decimal(losses.at(-1)?.loss),
        own.length ? seconds(d3.sum(own, (row) => row.seconds)) : NO_VALUE,
        own.length ? bytes(d3.sum(own, (row) => row.bytes_down)) : NO_VALUE,
        own.length ? bytes(d3.sum(own, (row) => row.bytes_up)) : NO_VALUE,
        sha ? element("code", { title: sha }, sha.slice(0, 12)) : NO_VALUE,
      ];
    });
    const heads = ["Cluster", "Devices#", "True tasks", `${view.metric.label}#`, "Last loss#", "Wall time in rounds#", "Bytes down#", "Bytes up#", "Model SHA-256"];
    return table("Clusters", heads, rows.slice(0, MOST_ROWS));
  }

  function taskList(look, tasks) {
    return element("span", {}, ...tasks.map(([task, count]) => element("div", { class: "mark" }, swatch(look, task), `${task} ${grouped(count)}`)));
  }

  function tasks(view, look) {
    const rows = [...look.tasks.keys()].map((task) => {
      const own = view.devices.filter((device) => device.task === task);
      const where = d3.rollups(own, (same) => same.length, (device) => device.cluster ?? "none").sort((a, b) => b[1] - a[1]);
      const value = view.summary[`task_${view.metric.name}`]?.[task];
      return [
        element("span", { class: "mark" }, swatch(look, task), task), grouped(own.length),
        where.map(([name, count]) => `${name} (${grouped(count)})`).join(", "), view.metric.said(value),
        ...(view.metric.isPercent ? [bar(value)] : []),
      ];
    });
    const share = view.metric.isPercent ? ["Share"] : [];
    return table("True tasks", ["Task", "Devices#", "In clusters", `${view.metric.label}#`, ...share], rows);
  }

  function times(view) {
    const spent = view.summary.wall_seconds ?? {};
    const total = spent.total ?? d3.sum(Object.values(spent));
    const phases = Object.entries(spent).filter(([phase]) => phase !== "total");
    const rows = phases.map(([phase, took]) => [PHASES[phase] ?? phase, seconds(took), bar(total ? took / total : null)]);
    return table("Wall time", ["Phase", "Time#", "Share"], [...rows, ["total", seconds(total), ""]]);
  }

  /** Where the virtual time went, by tier: means over those who took part. */
  function virtualTimes(view) {
    const virtual = view.summary.virtual;
    const tiers = virtual
      ? [["questions before training, a device", virtual.before], ["global rounds, an LPS", virtual.gps], ["LPS rounds, a device", virtual.lps]]
      : [];
    return partsTable(`Virtual time: ${seconds(virtual?.seconds)}`, tiers);
  }

  /** The same of the real clock, as it was measured. */
  function realParts(view) {
    const given = view.realParts;
    const tiers = given ? [["global rounds, an LPS", given.gps], ["LPS rounds, a device", given.lps]] : [];
    return partsTable("Time by part, as measured", tiers);
  }

  /** What devices took in energy, those that took most first. */
  function energy(view) {
    const spent = view.summary.energy;
    const parts = spent ? [["receiving", spent.down], ["computing", spent.compute], ["sending", spent.up]] : [];
    const devices = Object.entries(spent?.by_device ?? {}).sort((a, b) => b[1] - a[1]);
    const rows = [...parts, ...devices.slice(0, MOST_ROWS)].map(([name, took]) => [name, joules(took), bar(spent.joules ? took / spent.joules : null)]);
    return table("Energy by part, and by device", ["Of", "Energy#", "Share"], rows);
  }

  function partsTable(caption, tiers) {
    const rows = tiers.map(([name, spent]) => {
      const parts = [spent.down, spent.compute, spent.up, spent.waiting];
      return [name, ...parts.map((part) => seconds(part)), seconds(d3.sum(parts))];
    });
    return table(caption, ["Mean of", "Down#", "Computing#", "Up#", "Waiting#", "Together#"], rows);
  }

  /** On the real clock, what each link and device was to do and what it has done; first what was outside. */
  function realLinks(view) {
    const sorted = [...view.realLinks].sort((a, b) => Boolean(b.outside) - Boolean(a.outside));
    const rows = sorted.slice(0, MOST_ROWS).map((row) => [
      row.link, row.direction, row.child, grouped(row.transfers), rate(row.bits_per_s), rate(row.achieved_bits_per_s),
      seconds(row.latency_s), seconds(row.achieved_latency_s), row.outside ? `outside: ${row.outside}` : "",
    ]);
    const heads = ["Link", "Direction", "Child", "Transfers#", "Rate#", "Achieved#", "Latency, computing#", "Achieved#", ""];
    const caption = `${grouped(d3.sum(view.realLinks, (row) => !row.outside))} of ${grouped(view.realLinks.length)} as configured`;
    return table(caption, heads, rows);
  }

  const rate = (bitsPerS) => (bitsPerS === null ? NO_VALUE : `${(bitsPerS / 1e6).toPrecision(4)}\u00a0Mbit/s`);

  function links(view) {
    const byKind = view.summary.bytes_by_kind ?? {};
    const said = (way) => [grouped(way.down), grouped(way.up), bytes(way.down + way.up)];
    const training = { down: d3.sum(view.rounds, (row) => row.bytes_down), up: d3.sum(view.rounds, (row) => row.bytes_up) };
    const rows = view.links.flatMap((link) => [
      [link.name, "all", ...said(link)],
      ...(link.name === "device-lps" && view.rounds.length ? [["", "all, until the last LPS round", ...said(training)]] : []),
      ...Object.entries(byKind[link.name] ?? {}).map(([kind, way]) => ["", kind, ...said(way)]),
    ]);
    return table("Bytes by link and kind", ["Link", "Kind", "Down, B#", "Up, B#", "Together#"], rows);
  }

  function events(view) {
    const all = fedstrata.eventsOf(view);
    const rows = all.slice(-MOST_ROWS).map((event) => [event.stage || NO_VALUE, event.what, event.who, event.said]);
    const caption = all.length > MOST_ROWS ? `The last ${MOST_ROWS} of ${grouped(all.length)} events` : counted(all.length, "event");
    return table(caption, ["From", "What", "Who", "Details"], rows);
  }

  /** The devices that a word is found in: in their name, state, task or cluster. */
  function devices(view, word) {
    const found = view.devices.filter((device) => `${device.id} ${fedstrata.stateOf(device)}`.toLowerCase().includes(word.toLowerCase()));
    const rows = found.slice(0, MOST_ROWS).map((device) => [
      device.id, fedstrata.stateOf({ ...device, cluster: null, task: null }), device.task ?? NO_VALUE, device.cluster ?? NO_VALUE,
      device.home ?? NO_VALUE, view.metric.said(device.metric),
    ]);
    const caption = found.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${grouped(found.length)} devices` : counted(found.length, "device");
    return table(caption, ["Device", "State", "True task", "Cluster", "LPS", `${view.metric.label}#`], rows);
  }

  Object.assign(fedstrata, { element, tables: { clusters, tasks, times, virtualTimes, energy, realParts, realLinks, links, events, devices } });
})();
