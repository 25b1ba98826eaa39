// The relevance matrix in the order of its dendrogram, with the clusters framed.
"use strict";

(() => {
  const { shorten, spread } = fedstrata;
  const [NUMBERED, NAMED, FRAMED] = [12, 40, 40]; // up to how many devices cells have numbers, rows names; clusters frames

  function relevance(view, look, width) {
    const given = view.relevance;
    if (!given) return null;
    const count = given.ids.length;
    const names = count <= NAMED ? fedstrata.labels(given.ids) : [];
    const namesWidth = names.length ? 8 + 6.2 * d3.max(names, (name) => name.length) : 8;
    const tree = Math.max(40, Math.min(170, 0.2 * width));
    const right = width > 560 ? 120 : 78;
    const side = Math.max(120, Math.min(600, width - tree - namesWidth - right - 14));
    const left = tree + namesWidth + 14;
    const foot = names.length ? namesWidth + 30 : 40;
    const stretches = stretchesOf(given.ids, view);
    const described = stretches.map((s) => `${s.name} rows ${s.start + 1} to ${s.end}`).join(", ");
    const svg = fedstrata.figure(width, side + foot, "Relevance", `Of ${count} devices in the order of the dendrogram: ${described}`);
    const at = d3.scaleLinear([0, count], [0, side]);
    drawTree(svg, given, at, tree, side);
    drawTasks(svg, given.ids, view, look, at, tree + 4);
    const matrix = svg.append("g").attr("transform", `translate(${left},0)`);
    drawCells(matrix, given, at, side);
    drawFrames(matrix, stretches, at, side);
    drawNames(matrix, names, at, side);
    drawScale(svg, left, side + foot - 12, side);
    return svg.node();
  }

  /** Neighbouring rows of one cluster, from `start` up to and without `end`. */
  function stretchesOf(ids, view) {
    const clusterOf = new Map(view.devices.map((device) => [device.id, device.cluster]));
    const stretches = [];
    ids.forEach((id, row) => {
      const name = clusterOf.get(id) ?? fedstrata.NO_VALUE;
      if (stretches.at(-1)?.name === name) stretches.at(-1).end = row + 1;
      else stretches.push({ name, start: row, end: row + 1 });
    });
    return stretches;
  }

  function drawTree(svg, given, at, width, side) {
    const highest = d3.max(given.branches, (branch) => branch[2]) || 1;
    const x = d3.scaleLinear([0, 1.04 * highest], [width, 0]);
    const d = given.branches.map(([x1, y1, x2, y2]) => `M${x(x1).toFixed(1)},${at(y1).toFixed(1)}L${x(x2).toFixed(1)},${at(y2).toFixed(1)}`);
    svg.append("path").attr("d", d.join("")).attr("fill", "none").attr("stroke", "var(--ink)")
      .attr("stroke-width", given.ids.length > 60 ? 0.6 : 1);
    if (given.cut !== null) {
      svg.append("path").attr("d", `M${x(given.cut)},0V${side}`).attr("stroke", "var(--c1)").attr("stroke-dasharray", "4 3");
    }
    const axis = svg.append("g").attr("transform", `translate(0,${side})`).call(d3.axisBottom(x).ticks(3));
    axis.attr("font-family", null).select(".domain").attr("stroke", "var(--line)");
    svg.append("text").attr("x", 0).attr("y", side + 32).attr("fill", "var(--muted)").text("1 − relevance");
  }

  function drawTasks(svg, ids, view, look, at, x) {
    if (!look.tasks.size) return;
    const taskOf = view.summary.device_tasks ?? {};
    ids.forEach((id, row) => {
      svg.append("rect").attr("x", x).attr("y", at(row)).attr("width", 8).attr("height", at(1) + 0.3)
        .attr("fill", look.tasks.get(taskOf[id])?.colour ?? "none").append("title").text(`${id}: ${taskOf[id] ?? ""}`);
    });
  }

  function drawCells(matrix, given, at, side) {
    const cells = Uint8Array.from(atob(given.cells), (letter) => letter.charCodeAt(0));
    const blocks = Math.sqrt(cells.length);
    if (given.ids.length > NAMED) {
      const size = at(given.block * blocks);
      matrix.append("image").attr("href", picture(cells, blocks)).attr("width", size).attr("height", size)
        .attr("image-rendering", "pixelated").attr("preserveAspectRatio", "none");
      return;
    }
    cells.forEach((value, i) => {
      const [row, column] = [Math.floor(i / blocks), i % blocks];
      matrix.append("rect").attr("x", at(column)).attr("y", at(row)).attr("width", at(1)).attr("height", at(1))
        .attr("fill", d3.interpolateBlues(value / 255)).attr("stroke", "var(--card)").attr("stroke-width", 0.6);
      if (given.ids.length <= NUMBERED && side > 260) {
        matrix.append("text").attr("x", at(column + 0.5)).attr("y", at(row + 0.5) + 4).attr("text-anchor", "middle")
          .attr("font-size", 10).attr("fill", value > 140 ? "#ffffff" : "#1f2933").text((value / 255).toFixed(2));
      }
    });
  }

  /** Cells as a picture, a pixel each. */
  function picture(cells, blocks) {
    const canvas = Object.assign(document.createElement("canvas"), { width: blocks, height: blocks });
    const context = canvas.getContext("2d");
    const image = context.createImageData(blocks, blocks);
    const colours = d3.range(256).map((value) => d3.rgb(d3.interpolateBlues(value / 255)));
    cells.forEach((value, i) => {
      const { r, g, b } = colours[value];
      image.data.set([r, g, b, 255], 4 * i);
    });
    context.putImageData(image, 0, 0);
    return canvas.toDataURL();
  }

  function drawFrames(matrix, stretches, at, side) {
    if (stretches.length > FRAMED) return;
    const rows = spread(stretches.map((s) => at((s.start + s.end) / 2)), 15, 8, side - 8);
    stretches.forEach((stretch, i) => {
      const [start, size] = [at(stretch.start), at(stretch.end - stretch.start)];
      matrix.append("rect").attr("x", start).attr("y", start).attr("width", size).attr("height", size).attr("fill", "none")
        .attr("stroke", "var(--c1)").attr("stroke-width", 2);
      matrix.append("path").attr("d", `M${side + 2},${start + size / 2}L${side + 12},${rows[i]}`).attr("stroke", "var(--muted)");
      matrix.append("text").attr("x", side + 16).attr("y", rows[i] + 4)
        .text(`${shorten(stretch.name, 10)} (${stretch.end - stretch.start})`);
    });
  }

  function drawNames(matrix, names, at, side) {
    names.forEach((name, i) => {
      const size = Math.min(10, at(1));
      const middle = at(i + 0.5);
      const row = matrix.append("text").attr("x", -6).attr("y", middle + 3).attr("text-anchor", "end");
      const column = matrix.append("text").attr("text-anchor", "end")
        .attr("transform", `translate(${middle + 3},${side + 6}) rotate(-90)`);
      for (const label of [row, column]) label.attr("font-size", size).attr("fill", "var(--muted)").text(name);
    });
  }

  function drawScale(svg, left, y, side) {
    const steps = 24;
    const width = Math.min(160, side - 60);
    d3.range(steps).forEach((step) => {
      svg.append("rect").attr("x", left + 24 + (step * width) / steps).attr("y", y).attr("width", width / steps + 0.5).attr("height", 9)
        .attr("fill", d3.interpolateBlues(step / (steps - 1)));
    });
    for (const [said, x] of [["0", left + 12], ["1", left + 28 + width]]) {
      svg.append("text").attr("x", x).attr("y", y + 9).attr("fill", "var(--muted)").text(said);
    }
  }

  Object.assign(fedstrata, { relevance });
})();
