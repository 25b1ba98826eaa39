// The figure of the three tiers: GPS, LPSs and devices by state, cluster and true task, with the bytes on each link.
"use strict";

(() => {
  const { bytes, counted, shorten } = fedstrata;
  const GPS = { width: 52, height: 28 };
  const NARROWEST = 132; // of an LPS beside others
  const MOST_LPS = 60; // drawn each by itself
  const WHAT = { "device-gps": "enrolment, answers", "device-lps": "models and updates", "lps-gps": "shared layers" };

  /** Pitch and size of the marks: devices by the hundred are small. */
  function scaleOf(count) {
    if (count <= 30) return { pitch: 40, row: 36, area: 150, isNamed: true };
    if (count <= 200) return { pitch: 15, row: 15, area: 80, isNamed: false };
    return { pitch: 9, row: 9, area: 30, isNamed: false };
  }

  /** The LPSs with their devices, and first those that hang on none yet. */
  function groupsOf(view) {
    const groups = d3.group(view.devices, (device) => device.home);
    const place = new Map(Object.keys(view.clusters).map((name, i) => [name, i]));
    const sorted = (devices = []) => d3.sort(devices, (device) => place.get(device.cluster) ?? Infinity);
    const found = Object.keys(view.byLps).map((name) => ({ name, devices: sorted(groups.get(name)) }));
    const rest = (groups.get(null) ?? []).filter((device) => !view.isOver || device.exclusion);
    return rest.length ? [{ name: null, devices: rest }, ...found] : found;
  }

  function topology(view, look, width) {
    const all = groupsOf(view);
    const groups = all.slice(0, MOST_LPS);
    const scale = scaleOf(view.devices.length);
    const isWide = width >= 560 && groups.length * NARROWEST <= width;
    const places = isWide ? sideBySide(groups, scale, width) : oneBelowTheOther(groups, scale, width);
    const head = width >= 560 ? 46 : 3 * 20 + 6;
    const bottom = d3.max(places, (place) => place.bottom) ?? 60;
    const height = head + bottom + 22 * legendRows(view, look, width) + (all.length > groups.length ? 20 : 0);
    const svg = fedstrata.figure(width, height, "Topology", inWords(view));
    drawLinkBytes(svg, view, width);
    const body = svg.append("g").attr("transform", `translate(0,${head})`);
    (isWide ? drawTree : drawTrunk)(body, groups, places, width);
    groups.forEach((group, i) => drawGroup(body, view, look, group, places[i], scale));
    if (all.length > groups.length) {
      text(body, 8, bottom + 12, `and ${counted(all.length - groups.length, "LPS")} more`, { fill: "var(--muted)" });
    }
    drawLegend(svg, view, look, width, height);
    return svg.node();
  }

  function sideBySide(groups, scale, width) {
    const weights = groups.map((group) => Math.max(NARROWEST, Math.sqrt(group.devices.length) * scale.pitch * 1.6));
    const unit = width / (d3.sum(weights) || 1);
    let left = 0;
    return groups.map((group, i) => {
      const place = { left, width: weights[i] * unit - 16, top: 70, middle: left + (weights[i] * unit) / 2 };
      left += weights[i] * unit;
      place.columns = Math.max(1, Math.min(group.devices.length, Math.floor(place.width / scale.pitch)));
      place.bottom = place.top + 74 + Math.ceil(group.devices.length / place.columns) * scale.row;
      place.first = place.middle - (place.columns * scale.pitch) / 2;
      return place;
    });
  }

  function oneBelowTheOther(groups, scale, width) {
    let top = 48;
    return groups.map((group) => {
      const columns = Math.max(1, Math.floor((width - 52) / scale.pitch));
      const place = { left: 40, first: 44, top, columns, width: width - 48 };
      place.bottom = top + 24 + Math.ceil(group.devices.length / columns) * scale.row + 12;
      top = place.bottom;
      return place;
    });
  }

  function text(parent, x, y, said, attributes = {}) {
    const node = parent.append("text").attr("x", x).attr("y", y).text(said);
    for (const [name, value] of Object.entries(attributes)) node.attr(name, value);
    return node;
  }

  function drawGps(parent, x, y) {
    parent.append("rect").attr("x", x).attr("y", y).attr("width", GPS.width).attr("height", GPS.height).attr("rx", 6)
      .attr("fill", "var(--ink)");
    text(parent, x + GPS.width / 2, y + 18, "GPS", {
      "text-anchor": "middle", "font-weight": 700, "font-size": 13, fill: "var(--card)",
    });
  }

  function drawTree(body, groups, places, width) {
    const link = d3.linkVertical();
    const top = [width / 2, GPS.height];
    groups.forEach((group, i) => {
      if (group.name === null) return;
      body.append("path").attr("d", link({ source: top, target: [places[i].middle, places[i].top] }))
        .attr("fill", "none").attr("stroke", "var(--edge)").attr("stroke-width", 2);
    });
    drawGps(body, width / 2 - GPS.width / 2, 0);
  }

  function drawTrunk(body, groups, places) {
    const stops = places.filter((_, i) => groups[i].name !== null).map((place) => place.top + 8);
    const d = stops.map((y) => `M16,${GPS.height}V${y}H34`).join("");
    body.append("path").attr("d", d).attr("fill", "none").attr("stroke", "var(--edge)").attr("stroke-width", 2);
    drawGps(body, 0, 0);
  }

  /** An LPS with its devices below it. */
  function drawGroup(body, view, look, group, place, scale) {
    const metric = lastMetric(view, group.name);
    const name = group.name === null ? (view.isOver ? "left out" : "not grouped yet") : shorten(group.name, 14);
    const facts = [counted(group.devices.length, "device"), ...(metric === null ? [] : [view.metric.said(metric)])];
    let y = place.top;
    if (place.middle !== undefined) {
      const box = Math.min(place.width, 124);
      body.append("rect").attr("x", place.middle - box / 2).attr("y", y).attr("width", box).attr("height", 38).attr("rx", 6)
        .attr("fill", "var(--card)").attr("stroke", group.name === null ? "var(--edge)" : look.cluster(group.name))
        .attr("stroke-width", 2).attr("stroke-dasharray", group.name === null ? "4 3" : null);
      text(body, place.middle, y + 16, name, { "text-anchor": "middle", "font-weight": 700, "font-size": 12 });
      text(body, place.middle, y + 31, facts.join(" · "), { "text-anchor": "middle", fill: "var(--muted)" });
      y += 66;
    } else {
      const label = text(body, 38, y + 12, name, { "font-weight": 700, "font-size": 12 });
      label.append("tspan").attr("font-weight", 400).attr("fill", "var(--muted)").text(`   ${facts.join(" · ")}`);
      y += 32;
    }
    drawDevices(body, view, look, group, { ...place, top: y }, scale);
  }

  function drawDevices(body, view, look, group, place, scale) {
    const names = scale.isNamed ? fedstrata.labels(group.devices.map((device) => device.id)) : [];
    group.devices.forEach((device, i) => {
      const x = place.first + ((i % place.columns) + 0.5) * scale.pitch;
      const y = place.top + Math.floor(i / place.columns) * scale.row;
      if (scale.isNamed && place.middle !== undefined && i < place.columns && group.name !== null) {
        body.append("path").attr("d", `M${place.middle},${place.top - 28}L${x},${y - 8}`).attr("stroke", "var(--edge)");
      }
      drawDevice(body, look, device, x, y, scale.area);
      if (scale.isNamed) {
        text(body, x, y + 18, shorten(names[i].replace(/^device-/, ""), 7), {
          "text-anchor": "middle", "font-size": 9.5, fill: "var(--muted)",
        });
      }
    });
  }

  /** A device: filled once it is in a cluster, hollow before, dotted while absent, crossed out, or ringed if waited for. */
  function drawDevice(body, look, device, x, y, area) {
    const { colour, symbol } = look.device(device);
    const isOut = device.exclusion || device.state === "refused";
    const mark = body.append("g").attr("transform", `translate(${x.toFixed(1)},${y.toFixed(1)})`);
    mark.append("title").text(`${device.id}: ${stateOf(device)}`);
    if (device.wait) mark.append("circle").attr("r", Math.sqrt(area) * 0.85).attr("fill", "none").attr("stroke", "var(--warn)").attr("stroke-width", 2);
    const path = mark.append("path").attr("d", fedstrata.shape(isOut ? "times" : symbol, area));
    path.attr("stroke", isOut ? "var(--warn)" : colour).attr("stroke-width", isOut ? 2 : 1.3);
    path.attr("fill", device.state === "assigned" && !isOut ? colour : "none");
    if (device.state === "absent" && !isOut) path.attr("stroke-dasharray", "1.5 2");
    if (device.state === "answered") path.attr("fill", colour).attr("fill-opacity", 0.35);
  }

  /** A device's state in words. */
  function stateOf(device) {
    const said = [device.exclusion ? `excluded from ${device.exclusion.from}: ${device.exclusion.reason}` : device.state];
    if (device.cluster) said.push(`in ${device.cluster}`);
    if (device.task) said.push(`task ${device.task}`);
    if (device.wait) said.push(`waited for: ${device.wait.what}`);
    return said.join(", ");
  }

  function lastMetric(view, name) {
    const measured = view.summary[view.metric.name]?.[name];
    if (fedstrata.isNumber(measured)) return measured;
    return view.rounds.findLast((row) => row.lps_id === name && row.isGlobal && fedstrata.isNumber(row.metric))?.metric ?? null;
  }

  function drawLinkBytes(svg, view, width) {
    view.links.forEach((link, i) => {
      const [x, y] = width >= 560 ? [(i * width) / 3 + 2, 12] : [2, 12 + i * 20];
      const rates = ["down", "up"].map((direction) => view.rate(link.name, direction));
      const rate = (value) => (value === null ? "" : ` (${bytes(value)}/s)`);
      const said = `↓ ${bytes(link.down)}${rate(rates[0])}  ↑ ${bytes(link.up)}${rate(rates[1])}`;
      const label = text(svg, x, y, width >= 760 ? `${link.name}: ${WHAT[link.name]}` : link.name, { "font-weight": 700 });
      if (width >= 560) text(svg, x, y + 17, said, { fill: "var(--muted)" });
      else label.append("tspan").attr("font-weight", 400).attr("fill", "var(--muted)").text(`  ${said}`);
    });
  }

  const legendColumns = (width) => Math.max(1, Math.floor(width / 150));
  const legendRows = (view, look, width) => Math.ceil(legendEntries(view, look).length / legendColumns(width));

  function legendEntries(view, look) {
    const plain = { colour: "var(--muted)", symbol: "circle" };
    const states = [["absent", "absent"], ["enrolled", "enrolled"], ["waited for", "enrolled"], ["excluded", "refused"]];
    const clusters = view.spans ? Object.keys(view.clusters).slice(0, fedstrata.COUNT) : [];
    return [
      ...[...look.tasks].map(([task, own]) => ({
        said: `task ${task}`, own: view.spans ? { ...own, colour: plain.colour } : own, state: "assigned",
      })),
      ...clusters.map((name) => ({ said: name, own: { ...plain, colour: look.cluster(name) }, state: "assigned" })),
      ...states.map(([said, state]) => ({ said, own: plain, state })),
    ];
  }

  function drawLegend(svg, view, look, width, height) {
    const columns = legendColumns(width);
    const top = height - 22 * legendRows(view, look, width) + 8;
    legendEntries(view, look).forEach(({ said, own, state }, i) => {
      const [x, y] = [10 + (i % columns) * 150, top + Math.floor(i / columns) * 22];
      const device = { id: said, state, wait: said === "waited for" ? { what: "" } : null };
      const mark = svg.append("g");
      drawDevice(mark, { device: () => own }, device, x, y, 60);
      mark.select("title").remove();
      text(svg, x + 14, y + 4, shorten(said, 20), { fill: "var(--muted)" });
    });
  }

  function inWords(view) {
    const states = d3.rollups(view.devices, (same) => same.length, (device) => device.state);
    const said = [
      `One GPS over ${counted(Object.keys(view.byLps).length, "LPS")}`,
      states.map(([state, count]) => `${counted(count, "device")} ${state}`).join(", "),
      ...view.links.map((link) => `${link.name}: ${bytes(link.down)} down, ${bytes(link.up)} up`),
    ];
    return `${said.join(". ")}.`;
  }

  Object.assign(fedstrata, { topology, stateOf, lastMetric });
})();
