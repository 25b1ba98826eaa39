// Numbers as a person reads them: with their units, and a dash for no value.
"use strict";
const fedstrata = {};

(() => {
  const NO_VALUE = "–";
  const SPACE = "\u00a0"; // between a number and its unit; a line never breaks there
  const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  const threeDigits = (value) => value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);

  /** The decimal unit in which a number of bytes reads best: bytes per unit, and its name. */
  function byteUnit(largest) {
    let power = 0;
    while (largest >= 999.5 * 1000 ** power && power < BYTE_UNITS.length - 1) power += 1;
    return { factor: 1000 ** power, name: BYTE_UNITS[power] };
  }

  /** 512 B, 12.3 kB, 1.20 GB. */
  function bytes(count) {
    if (!isNumber(count)) return NO_VALUE;
    const { factor, name } = byteUnit(count);
    return `${factor > 1 ? threeDigits(count / factor) : Math.round(count)}${SPACE}${name}`;
  }

  /** 250 ms, 12.3 s, 3 min 05 s, 2 h 03 min. */
  function seconds(value) {
    if (!isNumber(value)) return NO_VALUE;
    if (value < 0.9995) return `${Math.round(value * 1000)}${SPACE}ms`;
    if (value < 59.95) return `${value.toFixed(1)}${SPACE}s`;
    const [minutes, rest] = [Math.floor(Math.round(value) / 60), Math.round(value) % 60];
    if (minutes < 60) return `${minutes}${SPACE}min${SPACE}${String(rest).padStart(2, "0")}${SPACE}s`;
    return `${Math.floor(minutes / 60)}${SPACE}h${SPACE}${String(minutes % 60).padStart(2, "0")}${SPACE}min`;
  }

  /** 12.3 mJ, 4.56 J, 7.89 kJ. */
  function joules(value) {
    if (!isNumber(value)) return NO_VALUE;
    const [size, unit] = [[1e6, "MJ"], [1e3, "kJ"], [1, "J"]].find(([size]) => value >= 0.9995 * size) ?? [1e-3, "mJ"];
    return `${threeDigits(value / size)}${SPACE}${unit}`;
  }

  const percent = (ratio) => (isNumber(ratio) ? `${(100 * ratio).toFixed(1)}${SPACE}%` : NO_VALUE);
  const decimal = (value) => (isNumber(value) ? value.toFixed(3) : NO_VALUE);

  /** The headline metric of a run's task: how it is called, how its values are said, and what they are drawn as. */
  function metricOf({ name, unit, title } = { name: "accuracy", unit: "percent", title: "" }) {
    const label = title || name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
    const isPercent = unit === "percent";
    const said = isPercent ? percent : (value) => (isNumber(value) ? String(Number(value.toPrecision(4))) : NO_VALUE);
    return { name, label, isPercent, said, scale: isPercent ? 100 : 1, inUnit: (words) => (isPercent ? `${words}, %` : words) };
  }

  /** A count with its thousands apart: 12 300. */
  const grouped = (count) => (isNumber(count) ? String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f") : NO_VALUE);
  const counted = (count, noun) => `${grouped(count)}${SPACE}${noun}${count === 1 ? "" : "s"}`;

  /** A name of at most `most` characters, cut in its middle. */
  function shorten(name, most = 18) {
    const half = Math.floor((most - 1) / 2);
    return name.length <= most ? name : `${name.slice(0, half)}…${name.slice(-half)}`;
  }

  /** Short labels for device ids: without the beginning that all of many share. */
  function labels(ids) {
    const beginning = ids.length > 12 ? ids[0].slice(0, ids[0].lastIndexOf("-") + 1) : "";
    const isShared = beginning && ids.every((id) => id.startsWith(beginning) && id !== beginning);
    return ids.map((id) => shorten(isShared ? id.slice(beginning.length) : id));
  }

  /** Positions near those wanted, in the same order, at least `gap` apart where `low` to `high` has room. */
  function spread(wanted, gap, low, high) {
    const order = d3.range(wanted.length).sort((a, b) => wanted[a] - wanted[b]);
    const apart = Math.min(gap, (high - low) / Math.max(1, wanted.length - 1));
    const placed = [];
    let [floor, ceiling] = [low, high];
    for (const i of order) {
      placed[i] = Math.max(wanted[i], floor);
      floor = placed[i] + apart;
    }
    for (const i of order.reverse()) {
      placed[i] = Math.min(placed[i], ceiling);
      ceiling = placed[i] - apart;
    }
    return placed;
  }

  Object.assign(fedstrata, {
    NO_VALUE, isNumber, byteUnit, bytes, seconds, joules, percent, decimal, metricOf, grouped, counted, shorten, labels, spread,
  });
})();
