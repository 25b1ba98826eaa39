// The document that is drawn: told at once or bit by bit, and looked at as devices, clusters and rounds.
"use strict";

(() => {
  const LINKS = ["device-gps", "device-lps", "lps-gps"];
  const COLUMNS = [
    "global_round", "lps_round", "lps_id", "devices", "num_examples", "loss", "metric", "seconds", "bytes_up",
    "bytes_down", "lowest", "highest", "cohort",
    "measured_examples",
  ];
  const STATES = { a: "absent", e: "enrolled", w: "answered", g: "assigned", r: "refused" };
  const RATE_S = 10; // over how long a link's rate is taken

  /** What is known of a run, with what the page itself adds: when it was told, and bytes at earlier times. */
  class RunDocument {
    constructor() {
      this.clear();
    }

    clear() {
      this.parts = {};
      this.rounds = new Map(); // rows by LPS round and cluster
      this.samples = []; // of bytes by link: {at, bytes}
      this.toldAt = 0;
    }

    /** Take what is told: parts by name, and rows that are new or replace others; `now` in seconds. */
    take(told, now) {
      Object.assign(this.parts, told.parts);
      for (const values of told.rounds) {
        const row = Object.fromEntries(COLUMNS.map((column, i) => [column, values[i]]));
        this.rounds.set(`${row.lps_round} ${row.lps_id}`, row);
      }
      this.toldAt = now;
      this.samples.push({ at: now, bytes: this.parts["summary/bytes"] ?? {} });
      while (this.samples.length > 2 && this.samples[1].at < now - RATE_S) this.samples.shift();
    }

    /** Bytes per second on a link and in a direction lately; null where that cannot be said yet. */
    rate(link, direction) {
      const [first, last] = [this.samples[0], this.samples.at(-1)];
      if (!first || last.at - first.at < 1) return null;
      const at = (sample) => sample.bytes[link]?.[direction] ?? 0;
      return Math.max(0, at(last) - at(first)) / (last.at - first.at);
    }

    section(name) {
      const found = Object.entries(this.parts).filter(([key]) => key.startsWith(`${name}/`));
      return Object.fromEntries(found.map(([key, value]) => [key.slice(name.length + 1), value]));
    }

    /** All of it as it is drawn. */
    view() {
      const summary = this.section("summary");
      const live = "live/phase" in this.parts ? this.section("live") : null;
      const clusters = summary.clusters ?? {};
      const byLps = summary.homes ?? clusters;
      const { toldAt } = this;
      return {
        summary, live, clusters, byLps,
        metric: fedstrata.metricOf(summary.metrics?.[0]),
        name: summary.name ?? summary.run_id ?? "",
        isOver: !live || live.has_record,
        spans: Boolean(summary.homes),
        devices: devicesOf(summary, live, clusters, byLps),
        rounds: roundsOf([...this.rounds.values()], this.parts.lps_rounds_per_global_round ?? 1),
        links: LINKS.map((name) => ({ name, up: 0, down: 0, ...summary.bytes?.[name] })),
        rate: (link, direction) => (live && !live.has_record ? this.rate(link, direction) : null),
        relevance: this.parts.relevance ?? null,
        labelPicture: this.parts.label_picture ?? null,
        virtualCurve: this.parts.virtual_curve ?? null,
        realLinks: this.parts.real_links ?? [],
        realParts: this.parts.real_parts ?? null,
        roundPicture: this.parts.round_picture ?? null,
        updatesByDevice: this.parts.updates_by_device ?? {},
        experiment: this.parts.experiment ?? "",
        measuredOn: this.parts.measured_on ?? "",
        sinceTold: (now) => (live && !live.has_record ? Math.max(0, now - toldAt) : 0),
      };
    }
  }

  function placeOf(groups) {
    return new Map(Object.entries(groups).flatMap(([name, ids]) => ids.map((id) => [id, name])));
  }

  function devicesOf(summary, live, clusters, byLps) {
    const [clusterOf, homeOf] = [placeOf(clusters), placeOf(byLps)];
    const { name } = fedstrata.metricOf(summary.metrics?.[0]);
    const ids = live?.device_ids ?? [...new Set([...Object.keys(summary.device_tasks ?? {}), ...clusterOf.keys()])];
    const waits = new Map((live?.waits ?? []).map((wait) => [wait.name, wait]));
    const excluded = new Map((summary.excluded ?? []).map((exclusion) => [exclusion.device, exclusion]));
    return ids.map((id, i) => ({
      id,
      state: live ? STATES[live.states[i]] : clusterOf.has(id) ? "assigned" : "absent",
      task: summary.device_tasks?.[id] ?? null,
      cluster: clusterOf.get(id) ?? null,
      home: homeOf.get(id) ?? null,
      wait: waits.get(id) ?? null,
      exclusion: excluded.get(id) ?? null,
      metric: summary[`device_${name}`]?.[id] ?? null,
    }));
  }

  /** Rows in the order of rounds, each with its number `n` over the run, and whether its model is of a global round's end. */
  function roundsOf(rows, perGlobal) {
    const numbered = rows.map((row) => ({ ...row, n: row.lps_round, isGlobal: row.lps_round % perGlobal === 0 }));
    return numbered.sort((a, b) => a.n - b.n);
  }

  /** What has happened to devices, clusters and plans, in the order of when. */
  function eventsOf(view) {
    const { summary } = view;
    const perGlobal = d3.max(view.rounds, (row) => row.n / row.global_round) || 1;
    const when = (stage) => {
      const number = Number(/\d+$/.exec(stage)?.[0] ?? 0);
      if (stage === "evaluation") return Infinity;
      return stage.startsWith("global round") ? number : stage.startsWith("round") ? number / perGlobal : 0;
    };
    const events = [
      ...(summary.excluded ?? []).map((e) => ({ stage: e.from, what: "excluded", who: e.device, said: e.reason })),
      ...(summary.adoptions ?? []).map((e) => ({
        stage: e.from, what: e.cluster === e.by ? "returned" : "adopted", who: e.cluster, said: `served by ${e.by}`,
      })),
      ...(summary.replanned ?? []).filter((plan) => plan.moved || !view.spans).map((plan) => ({
        stage: `global round ${plan.global_round}`, what: "planned again", who: fedstrata.counted(plan.clusters, "cluster"),
        said: `${fedstrata.counted(plan.moved, "device")} moved`,
      })),
      ...(summary.lost_state ?? []).map((id) => ({
        stage: "", what: "began anew", who: id, said: "came back without what it had kept for itself",
      })),
    ];
    return events.map((event) => ({ ...event, at: when(event.stage) })).sort((a, b) => a.at - b.at);
  }

  Object.assign(fedstrata, { RunDocument, LINKS, eventsOf });
})();
