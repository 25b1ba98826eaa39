// The numbers behind figures, as the rows of a file for a spreadsheet or a plot of one's own.
"use strict";

(() => {
  const { isNumber } = fedstrata;

  /** One row per LPS round of each LPS that measured `keys`: a name for the column, and the key of a row. */
  function ofRounds(view, keys) {
    const measured = view.rounds.filter((row) => keys.some(([, key]) => isNumber(row[key])));
    return measured.map((row) => ({
      global_round: row.global_round, lps_round: row.n, lps_id: row.lps_id,
      ...Object.fromEntries(keys.map(([name, key]) => [name, row[key]])),
      seconds: row.seconds, bytes_up: row.bytes_up, bytes_down: row.bytes_down,
    }));
  }

  function metric(view) {
    const { name } = view.metric;
    return ofRounds(view, [[name, "metric"], [`lowest_${name}`, "lowest"], [`highest_${name}`, "highest"], [`cohort_${name}`, "cohort"]]);
  }

  const loss = (view) => ofRounds(view, [["loss", "loss"]]);

  /** What each device measured at the end; during a run, the lowest and the highest device of each LPS round. */
  function devices(view) {
    const measured = view.devices.filter((device) => isNumber(device.metric));
    if (!measured.length) return metric(view);
    return measured.map(({ id, task, cluster, home, metric: value }) => ({ device: id, task, cluster, lps_id: home, [view.metric.name]: value }));
  }

  function seconds(view) {
    return fedstrata.newestRound(view).map((row) => ({ global_round: row.global_round, lps_round: row.n, lps_id: row.lps_id, seconds: row.seconds }));
  }

  const growth = (view) => fedstrata.cumulative(view.rounds).map(({ n, down, up }) => ({ lps_round: n, bytes_down: down, bytes_up: up }));

  const links = (view) => view.links.map(({ name, down, up }) => ({ link: name, bytes_down: down, bytes_up: up }));

  const virtualCurve = (view) => (view.virtualCurve ?? []).map(([at, value]) => ({ virtual_seconds: at, [view.metric.name]: value }));

  const staleness = (view) => Object.entries(view.summary.asynchronous?.staleness ?? {}).map(([stale, updates]) => ({ staleness: stale, updates }));

  const contributions = (view) => Object.entries(view.updatesByDevice).map(([device, updates]) => ({ device, updates }));

  const lanes = (view) => (view.roundPicture?.lanes ?? []).map(({ lane, tier, part, lps_round, begins_s, ends_s }) => ({ lane, tier, part, lps_round, begins_s, ends_s }));

  /** Rows as CSV (RFC 4180); what is unknown stays empty. */
  function csvFile(rows) {
    const heads = Object.keys(rows[0]);
    const quoted = (value) => {
      const text = String(value ?? "");
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [heads, ...rows.map((row) => heads.map((head) => row[head]))].map((cells) => `${cells.map(quoted).join(",")}\r\n`).join("");
  }

  fedstrata.numbers = { metric, loss, devices, seconds, growth, links, virtualCurve, staleness, contributions, lanes };
  fedstrata.csvFile = csvFile;
})();
