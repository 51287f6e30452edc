// Curves over message sizes and figures over the nights, as SVG.

const TALL = 205, MARGIN = { left: 66, right: 10, top: 10, bottom: 24 };

function chart(parent, title, under, bad, draw) {
  const plot = make("div", { class: "plot" });
  parent.append(make("div", { class: "chart" }, make("h3", {}, title), make("p", { class: bad ? "under bad" : "under" }, under), plot));
  later(plot, () => draw(plot));
}
function canvas(plot, label, across, up) { // axes with their ticks; returns the picture and its two scales
  const wide = Math.max(240, plot.clientWidth || 330), right = wide - MARGIN.right, foot = TALL - MARGIN.bottom;
  const place = (axis, from, to) => (value) => from + (axis.at(value) - axis.at(axis.low)) / (axis.at(axis.high) - axis.at(axis.low) || 1) * (to - from);
  const x = place(across, MARGIN.left + 6, right - 4), y = place(up, foot, MARGIN.top);
  const svg = shape("svg", { viewBox: "0 0 " + wide + " " + TALL, role: "img", "aria-label": label });
  for (const tick of up.ticks) {
    svg.append(shape("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) }));
    svg.append(shape("text", { x: MARGIN.left - 8, y: y(tick) + 4, "text-anchor": "end" }, up.words(tick)));
  }
  let free = -Infinity; // a label of the lower axis stands only where there is room for it
  for (const tick of across.ticks) {
    const words = across.words(tick), half = words.length * 3.2, at = Math.max(half, Math.min(wide - half, x(tick)));
    if (at - half < free) continue;
    free = at + half + 3;
    svg.append(shape("text", { x: at, y: TALL - 6, "text-anchor": "middle" }, words));
  }
  plot.replaceChildren(svg);
  return [svg, x, y];
}
function line(points) { return points.map(([x, y], at) => (at ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join(""); }
function dot(x, y, name, title, ...lines) { // with a larger place for the pointer
  const dots = shape("g", { class: "dot " + name }, shape("circle", { cx: x, cy: y, r: 3.2 }), shape("circle", { class: "touch", cx: x, cy: y, r: 9 }));
  return hint(dots, title, ...lines);
}

// --- curves over message sizes -------------------------------------------------------------------------------------

function sweeps() {
  const kinds = [...new Set(data.sweeps.map((one) => one.name))];
  function fill(at) {
    by("sweep-charts").replaceChildren();
    for (const one of data.sweeps.filter((each) => each.name === kinds[at])) {
      const band = one.band.length ? (one.failed ? one.failed + " of " + one.band.length + " out of bounds" : "within bounds") + ", reference: " + one.source : "no reference yet";
      chart(by("sweep-charts"), one.title, band, one.failed > 0, (plot) => curve(plot, one));
    }
  }
  if (kinds.length > 1) segment(by("quantity"), kinds, fill);
  fill(0);
}
function curve(plot, one) {
  const sizes = one.points.map((point) => point[0]);
  const all = [...one.points, ...one.band].map((point) => point[1]).filter((value) => value > 0);
  const across = { at: Math.log, low: sizes[0], high: sizes[sizes.length - 1], ticks: sizes.filter((_, at) => at % Math.ceil(sizes.length / 5) === 0), words: size };
  const [svg, x, y] = canvas(plot, one.title + ": " + one.name + " over the size of the message", across, powers(all, one.unit));
  const edge = (point, at) => [x(point[0]), y(point[at] === null || point[at] <= 0 ? point[1] : point[at])];
  if (one.band.length) {
    const outline = [...one.band.map((point) => edge(point, 3)), ...[...one.band].reverse().map((point) => edge(point, 2))];
    svg.append(shape("path", { class: "band", d: line(outline) + "Z" }), shape("path", { class: "reference", d: line(one.band.map((point) => edge(point, 1))) }));
  }
  const tone = one.failed ? "bad" : "good", measured = one.points.filter((point) => point[1] > 0);
  svg.append(shape("path", { class: "curve " + tone, d: line(measured.map((point) => edge(point, 1))) }));
  for (const point of measured) {
    const [at, low] = edge(point, 2), high = edge(point, 3)[1];
    svg.append(shape("line", { class: "interval " + tone, x1: at, x2: at, y1: low, y2: high }));
    const wanted = one.band.find((each) => each[0] === point[0]);
    svg.append(dot(at, y(point[1]), tone, size(point[0]) + ": " + figure(point[1], one.unit),
      point[2] === null ? "" : figure(point[2], one.unit) + " to " + figure(point[3], one.unit), wanted ? "reference " + figure(wanted[1], one.unit) : ""));
  }
}
function drawable(value) { return Math.max(1e-30, Math.min(1e30, value)); } // beyond these, ticks would have no end
function powers(values, unit) { // ticks at 1, 2 and 5, or at whole powers of ten where that would be too many
  const low = drawable(Math.min(...values) / 1.3), high = drawable(Math.max(...values) * 1.3);
  const between = (steps, jump) => {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += jump) {
      for (const one of steps) { const tick = one * Math.pow(10, power); if (tick >= low && tick <= high) ticks.push(tick); }
    }
    return ticks;
  };
  const fine = between([1, 2, 5], 1), ticks = fine.length <= 6 ? fine : between([1], Math.ceil(Math.log10(high / low) / 5));
  return { at: (value) => Math.log(Math.max(low, Math.min(high, value))), low: low, high: high, ticks: ticks, words: (tick) => figure(tick, unit) };
}

// --- figures over the nights ---------------------------------------------------------------------------------------

let allTrends = false;
by("more-trends")?.addEventListener("click", () => { allTrends = true; trends(); });
function trends() {
  const count = allTrends ? data.trends.length : Math.max(6, Math.min(12, data.trends.filter((one) => one.changed).length));
  by("more-trends").hidden = count >= data.trends.length;
  by("trend-charts").replaceChildren();
  for (const one of data.trends.slice(0, count)) {
    const changed = one.points.find((point) => point[3] === one.changed);
    const last = one.points[one.points.length - 1][1];
    const earlier = changed ? middle(one.points.filter((point) => point[0] < changed[0]).map((point) => point[1])) : NaN;
    const words = changed ? (isFinite(earlier) ? figure(earlier, one.unit) + " became " : "") + figure(last, one.unit) + " on " + day(changed[0], { year: "numeric" }) : "as before: " + figure(last, one.unit);
    chart(by("trend-charts"), one.title, words, Boolean(changed) && one.named, (plot) => nights(plot, one, changed));
  }
}
function nights(plot, one, changed) {
  const times = one.points.map((point) => point[0]), low = times[0], high = times[times.length - 1];
  const most = drawable(Math.max(...one.points.map((point) => point[1])) || 1), fine = high - low < 3 * 86400 ? { hour: "2-digit", minute: "2-digit" } : {};
  const across = { at: (value) => value, low: low, high: high, ticks: Array.from({ length: 5 }, (_, at) => low + at * (high - low) / 4), words: (tick) => day(tick, fine) };
  const up = { at: (value) => Math.min(value, most * 1.12), low: 0, high: most * 1.12, ticks: round(most), words: (tick) => figure(tick, one.unit) };
  const [svg, x, y] = canvas(plot, one.title + " over the runs", across, up);
  if (changed) svg.append(shape("line", { class: one.named ? "change bad" : "change", x1: x(changed[0]), x2: x(changed[0]), y1: MARGIN.top, y2: TALL - MARGIN.bottom }));
  svg.append(shape("path", { class: "curve", d: line(one.points.map((point) => [x(point[0]), y(point[1])])) }));
  for (const point of one.points) {
    // What a check said of a run is of all its nodes; it colours a single node only where this run names it.
    const tone = one.named ? { FAIL: "bad", ERROR: "odd", SKIP: "none" }[point[2]] || "good" : "good";
    svg.append(dot(x(point[0]), y(point[1]), tone, day(point[0], fine) + ": " + figure(point[1], one.unit), point[2] + ", " + point[3]));
  }
}
function round(most) { // 0 and three or four round steps
  const raw = most / 3, power = Math.pow(10, Math.floor(Math.log10(raw))), each = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * .99) || raw;
  const ticks = [];
  for (let tick = 0; tick <= most * 1.1; tick += each) ticks.push(tick);
  return ticks;
}
