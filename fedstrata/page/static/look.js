// How figures look: colours that colour-blind readers tell apart, marks, and a figure as a file for a paper.
"use strict";

(() => {
  const COUNT = 8; // colours, dashes and symbols each; above it clusters are drawn alike with their median
  const UNKNOWN = { colour: "var(--muted)", symbol: "circle" };
  const SYMBOLS = ["circle", "square", "triangle", "diamond", "cross", "star", "wye", "times"];
  const SHAPES = {
    circle: d3.symbolCircle, square: d3.symbolSquare, triangle: d3.symbolTriangle, diamond: d3.symbolDiamond2,
    cross: d3.symbolCross, star: d3.symbolStar, wye: d3.symbolWye, times: d3.symbolTimes,
  };
  const DASHES = ["", "7 3", "2 2", "8 3 2 3", "12 4", "4 2", "1 3", "10 2 2 2 2 2"];

  /** Colour and symbol of each task, and colour of each cluster and LPS; a cluster wears its main task's colour where
   * no other does. */
  function lookOf(view) {
    const tasks = [...new Set(Object.values(view.summary.device_tasks ?? {}))];
    const taskLook = new Map(tasks.map((task, i) => [
      task, { colour: `var(--c${i % COUNT})`, symbol: SYMBOLS[i % COUNT] },
    ]));
    const groups = { ...view.byLps, ...view.clusters };
    const main = Object.values(groups).map((ids) => mainTask(ids, view.summary.device_tasks ?? {}));
    const isOwn = tasks.length && !main.includes(null) && new Set(main).size === main.length && main.length <= COUNT;
    const palette = tasks.length ? "k" : "c";
    const clusterColour = new Map(Object.keys(groups).map((name, i) => [
      name, isOwn ? taskLook.get(main[i]).colour : `var(--${palette}${i % COUNT})`,
    ]));
    return {
      tasks: taskLook,
      cluster: (name) => clusterColour.get(name) ?? UNKNOWN.colour,
      device: (device) => {
        if (view.spans && device.cluster) { // where it stands is its LPS: the colour has to say its cluster
          return { colour: clusterColour.get(device.cluster), symbol: taskLook.get(device.task)?.symbol ?? UNKNOWN.symbol };
        }
        if (taskLook.has(device.task)) return taskLook.get(device.task);
        return device.cluster ? { ...UNKNOWN, colour: clusterColour.get(device.cluster) } : UNKNOWN;
      },
    };
  }

  function mainTask(ids, taskOf) {
    const counts = d3.rollup(ids.filter((id) => id in taskOf), (same) => same.length, (id) => taskOf[id]);
    return d3.greatest(counts, ([, count]) => count)?.[0] ?? null;
  }

  const shape = (name, size) => d3.symbol(SHAPES[name], size)();

  /** An empty figure: its size, and what it shows in words. */
  function figure(width, height, title, description) {
    const svg = d3.create("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height)
      .attr("font-family", "system-ui, sans-serif").attr("font-size", 11).attr("fill", "currentColor");
    return said(svg, title, description);
  }

  /** A figure with its title and its description, for who does not see it. */
  function said(svg, title, description) {
    svg.attr("role", "img").attr("aria-label", `${title}. ${description}`).attr("aria-description", null);
    return svg;
  }

  /** A figure of Plot's in our style. */
  function plot(options, title, description) {
    const node = Plot.plot({ className: "plot", style: { background: "none", fontSize: "11px" }, ...options });
    // a figure is one picture to who hears it; Plot would have its marks read out one by one, without their values
    d3.select(node).selectAll("g").attr("aria-label", null).attr("aria-description", null).attr("aria-hidden", null);
    return said(d3.select(node), title, description).node();
  }

  /** A figure as a file that stands alone: in the light colours, on whatever is behind it. */
  function svgFile(svg) {
    const copy = svg.cloneNode(true);
    const paper = getComputedStyle(document.getElementById("paper"));
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("color", paper.getPropertyValue("--ink").trim());
    const text = new XMLSerializer().serializeToString(copy);
    return text.replace(/var\((--[\w-]+)\)/g, (_, name) => paper.getPropertyValue(name).trim());
  }

  Object.assign(fedstrata, { COUNT, DASHES, lookOf, shape, figure, plot, svgFile });
})();
