// Which labels devices have: a row a device, a column a label, darker the larger its share of the device's examples.
"use strict";

(() => {
  const { shorten } = fedstrata;
  const [NAMED, NUMBERED, TALLEST] = [60, 24, 18]; // up to how many rows have names, cells numbers; a row's height at most

  function labelPicture(view, width) {
    const given = view.labelPicture;
    if (!given) return null;
    const { rows, labels } = given;
    const left = rows.length <= NAMED ? 8 + 6.2 * d3.max(rows, (row) => Math.min(20, row.name.length)) : 8;
    const right = 90;
    const side = Math.max(120, Math.min(labels * 44, width - left - right));
    const height = rows.length * Math.max(2, Math.min(TALLEST, 600 / rows.length));
    const svg = fedstrata.figure(width, height + 36, "Labels by device", `${rows.length} rows, ${labels} labels; the largest share of each row: ${saidOf(rows)}`);
    const x = d3.scaleLinear([0, labels], [left, left + side]);
    const y = d3.scaleLinear([0, rows.length], [0, height]);
    rows.forEach((row, i) => drawRow(svg, row, i, { x, y, isNumbered: rows.length <= NUMBERED && side / labels > 24 }));
    if (rows.length <= NAMED) {
      rows.forEach((row, i) => svg.append("text").attr("x", left - 6).attr("y", y(i + 0.5) + 3).attr("text-anchor", "end")
        .attr("font-size", Math.min(10, y(1))).attr("fill", "var(--muted)").text(shorten(row.name, 20)));
    }
    drawClusters(svg, rows, y, left, side);
    d3.range(labels).filter((label) => label % Math.ceil(labels / 25) === 0).forEach((label) => {
      svg.append("text").attr("x", x(label + 0.5)).attr("y", height + 14).attr("text-anchor", "middle").attr("font-size", 10)
        .attr("fill", "var(--muted)").text(label);
    });
    svg.append("text").attr("x", left).attr("y", height + 30).attr("fill", "var(--muted)").text("label");
    return svg.node();
  }

  function drawRow(svg, row, i, { x, y, isNumbered }) {
    const all = d3.sum(row.counts) || 1;
    row.counts.forEach((count, label) => {
      const share = count / all;
      svg.append("rect").attr("x", x(label)).attr("y", y(i)).attr("width", x(label + 1) - x(label)).attr("height", y(i + 1) - y(i))
        .attr("fill", d3.interpolateBlues(share)).attr("stroke", "var(--card)").attr("stroke-width", y(1) > 6 ? 0.6 : 0)
        .append("title").text(`${row.name}, label ${label}: ${count}`);
      if (isNumbered && count) {
        svg.append("text").attr("x", x(label + 0.5)).attr("y", y(i + 0.5) + 3.5).attr("text-anchor", "middle").attr("font-size", 10)
          .attr("fill", share > 0.55 ? "#ffffff" : "#1f2933").text(count);
      }
    });
  }

  function drawClusters(svg, rows, y, left, side) {
    const groups = d3.groups(rows, (row) => row.cluster);
    let start = 0;
    for (const [name, members] of groups) {
      const end = start + members.length;
      svg.append("rect").attr("x", left).attr("y", y(start)).attr("width", side).attr("height", y(end) - y(start)).attr("fill", "none")
        .attr("stroke", "var(--c1)").attr("stroke-width", groups.length < 2 ? 0 : 1.5);
      if (groups.length <= 20 && members.length < rows.length) {
        svg.append("text").attr("x", left + side + 6).attr("y", y((start + end) / 2) + 4).text(shorten(name, 12));
      }
      start = end;
    }
  }

  function saidOf(rows) {
    return rows.slice(0, 20).map((row) => `${row.name} label ${d3.maxIndex(row.counts)}`).join(", ");
  }

  Object.assign(fedstrata, { labelPicture });
})();
