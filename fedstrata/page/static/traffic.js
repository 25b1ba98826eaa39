// The figures of bytes: between devices and LPSs as they add up, and the totals of the links.
"use strict";

(() => {
  const { bytes, byteUnit } = fedstrata;

  /** After each LPS round, what all LPSs together had sent to devices (down) and received from them (up). */
  function cumulative(rounds) {
    let [up, down] = [0, 0];
    return d3.groups(rounds, (row) => row.n).map(([n, same]) => {
      up += d3.sum(same, (row) => row.bytes_up);
      down += d3.sum(same, (row) => row.bytes_down);
      return { n, up, down };
    });
  }

  function growth(view, width) {
    const sums = [{ n: 0, up: 0, down: 0 }, ...cumulative(view.rounds)];
    if (sums.length < 2) return null;
    const last = sums.at(-1);
    const { factor, name } = byteUnit(last.up + last.down);
    const layers = ["down", "up"].flatMap((way) => sums.map((sum) => ({ way, n: sum.n, value: sum[way] / factor })));
    const labels = [["down: models", last.down / 2], ["up: updates", last.down + last.up / 2]];
    const options = {
      width, height: Math.min(300, 150 + width / 5), marginRight: 92, marginLeft: 48,
      x: { label: "LPS round", domain: [0, last.n], tickFormat: "d", ticks: Math.min(8, last.n) },
      y: { label: `device-lps, added up, ${name}`, grid: true },
      marks: [
        Plot.areaY(layers, Plot.stackY({ x: "n", y: "value", z: "way", fill: (layer) => `var(--${layer.way})` })),
        Plot.text(labels, { x: () => last.n, y: ([, middle]) => middle / factor, text: ([said]) => said, textAnchor: "start", dx: 7 }),
      ],
    };
    return fedstrata.plot(options, "Bytes between devices and LPSs", `${bytes(last.down)} down, ${bytes(last.up)} up`);
  }

  function totals(view, width) {
    const rows = view.links.flatMap((link) => ["down", "up"].map((way) => ({ name: link.name, way, count: link[way] })));
    if (!d3.some(rows, (row) => row.count)) return null;
    const { factor, name } = byteUnit(d3.max(rows, (row) => row.count));
    const options = {
      width, height: 212, marginLeft: 84, marginRight: 76, marginBottom: 42,
      x: { label: `Totals of the links, ${name}`, grid: true, zero: true },
      fy: { label: null, domain: view.links.map((link) => link.name), axis: "left", tickSize: 0 }, y: { axis: null, domain: ["down", "up"] },
      marks: [
        Plot.barX(rows, { x: (row) => row.count / factor, y: "way", fy: "name", fill: (row) => `var(--${row.way})` }),
        Plot.text(rows, {
          x: (row) => row.count / factor, y: "way", fy: "name", textAnchor: "start", dx: 5,
          text: (row) => `${row.way === "up" ? "↑" : "↓"} ${bytes(row.count)}`,
        }),
      ],
    };
    const said = view.links.map((link) => `${link.name}: ${bytes(link.down)} down, ${bytes(link.up)} up`).join("; ");
    return fedstrata.plot(options, "Bytes by link", said);
  }

  Object.assign(fedstrata, { cumulative, growth, totals });
})();
