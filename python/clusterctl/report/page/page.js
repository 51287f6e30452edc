"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const by = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  // --- small things -----------------------------------------------------------------------------------------------

  function bytes(text) {
    const raw = atob(text), array = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) array[i] = raw.charCodeAt(i);
    return array;
  }
  function make(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "class") element.className = value; else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }
  function digits(value) { // three of them, and all of those before the point
    if (!value || !isFinite(value)) return String(value);
    return value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
  }
  function figure(value, unit) {
    if (value === null || !isFinite(value)) return "";
    if (["B/s", "FLOP/s", "Hz"].includes(unit)) {
      for (const [factor, letter] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
        if (Math.abs(value) >= factor) return digits(value / factor) + " " + letter + unit;
      }
    }
    if ((unit === "s" || unit === "us") && value) {
      const seconds = unit === "s" ? value : value * 1e-6;
      if (Math.abs(seconds) < 1e-3) return digits(seconds * 1e6) + " us";
      return Math.abs(seconds) < 1 ? digits(seconds * 1e3) + " ms" : digits(seconds) + " s";
    }
    return unit === "1" ? digits(value) : digits(value) + " " + unit;
  }
  function size(count) {
    for (const [factor, unit] of [[1 << 30, "GiB"], [1 << 20, "MiB"], [1 << 10, "KiB"]]) {
      if (count >= factor && count % factor === 0) return count / factor + " " + unit;
    }
    return count + " B";
  }
  function press(group, button) {
    for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
  }
  function segment(group, words, choose) {
    words.forEach((word, at) => {
      const button = make("button", { type: "button", "aria-pressed": String(at === 0) }, word);
      button.addEventListener("click", () => { press(group, button); choose(at); });
      group.append(button);
    });
  }

  // --- light and dark ---------------------------------------------------------------------------------------------

  const redraw = [];
  const wish = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = "";
  function paint(theme) { root.dataset.theme = theme; for (const draw of redraw) draw(); }
  const now = () => chosen || (wish.matches ? "dark" : "light");
  root.dataset.theme = now();
  wish.addEventListener("change", () => paint(now()));
  by("theme").addEventListener("click", () => { chosen = now() === "dark" ? "light" : "dark"; paint(chosen); });
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  function layout(more) {
    return Object.assign({
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      font: { family: getComputedStyle(document.body).fontFamily, size: 11.5, color: colour("soft") },
      hoverlabel: { bgcolor: colour("ink"), bordercolor: colour("ink"), font: { color: colour("paper"), size: 12 } },
    }, more);
  }
  const quiet = { displayModeBar: false, responsive: true, showTips: false };
  const axis = (more) => Object.assign({ gridcolor: colour("line"), linecolor: colour("line"), zeroline: false, fixedrange: true, ticks: "" }, more);

  // A picture is drawn when it comes into sight, or all at once before printing.
  const waiting = new Map();
  const sight = new IntersectionObserver((seen) => {
    for (const one of seen) if (one.isIntersecting) show(one.target);
  }, { rootMargin: "400px" });
  function show(place) { const draw = waiting.get(place); if (draw) { waiting.delete(place); sight.unobserve(place); draw(); redraw.push(draw); } }
  function later(place, draw) { waiting.set(place, draw); sight.observe(place); }
  let before = "";
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    for (const place of [...waiting.keys()]) show(place);
    for (const bad of document.querySelectorAll(".check.FAIL, .check.ERROR, .todo details")) bad.open = true;
    paint("light");
  });
  window.addEventListener("afterprint", () => paint(before));

  // --- pairs of nodes ---------------------------------------------------------------------------------------------

  const RAMPS = {
    light: [[0, "#7c1d12"], [.2, "#c9472c"], [.4, "#ea9a5a"], [.6, "#f3dcb2"], [.8, "#dce7ea"], [1, "#7fb0c9"]],
    dark: [[0, "#ff8a70"], [.2, "#e2593c"], [.4, "#a4502c"], [.6, "#5b4a35"], [.8, "#263742"], [1, "#3f7391"]],
  };
  const FEW = 40, MANY = 128; // nodes from which on a picture of the worst comes first
  const TOP = 1.25; // the ramp ends there; 1 is the median

  function unpacked(matrix) {
    if (matrix.ready) return matrix;
    const raw = bytes(matrix.values), codes = new Uint16Array(raw.length / 2), span = Math.log(matrix.high / matrix.low);
    for (let i = 0; i < codes.length; i++) codes[i] = raw[2 * i] | (raw[2 * i + 1] << 8);
    matrix.count = matrix.nodes.length;
    matrix.diagonal = "block" in matrix ? 0 : 1;
    matrix.value = (code) => code ? matrix.low * Math.exp((code - 1) / 65534 * span) : NaN;
    matrix.codes = codes;
    matrix.share = (code) => matrix.better === "lower" ? matrix.median / matrix.value(code) : matrix.value(code) / matrix.median;
    matrix.spreadCodes = matrix.spreads ? bytes(matrix.spreads) : null;
    matrix.who = matrix.worst ? bytes(matrix.worst) : null;
    matrix.ready = true;
    return matrix;
  }
  function index(matrix, i, j) { // in the upper triangle, row by row
    if (i > j) [i, j] = [j, i];
    return i * matrix.count - (i * (i - 1)) / 2 - (matrix.diagonal ? i : 0) + j - i - matrix.diagonal;
  }
  function about(matrix, i, j) {
    const at = index(matrix, i, j), value = matrix.value(matrix.codes[at]);
    if (matrix.diagonal && i === j) return null;
    const said = { who: matrix.nodes[i] + (i === j ? ", among themselves" : " ↔ " + matrix.nodes[j]), value: "not measured", share: NaN, more: "" };
    if (!isFinite(value)) return said;
    said.value = figure(value, matrix.unit);
    said.share = matrix.share(matrix.codes[at]);
    said.more = (value / matrix.median).toFixed(2) + " × the median of " + figure(matrix.median, matrix.unit);
    const code = matrix.spreadCodes && matrix.spreadCodes[at];
    if (code) said.value += " ± " + figure(value * Math.pow(10, (code - 255) / 254 * 5), matrix.unit);
    if (matrix.who) {
      const end = (offset) => data.nodes.hosts[matrix.who[4 * at + offset] | (matrix.who[4 * at + offset + 1] << 8)];
      said.more += "; the worst link there is " + end(0) + " ↔ " + end(2);
    }
    return said;
  }

  function links() {
    const heat = by("heat"), readout = by("readout"), tip = by("tip");
    let matrix = null, order = "worst", rows = [], cursor = null;

    function tell(i, j) {
      const said = about(matrix, i, j);
      if (!said) return null;
      readout.replaceChildren(make("p", { class: "who" }, said.who), make("p", { class: "value" }, said.value), make("p", {}, said.more));
      return said;
    }
    function draw() {
      rows = order === "name" ? matrix.nodes.map((_, at) => at) : order === "few" ? matrix.order.slice(0, FEW) : matrix.order;
      const names = rows.map((at) => matrix.nodes[at]), count = rows.length, z = [];
      for (let y = 0; y < count; y++) {
        const line = new Float32Array(count);
        for (let x = 0; x < count; x++) {
          const i = rows[y], j = rows[x];
          line[x] = i === j && matrix.diagonal ? NaN : Math.min(TOP, matrix.share(matrix.codes[index(matrix, i, j)]));
        }
        z.push(line);
      }
      heat.style.maxWidth = 220 + 56 * count + "px"; // a few nodes need no whole page
      const gap = count <= 40 ? 1.5 : 0;
      const side = { type: "category", showgrid: false, zeroline: false, ticks: "", tickfont: { size: count > 24 ? 10 : 11.5 }, automargin: true, constrain: "domain", linecolor: "rgba(0,0,0,0)" };
      Plotly.react(heat, [{ type: "heatmap", x: names, y: names, z: z, zmin: 0, zmax: TOP, colorscale: RAMPS[root.dataset.theme], showscale: false, hoverinfo: "none", xgap: gap, ygap: gap, hoverongaps: false }],
        layout({ margin: { l: 10, r: 4, t: 10, b: 10 }, xaxis: Object.assign({}, side, { tickangle: count > 12 ? -90 : 0 }), yaxis: Object.assign({}, side, { autorange: "reversed", scaleanchor: "x" }), dragmode: "zoom", shapes: [] }), quiet);
      if (!heat.dataset.listens) {
        heat.dataset.listens = "yes";
        heat.on("plotly_hover", (event) => {
          const point = event.points[0], i = rows[names_of(point.y)], j = rows[names_of(point.x)];
          const said = tell(i, j);
          if (!said) return;
          tip.replaceChildren(make("strong", {}, said.who), said.value, make("br"), said.more);
          tip.hidden = false;
          const box = tip.getBoundingClientRect(), x = event.event.clientX, y = event.event.clientY;
          tip.style.left = Math.max(8, Math.min(x + 16, innerWidth - box.width - 12)) + "px";
          tip.style.top = (y + 20 + box.height > innerHeight ? y - box.height - 12 : y + 20) + "px";
        });
        heat.on("plotly_unhover", () => { tip.hidden = true; });
        heat.addEventListener("mouseleave", () => { tip.hidden = true; });
        heat.addEventListener("keydown", (event) => {
          const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
          if (!step) return;
          event.preventDefault();
          const keep = (at) => Math.max(0, Math.min(rows.length - 1, at));
          cursor = cursor ? [keep(cursor[0] + step[0]), keep(cursor[1] + step[1])] : [0, 1];
          if (matrix.diagonal && cursor[0] === cursor[1]) cursor = [keep(cursor[0] + step[0]), keep(cursor[1] + step[1])];
          tell(rows[cursor[0]], rows[cursor[1]]);
          const [y, x] = cursor;
          Plotly.relayout(heat, { shapes: [{ type: "rect", x0: x - .5, x1: x + .5, y0: y - .5, y1: y + .5, line: { color: colour("ink"), width: 2 } }] });
        });
      }
      places = new Map(names.map((name, at) => [name, at]));
    }
    let places = new Map();
    const names_of = (name) => places.get(name);

    function aside() {
      const found = [];
      for (let i = 0; i < matrix.count; i++) {
        for (let j = i + matrix.diagonal; j < matrix.count; j++) {
          const code = matrix.codes[index(matrix, i, j)];
          if (code) found.push([matrix.share(code), i, j]);
        }
      }
      found.sort((one, other) => one[0] - other[0]);
      by("worst").replaceChildren(...matrix.worst_links.map(([who, value, share]) =>
        make("li", {}, make("span", {}, who), make("span", { class: share < .8 ? "bad" : "" }, figure(value, matrix.unit)))));
      histogram(by("spread"), found);
    }
    function histogram(place, found) {
      const BINS = 44, most = Math.max(TOP, found.length ? found[found.length - 1][0] : TOP), bins = new Array(BINS).fill(0);
      const least = Math.min(.5, found.length ? found[0][0] * .95 : 0);
      for (const [share] of found) bins[Math.max(0, Math.min(BINS - 1, Math.floor((share - least) / (most - least) * BINS)))]++;
      const svg = document.createElementNS(SVG, "svg"), high = Math.max(...bins, 1);
      svg.setAttribute("viewBox", "0 0 440 76"); svg.setAttribute("preserveAspectRatio", "none");
      bins.forEach((count, at) => {
        if (!count) return;
        const bar = document.createElementNS(SVG, "rect"), tall = Math.max(3, 74 * count / high), middle = least + (at + .5) / BINS * (most - least);
        for (const [key, value] of [["x", at * 10 + 1], ["y", 76 - tall], ["width", 8], ["height", tall]]) bar.setAttribute(key, value);
        if (middle < .8) bar.setAttribute("class", "bad");
        svg.append(bar);
      });
      place.replaceChildren(svg, make("p", {}, make("span", {}, least.toFixed(2) + " ×"), make("span", {}, found.length.toLocaleString("en") + (matrix.complete ? "" : " sampled") + (matrix.diagonal ? " links" : " cells")), make("span", {}, most.toFixed(2) + " × median")));
    }
    function choose(at) { matrix = unpacked(data.matrices[at]); cursor = null; aside(); }
    const several = new Set(data.matrices.map((one) => one.check)).size > 1;
    segment(by("matrix"), data.matrices.map((one) => (several ? one.check + " " : "") + one.title), (at) => { choose(at); draw(); });
    for (const button of by("order").querySelectorAll("button")) {
      button.addEventListener("click", () => { press(by("order"), button); order = button.dataset.order; cursor = null; draw(); });
    }
    // Bandwidth of the largest message says most; begin there.
    const first = data.matrices.reduce((best, one, at) => one.better === "higher" ? at : best, 0);
    press(by("matrix"), by("matrix").children[first]);
    choose(first);
    const few = by("order").querySelector("[data-order=few]");
    if (matrix.count > MANY) { few.hidden = false; order = "few"; press(by("order"), few); }
    later(heat, draw);
  }

  // --- curves -----------------------------------------------------------------------------------------------------

  function chart(parent, title, under, bad, draw) {
    const plot = make("div", { class: "plot" });
    parent.append(make("div", { class: "chart" }, make("h3", {}, title), make("p", { class: bad ? "under bad" : "under" }, under), plot));
    later(plot, () => draw(plot));
  }
  function rgba(name, alpha) {
    const text = colour(name).replace("#", ""), number = parseInt(text, 16);
    return "rgba(" + (number >> 16) + "," + ((number >> 8) & 255) + "," + (number & 255) + "," + alpha + ")";
  }

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
    const x = one.points.map((point) => point[0]), traces = [];
    if (one.band.length) {
      const at = one.band.map((point) => point[0]);
      const low = one.band.map((point) => point[2] === null ? point[1] : point[2]), high = one.band.map((point) => point[3] === null ? point[1] : point[3]);
      traces.push({ x: at, y: low, mode: "lines", line: { width: 0 }, hoverinfo: "skip" });
      traces.push({ x: at, y: high, mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: rgba("soft", .22), hoverinfo: "skip" });
      traces.push({ x: at, y: one.band.map((point) => point[1]), mode: "lines", line: { width: 1, dash: "dot", color: colour("soft") }, hoverinfo: "skip" });
    }
    const tone = one.failed ? "bad" : "accent";
    traces.push({
      x: x, y: one.points.map((point) => point[1]), mode: "lines+markers", line: { color: colour(tone), width: 1.8 }, marker: { color: colour(tone), size: 5 },
      error_y: { type: "data", symmetric: false, thickness: 1, width: 0, color: rgba(tone, .6), array: one.points.map((point) => point[3] === null ? 0 : point[3] - point[1]), arrayminus: one.points.map((point) => point[2] === null ? 0 : point[1] - point[2]) },
      text: one.points.map((point) => size(point[0]) + ": " + figure(point[1], one.unit)), hovertemplate: "%{text}<extra></extra>",
    });
    const few = x.filter((_, at) => at % Math.ceil(x.length / 5) === 0);
    const all = one.points.map((point) => point[1]).concat(one.band.map((point) => point[1])).filter((value) => value > 0);
    Plotly.react(plot, traces, layout({
      margin: { l: 62, r: 8, t: 8, b: 24 }, xaxis: axis({ type: "log", tickvals: few, ticktext: few.map(size), showgrid: false }),
      yaxis: axis(powers(all, one.unit)),
    }), quiet);
  }
  function powers(values, unit) { // ticks at 1, 2 and 5, or at whole powers of ten where that would be too many
    const low = Math.min(...values) / 1.3, high = Math.max(...values) * 1.3;
    const between = (steps, jump) => {
      const ticks = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += jump) {
        for (const step of steps) { const tick = step * Math.pow(10, power); if (tick >= low && tick <= high) ticks.push(tick); }
      }
      return ticks;
    };
    const fine = between([1, 2, 5], 1), ticks = fine.length <= 6 ? fine : between([1], Math.ceil(Math.log10(high / low) / 5));
    return { type: "log", range: [Math.log10(low), Math.log10(high)], tickvals: ticks, ticktext: ticks.map((tick) => figure(tick, unit)) };
  }

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
      const words = changed ? (isFinite(earlier) ? figure(earlier, one.unit) + " became " : "") + figure(last, one.unit) + " on " + day(changed[0]) : "as before: " + figure(last, one.unit);
      chart(by("trend-charts"), one.title, words, Boolean(changed), (plot) => nights(plot, one, changed));
    }
  }
  function middle(values) { const sorted = [...values].sort((a, b) => a - b); return sorted.length ? sorted[sorted.length >> 1] : NaN; }
  function day(seconds) { return new Date(seconds * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" }); }
  function nights(plot, one, changed) {
    const when = one.points.map((point) => new Date(point[0] * 1000).toISOString());
    const tone = { PASS: colour("accent"), FAIL: colour("bad"), ERROR: colour("odd"), SKIP: colour("none") };
    const most = Math.max(...one.points.map((point) => point[1])), ticks = round(most);
    Plotly.react(plot, [{
      x: when, y: one.points.map((point) => point[1]), mode: "lines+markers", line: { color: rgba("soft", .55), width: 1.3 },
      marker: { size: 6, color: one.points.map((point) => tone[point[2]]) },
      text: one.points.map((point) => figure(point[1], one.unit) + "<br>" + point[2] + ", " + point[3]), hovertemplate: "%{x|%-d %b %Y}: %{text}<extra></extra>",
    }], layout({
      margin: { l: 62, r: 8, t: 8, b: 24 }, xaxis: axis({ type: "date", showgrid: false, nticks: 5, tickformat: one.points[one.points.length - 1][0] - one.points[0][0] < 3 * 86400 ? "%-d %b %H:%M" : "%-d %b" }), yaxis: axis({ range: [0, most * 1.12], tickvals: ticks, ticktext: ticks.map((tick) => figure(tick, one.unit)) }),
      shapes: changed ? [{ type: "line", x0: new Date(changed[0] * 1000).toISOString(), x1: new Date(changed[0] * 1000).toISOString(), yref: "paper", y0: 0, y1: 1, line: { color: colour("bad"), width: 1.4, dash: "dash" } }] : [],
    }), quiet);
  }
  function round(most) { // 0 and three or four round steps
    const raw = most / 3, power = Math.pow(10, Math.floor(Math.log10(raw))), step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * .99) || raw;
    const ticks = [];
    for (let tick = 0; tick <= most * 1.1; tick += step) ticks.push(tick);
    return ticks;
  }

  // --- nodes ------------------------------------------------------------------------------------------------------

  const SHOWN = 20;
  let wanted = [], every = false;
  const columns = data.nodes.columns.map((one) => {
    const raw = bytes(one.values), values = new Float32Array(raw.buffer);
    const sorted = [...values].filter((value) => isFinite(value)).sort((a, b) => a - b), middle = sorted[sorted.length >> 1];
    return Object.assign({ floats: values, share: (at) => one.better === "higher" ? values[at] / middle : one.better === "lower" ? middle / values[at] : 1 }, one);
  });
  function nodes() {
    const head = make("tr", {}, make("th", {}, "Node"), make("th", {}, "Named by"), make("th", { class: "number" }, "Slots"));
    for (const one of columns) head.append(make("th", { class: "number", title: one.check }, one.title));
    const table = by("node-table");
    table.tHead.replaceChildren(head);
    const hit = data.nodes.order.filter((at) => fits(data.nodes.hosts[at] + " " + (data.nodes.named[at] || []).join(" ")));
    const shown = every ? hit : hit.slice(0, SHOWN);
    table.tBodies[0].replaceChildren(...shown.map((at) => {
      const named = data.nodes.named[at];
      const row = make("tr", { class: named ? "named" : "" }, make("td", {}, data.nodes.hosts[at]), make("td", { class: "named" }, (named || []).join(", ")), make("td", { class: "number" }, String(data.nodes.slots[at] || "")));
      for (const one of columns) row.append(make("td", { class: one.share(at) < .8 ? "number low" : "number" }, figure(one.floats[at], one.unit)));
      return row;
    }));
    by("node-count").textContent = shown.length < hit.length ? shown.length + " of " + hit.length + " nodes, those with something wrong first." : hit.length + (hit.length === 1 ? " node." : " nodes.");
    by("more-nodes").hidden = shown.length === hit.length;
  }
  by("more-nodes").addEventListener("click", () => { every = true; nodes(); });

  // --- filter -----------------------------------------------------------------------------------------------------

  let verdict = "";
  function fits(text) { return wanted.length === 0 || wanted.some((word) => text.toLowerCase().includes(word)); }
  function filter() {
    wanted = by("filter").value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const all = document.querySelectorAll(".check");
    let count = 0;
    for (const one of all) {
      const hit = fits(one.dataset.words) && (!verdict || one.dataset.verdict === verdict);
      one.hidden = !hit;
      count += hit;
    }
    for (const one of document.querySelectorAll(".todo > li")) one.hidden = !fits(one.dataset.words);
    by("check-count").textContent = count === all.length ? "" : count + " of " + all.length + " checks";
    nodes();
  }
  by("filter").addEventListener("input", filter);
  for (const button of by("verdicts").querySelectorAll("button")) {
    button.addEventListener("click", () => { press(by("verdicts"), button); verdict = button.dataset.verdict; filter(); });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !/input|textarea/i.test(event.target.tagName)) { event.preventDefault(); by("filter").focus(); }
    if (event.key === "Escape" && event.target === by("filter")) { by("filter").value = ""; filter(); }
  });
  for (const link of document.querySelectorAll('a[href^="#check-"]')) {
    link.addEventListener("click", () => { const check = by(decodeURIComponent(link.hash.slice(1))); if (check) check.open = true; });
  }
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; } catch (_) {
        getSelection().selectAllChildren(code); // the user copies it then
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }

  nodes();
  if (data.matrices.length) links();
  if (data.sweeps.length) sweeps();
  if (data.trends.length) trends();
  root.dataset.ready = "yes";
})();
