// The figures over rounds: metric and loss by cluster, devices' metric at the end, and how long a round takes whom.
"use strict";

(() => {
  const { COUNT, DASHES, isNumber, seconds, shorten, spread } = fedstrata;
  const MOST_BARS = 40;
  const MOST_BANDS = 4; // of devices' spread behind lines; more would hide each other

  /** Headline metric or loss of each cluster's model after global rounds: lines with names, or of many their spread and
   * median. Other measurements are open marks without a line: of models between LPS rounds, and by a cohort alone. */
  function curve(view, look, width, { key, title, scale = 1, low, high, cohort }) {
    const rows = view.rounds.filter((row) => row.isGlobal && isNumber(row[key])).map((row) => ({
      ...row, value: scale * row[key], low: isNumber(row[low]) ? scale * row[low] : null, high: scale * row[high],
    }));
    const apart = view.rounds.flatMap((row) => [
      ...(!row.isGlobal && isNumber(row[key]) ? [{ ...row, value: scale * row[key], low: null, symbol: "circle", said: ", before the global round's end" }] : []),
      ...(isNumber(row[cohort]) ? [{ ...row, value: scale * row[cohort], low: null, symbol: "times", said: ", measured by a cohort alone" }] : []),
    ]);
    if (!rows.length && !apart.length) return null;
    const names = Object.keys(view.byLps).filter((name) => rows.some((row) => row.lps_id === name));
    const lines = !rows.length ? [] : names.length <= COUNT ? namedLines(rows, names, look) : spreadLines(rows);
    const marks = [
      Plot.dot(apart, { x: "n", y: "value", stroke: (row) => look.cluster(row.lps_id), symbol: "symbol", r: 2.5, strokeOpacity: 0.6 }),
      ...lines, tip([...rows, ...apart]),
    ];
    const last = d3.max(view.rounds, (row) => row.n);
    const options = {
      width, height: Math.min(320, 160 + width / 5), marginRight: names.length <= COUNT ? 74 : 60, marginLeft: 52, marginTop: 24, insetTop: 12,
      x: { label: "LPS round", domain: [0.5, Math.max(1.5, last + 0.5)], ticks: ticksOf(last), tickFormat: "d" },
      y: { label: title, labelAnchor: "center", labelArrow: "none", grid: true, nice: true, domain: heightsOf([...rows, ...apart], names.length <= MOST_BANDS) },
      marks: [...roundBands(view.rounds), ...marks],
    };
    const ends = names.length <= COUNT ? endsInWords(rows, names) : `${names.length} clusters`;
    return fedstrata.plot(options, title, ends);
  }

  /** Mean headline metric of the LPSs' models at the virtual time at which they have them. */
  function virtualCurve(view, look, width) {
    const curve = view.virtualCurve ?? [];
    if (!curve.length) return null;
    const [factor, unit] = [[86_400, "days"], [3_600, "hours"], [60, "minutes"], [1, "seconds"]].find(([each]) => curve.at(-1)[0] >= 2 * each || each === 1);
    const points = curve.map(([at, value]) => ({ at: at / factor, value: view.metric.scale * value }));
    const options = {
      width, height: Math.min(320, 160 + width / 5), marginLeft: 52, marginTop: 24, insetTop: 12,
      x: { label: `Virtual time, ${unit}`, domain: [0, points.at(-1).at] },
      y: { label: view.metric.inUnit(view.metric.label), labelAnchor: "center", labelArrow: "none", grid: true, nice: true },
      marks: [Plot.line(points, { x: "at", y: "value", curve: "step-after", stroke: "var(--ink)", strokeWidth: 2 })],
    };
    return fedstrata.plot(options, `${view.metric.label} over virtual time`, `It ends at ${view.metric.said(curve.at(-1)[1])}`);
  }

  const ticksOf = (last) => d3.ticks(1, Math.max(1, last), Math.min(10, last)).filter(Number.isInteger);

  /** From where to where a figure of lines goes: as far as they do, and into their bands by half as much again. */
  function heightsOf(rows, hasBands) {
    const [low, high] = d3.extent(rows, (row) => row.value);
    const more = Math.max(high - low, 1e-9) / 2;
    if (!hasBands) return [low, high];
    const lowest = d3.min(rows, (row) => row.low ?? row.value);
    const highest = d3.max(rows, (row) => (row.low === null ? row.value : row.high));
    return [Math.max(lowest, low - more), Math.min(highest, high + more)];
  }

  function namedLines(rows, names, look) {
    const [low, high] = d3.extent(rows, (row) => row.value);
    const room = Math.max(high - low, 1e-9);
    const banded = names.length <= MOST_BANDS ? rows.filter((row) => row.low !== null) : [];
    const ends = names.map((name) => rows.findLast((row) => row.lps_id === name));
    const heights = spread(ends.map((row) => row.value), 0.09 * room, low, high);
    return [
      ...names.map((name) => Plot.areaY(banded.filter((row) => row.lps_id === name), {
        x: "n", y1: "low", y2: "high", fill: look.cluster(name), fillOpacity: 0.12, clip: true,
      })),
      ...names.map((name, i) => Plot.line(rows.filter((row) => row.lps_id === name), {
        x: "n", y: "value", stroke: look.cluster(name), strokeWidth: 2, strokeDasharray: DASHES[i % DASHES.length],
        marker: rows.length / names.length <= 25 ? "dot" : null,
      })),
      Plot.text(names, {
        x: () => d3.max(rows, (row) => row.n), y: (_, i) => heights[i], text: (name) => shorten(name, 10),
        textAnchor: "start", dx: 9, fontWeight: 600,
      }),
    ];
  }

  function spreadLines(rows) {
    const by = d3.rollups(rows, (same) => same.map((row) => row.value), (row) => row.n);
    const bands = by.map(([n, values]) => ({
      n, low: d3.min(values), high: d3.max(values), q1: d3.quantile(values, 0.25), q3: d3.quantile(values, 0.75),
      median: d3.median(values),
    }));
    const band = (low, high, opacity) => Plot.areaY(bands, { x: "n", y1: low, y2: high, fill: "var(--accent)", fillOpacity: opacity });
    return [
      band("low", "high", 0.14), band("q1", "q3", 0.3),
      Plot.line(bands, { x: "n", y: "median", stroke: "var(--ink)", strokeWidth: 2 }),
      Plot.text(bands.slice(-1), { x: "n", y: "median", text: () => "median", textAnchor: "start", dx: 8, fontWeight: 600 }),
    ];
  }

  const spreadOf = (row) => (isNumber(row.low) ? `, devices from ${row.low.toFixed(1)} to ${row.high.toFixed(1)}` : "");

  const tip = (rows) => Plot.tip(rows, Plot.pointer({
    x: "n", y: "value", fill: "var(--card)", stroke: "var(--line)",
    title: (row) => `${row.lps_id}, LPS round ${row.n}${row.said ?? ""}\n${row.value.toFixed(3)}${spreadOf(row)}`,
  }));

  /** Every second global round as a band, where there are few enough to see. */
  function roundBands(rounds) {
    const bands = d3.rollups(rounds, (same) => d3.extent(same, (row) => row.n), (row) => row.global_round);
    const every = Math.max(1, Math.ceil(bands.length / 8));
    const shown = bands.length <= 20 ? bands.filter(([number]) => number % 2 === 0) : [];
    return [
      Plot.rectX(shown, { x1: ([, [first]]) => first - 0.5, x2: ([, [, last]]) => last + 0.5, fill: "var(--faint)" }),
      Plot.text(bands.filter((_, i) => i % every === 0), {
        x: ([, [first, last]]) => (first + last) / 2, text: ([number]) => `G${number}`, frameAnchor: "top", dy: -9,
        fill: "var(--muted)",
      }),
    ];
  }

  function endsInWords(rows, names) {
    return names.map((name) => `${name} ends at ${rows.findLast((row) => row.lps_id === name).value.toFixed(3)}`).join(", ");
  }

  /** How far the devices of each cluster lie apart: of the newest round that was measured, from which to which device;
   * at the end each device. */
  function deviceSpread(view, look, width) {
    const { inUnit, label, said, scale } = view.metric;
    const measured = view.devices.filter((device) => isNumber(device.metric) && device.cluster);
    if (!measured.length) return deviceRanges(view, look, width);
    const names = Object.keys(view.clusters).filter((name) => measured.some((device) => device.cluster === name));
    if (names.length > MOST_BARS) return histogram(view, measured, width);
    const options = {
      width, height: 72 + 26 * names.length, marginLeft: 84, marginRight: 16, marginBottom: 42,
      x: { label: inUnit(`${label} of each device`), grid: true, nice: true },
      y: { domain: names, label: null, tickFormat: (name) => shorten(name, 11), tickSize: 0 },
      marks: [
        ...names.map((name) => Plot.dot(measured.filter((device) => device.cluster === name), {
          x: (device) => scale * device.metric, y: "cluster", r: measured.length > 200 ? 3 : 5, fillOpacity: 0.5,
          fill: look.cluster(name), stroke: look.cluster(name), tip: true, title: (device) => `${device.id}: ${said(device.metric)}`,
        })),
        Plot.tickX(measured, Plot.groupY({ x: "median" }, {
          x: (device) => scale * device.metric, y: "cluster", stroke: "var(--ink)", strokeWidth: 2,
        })),
      ],
    };
    const [low, high] = d3.extent(measured, (device) => device.metric);
    return fedstrata.plot(options, `${label} by device`, `From ${said(low)} to ${said(high)} over ${measured.length} devices`);
  }

  function deviceRanges(view, look, width) {
    const { inUnit, label, said: inWords, scale } = view.metric;
    const names = Object.keys(view.byLps).slice(0, MOST_BARS);
    const newest = (name) => view.rounds.findLast((row) => row.lps_id === name && isNumber(row.lowest));
    const rows = names.map(newest).filter(Boolean);
    if (!rows.length) return null;
    const options = {
      width, height: 72 + 26 * names.length, marginLeft: 84, marginRight: 16, marginBottom: 42,
      x: { label: inUnit(`${label} of the lowest and the highest device`), grid: true, nice: true },
      y: { domain: names, label: null, tickFormat: (name) => shorten(name, 11), tickSize: 0 },
      marks: [
        ...rows.map((row) => Plot.ruleY([row], {
          x1: scale * row.lowest, x2: scale * row.highest, y: "lps_id", stroke: look.cluster(row.lps_id),
          strokeWidth: 5, strokeLinecap: "round",
        })),
        Plot.tickX(rows, { x: (row) => scale * row.metric, y: "lps_id", stroke: "var(--ink)", strokeWidth: 2 }),
      ],
    };
    const said = rows.map((row) => `${row.lps_id} from ${inWords(row.lowest)} to ${inWords(row.highest)}`);
    return fedstrata.plot(options, "Devices in the newest round", said.join(", "));
  }

  function histogram(view, measured, width) {
    const { inUnit, label, scale } = view.metric;
    const options = {
      width, height: 240, x: { label: inUnit(`${label} of each device`) }, y: { label: "devices", grid: true },
      marks: [Plot.rectY(measured, Plot.binX({ y: "count" }, { x: (device) => scale * device.metric, fill: "var(--accent)" }))],
    };
    return fedstrata.plot(options, `${label} by device`, `Of ${measured.length} devices`);
  }

  /** The rows of the newest global round that is told of. */
  function newestRound(view) {
    const newest = d3.max(view.rounds, (row) => row.global_round);
    return view.rounds.filter((row) => row.global_round === newest);
  }

  /** The newest global round that is told of: how long each of its LPS rounds took each LPS, one after the other. */
  function timeline(view, width) {
    const all = newestRound(view);
    if (!all.length) return null;
    const newest = all[0].global_round;
    const took = d3.rollups(all, (same) => d3.sum(same, (row) => row.seconds), (row) => row.lps_id);
    const slowest = took.sort((a, b) => b[1] - a[1]).slice(0, MOST_BARS).map(([name]) => name);
    const names = Object.keys(view.byLps).filter((name) => slowest.includes(name));
    const rows = all.filter((row) => names.includes(row.lps_id));
    const options = {
      width, height: 70 + 24 * names.length, marginLeft: 84, marginRight: 60, marginBottom: 42,
      x: { label: `Global round ${newest}: seconds of wall time`, grid: true },
      y: { domain: names, label: null, tickFormat: (name) => shorten(name, 11), tickSize: 0 },
      marks: [
        Plot.barX(rows, {
          x: "seconds", y: "lps_id", fill: "var(--accent)", fillOpacity: (row) => (row.n % 2 ? 1 : 0.45), inset: 1.5,
          stroke: "var(--accent)",
          title: (row) => `${row.lps_id}, LPS round ${row.n}: ${seconds(row.seconds)}`, tip: true,
        }),
        Plot.text(took.filter(([name]) => names.includes(name)), {
          x: ([, sum]) => sum, y: ([name]) => name, text: ([, sum]) => seconds(sum), textAnchor: "start", dx: 5,
        }),
      ],
    };
    return fedstrata.plot(options, `Global round ${newest}`, `The slowest is ${slowest[0]}`);
  }

  const PART_COLOURS = { down: "var(--c5)", compute: "var(--c2)", up: "var(--c4)", waiting: "var(--faint)" };

  /** One global round: a lane for the GPS, each LPS and each device, and what it was about when. */
  function roundPicture(view, look, width) {
    const given = view.roundPicture;
    if (!given) return null;
    const lanes = [...new Set(given.lanes.map((bar) => bar.lane))];
    const parts = Object.keys(PART_COLOURS);
    const rounds = new Set(given.lanes.map((bar) => bar.lps_round)).size > 2; // marked where there are several
    const named = (bar) => `${bar.lane}${bar.lps_round === null ? "" : `, LPS round ${bar.lps_round}`}`;
    const options = {
      width, height: 84 + 15 * lanes.length, marginLeft: 96, marginRight: 16, marginBottom: 42, marginTop: 34,
      x: { label: `${pictured(given)}: seconds`, grid: true, domain: [0, Math.max(given.seconds, 1e-9)] },
      y: { domain: lanes, label: null, tickFormat: (name) => shorten(name, 13), tickSize: 0 },
      marks: [
        Plot.barX(given.lanes, {
          x1: "begins_s", x2: "ends_s", y: "lane", fill: (bar) => PART_COLOURS[bar.part], insetTop: 1.5, insetBottom: 1.5,
          stroke: (bar) => (bar.part === "waiting" || rounds ? "var(--line)" : "none"), strokeWidth: 0.5,
          title: (bar) => `${named(bar)}\n${bar.part}: ${seconds(bar.ends_s - bar.begins_s)}`, tip: true,
        }),
        ...parts.flatMap((part, i) => [
          Plot.text([part], {
            frameAnchor: "top-left", dx: 14 + 84 * i, dy: -22, text: () => part === "compute" ? "computing" : part, textAnchor: "start",
          }),
          Plot.dot([part], { frameAnchor: "top-left", dx: 6 + 84 * i, dy: -18, r: 5, symbol: "square", fill: PART_COLOURS[part], stroke: "var(--line)" }),
        ]),
      ],
    };
    const last = d3.greatest(given.lanes.filter((bar) => bar.tier === "lps" && bar.part !== "waiting"), (bar) => bar.ends_s);
    return fedstrata.plot(options, pictured(given), `It takes ${seconds(given.seconds)}; the last LPS is ${last?.lane ?? "none"}`);
  }

  const pictured = ({ global_round: from, until }) => (from === until ? `Global round ${from}` : `Global rounds ${from} to ${until}`);

  /** Asynchronous rounds: how many updates were how stale. */
  function staleness(view, look, width) {
    const rows = Object.entries(view.summary.asynchronous?.staleness ?? {}).map(([stale, updates]) => ({ stale: Number(stale), updates }));
    if (!rows.length) return null;
    const label = "Staleness of an update, in LPS rounds";
    const options = {
      width, height: 240, marginLeft: 60, marginBottom: 42,
      x: { label, interval: 1, tickFormat: (stale) => (rows.length <= 20 || stale % 5 === 0 ? String(stale) : "") },
      y: { label: "updates", grid: true },
      marks: [Plot.barY(rows, { x: "stale", y: "updates", fill: "var(--accent)", tip: true })],
    };
    return fedstrata.plot(options, "Staleness of updates", `From ${rows[0].stale} to ${rows.at(-1).stale} LPS rounds`);
  }

  /** Asynchronous rounds: how many devices have sent how many updates. */
  function contributions(view, look, width) {
    const counts = Object.values(view.updatesByDevice);
    if (!counts.length) return null;
    const options = {
      width, height: 240, marginLeft: 60, marginBottom: 42,
      x: { label: "Updates of a device" }, y: { label: "devices", grid: true },
      marks: [Plot.rectY(counts, Plot.binX({ y: "count" }, { x: (count) => count, fill: "var(--accent)" }))],
    };
    return fedstrata.plot(options, "Updates by device", `From ${d3.min(counts)} to ${d3.max(counts)} updates of a device`);
  }

  Object.assign(fedstrata, { curve, virtualCurve, deviceSpread, newestRound, timeline, roundPicture, pictured, staleness, contributions });
})();
