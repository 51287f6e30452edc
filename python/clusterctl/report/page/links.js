// The heat map of links on a canvas, its colours, its figures under the pointer, and the lists beside it.

// From nothing to the median. Slow is strong and fast is pale. Red is for what a check names, slate for all others.
const RAMPS = {
  light: {
    named: [[0, "#6f150c"], [.3, "#b93a26"], [.6, "#e58a4c"], [.8, "#f0b983"], [1, "#f3d6b8"]],
    other: [[0, "#2f4858"], [.3, "#5b7789"], [.6, "#8ea5b2"], [.8, "#b3c3cb"], [1, "#cdd8dc"]],
  },
  dark: {
    named: [[0, "#ffab96"], [.3, "#f0705a"], [.6, "#b4552f"], [.8, "#70452c"], [1, "#3a2b21"]],
    other: [[0, "#b5cfe0"], [.3, "#7f9eb2"], [.6, "#4f687a"], [.8, "#32434f"], [1, "#222d35"]],
  },
};
const STEPS = 250; // of a ramp
const FEW = 40, MANY = 128; // nodes from which on a picture of the worst comes first
const GAPS = 48; // nodes up to which cells stand apart

function table(stops) { // the colour of each step, as red, green, blue
  const part = (text, at) => parseInt(text.slice(1 + 2 * at, 3 + 2 * at), 16);
  return Array.from({ length: STEPS + 1 }, (_, step) => {
    const share = step / STEPS, upper = Math.max(1, stops.findIndex(([at]) => at >= share));
    const [[low, from], [high, to]] = [stops[upper - 1], stops[upper]], way = (share - low) / (high - low);
    return [0, 1, 2].map((at) => Math.round(part(from, at) + way * (part(to, at) - part(from, at))));
  });
}
function step(share) { return Math.round(Math.max(0, Math.min(1, share)) * STEPS); }

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
  matrix.namedNodes = new Set(matrix.named.nodes);
  matrix.namedPairs = new Set(matrix.named.pairs.map(([one, other]) => one * 65536 + other));
  matrix.directions = new Map(matrix.ways.map(([one, other, there, back]) => [one * 65536 + other, [there, back]]));
  matrix.ready = true;
  return matrix;
}
function index(matrix, i, j) { // in the upper triangle, row by row
  if (i > j) [i, j] = [j, i];
  return i * matrix.count - (i * (i - 1)) / 2 - (matrix.diagonal ? i : 0) + j - i - matrix.diagonal;
}
function worstEnds(matrix, at) { // of a cell that stands for many links, in the order of the inventory
  return [0, 2].map((offset) => matrix.who[4 * at + offset] | (matrix.who[4 * at + offset + 1] << 8));
}
function isNamed(matrix, i, j) { // whether a check names the link or one of its ends
  if (matrix.who) {
    const ends = worstEnds(matrix, index(matrix, i, j));
    return ends.some((end) => matrix.namedNodes.has(end)) || matrix.namedPairs.has(ends[0] * 65536 + ends[1]);
  }
  return matrix.namedNodes.has(i) || matrix.namedNodes.has(j) || matrix.namedPairs.has(Math.min(i, j) * 65536 + Math.max(i, j));
}
function about(matrix, i, j) {
  const at = index(matrix, i, j), value = matrix.value(matrix.codes[at]);
  if (matrix.diagonal && i === j) return null;
  const said = { who: matrix.nodes[i] + (i === j ? ", among themselves" : " ↔ " + matrix.nodes[j]), value: "not measured", more: "" };
  if (!isFinite(value)) return said;
  said.value = figure(value, matrix.unit);
  said.more = (value / matrix.median).toFixed(2) + " × the median of " + figure(matrix.median, matrix.unit);
  const code = matrix.spreadCodes && matrix.spreadCodes[at];
  if (code) said.value += " ± " + figure(value * Math.pow(10, (code - 255) / 254 * 5), matrix.unit);
  const ways = matrix.directions.get(Math.min(i, j) * 65536 + Math.max(i, j));
  if (ways) {
    const [from, to] = [Math.min(i, j), Math.max(i, j)].map((at) => matrix.nodes[at]);
    said.more += "; " + from + " → " + to + ": " + figure(ways[0], matrix.unit) + ", " + to + " → " + from + ": " + figure(ways[1], matrix.unit);
  }
  if (matrix.who) said.more += "; the worst link there is " + worstEnds(matrix, at).map((end) => data.nodes.hosts[end]).join(" ↔ ");
  return said;
}

function links() {
  const heat = by("heat"), readout = by("readout"), canvas = heat.querySelector("canvas");
  const frame = heat.querySelector(".cell"), area = heat.querySelector(".area");
  let matrix = null, order = "worst", rows = [], cursor = null, view = null, grid = null;

  function read(y, x) {
    const said = about(matrix, rows[y], rows[x]);
    if (!said) return null;
    readout.replaceChildren(make("p", { class: "who" }, said.who), make("p", { class: "value" }, said.value), make("p", {}, said.more));
    return said;
  }
  function arrange() {
    rows = order === "name" ? matrix.nodes.map((_, at) => at) : order === "few" ? matrix.order.slice(0, FEW) : matrix.order;
    view = { left: 0, top: 0, across: rows.length, down: rows.length };
    cursor = null;
    draw();
  }
  function draw() {
    frame.hidden = area.hidden = true;
    heat.style.maxWidth = 180 + 62 * rows.length + "px"; // a few nodes need no whole page
    const pen = canvas.getContext("2d"), scale = Math.max(2, devicePixelRatio || 1), room = heat.clientWidth || 600;
    const words = getComputedStyle(document.body).fontFamily, font = (bold) => (bold ? "650 " : "") + "11.5px " + words;
    pen.font = font(true);
    const long = Math.min(room * .3, 10 + Math.max(...rows.map((at) => pen.measureText(matrix.nodes[at]).width)));
    const cell = Math.min((room - long - 2) / view.across, 760 / view.down), flat = cell > long;
    const high = flat ? 20 : long;
    grid = { cell: cell, left: long, top: high, across: view.across * cell, down: view.down * cell };
    const [full, tall] = [long + grid.across + 2, high + grid.down + 2];
    canvas.width = full * scale; canvas.height = tall * scale;
    canvas.style.width = full + "px"; canvas.style.height = tall + "px";
    pen.scale(scale, scale);
    cells(pen, scale);
    labels(pen, font, flat);
    legend();
    heat.picture = { grid: grid, rows: rows.map((at) => matrix.nodes[at]), view: view };
  }
  function cells(pen, scale) {
    // A cell below one pixel would vanish by chance; the worst of those that share a pixel is shown.
    const wide = Math.min(view.across, Math.floor(grid.across * scale)), high = Math.min(view.down, Math.floor(grid.down * scale));
    const level = new Int16Array(wide * high).fill(-1);
    for (let y = 0; y < view.down; y++) {
      const i = rows[view.top + y], line = Math.floor(y * high / view.down) * wide;
      for (let x = 0; x < view.across; x++) {
        const j = rows[view.left + x];
        if (i === j && matrix.diagonal) continue;
        const code = matrix.codes[index(matrix, i, j)];
        if (!code) continue;
        const bad = STEPS - step(matrix.share(code)), at = line + Math.floor(x * wide / view.across);
        level[at] = Math.max(level[at], bad + (isNamed(matrix, i, j) ? 1000 : 0));
      }
    }
    const ramps = RAMPS[root.dataset.theme], other = table(ramps.other), named = table(ramps.named);
    const paint = (value) => (value >= 1000 ? named[STEPS - value + 1000] : other[STEPS - value]);
    if (rows.length <= GAPS && wide === view.across) {
      const gap = Math.min(1.5, grid.cell / 8);
      level.forEach((value, at) => {
        if (value < 0) return;
        pen.fillStyle = "rgb(" + paint(value).join(",") + ")";
        pen.fillRect(grid.left + (at % wide) * grid.cell, grid.top + Math.floor(at / wide) * grid.cell, grid.cell - gap, grid.cell - gap);
      });
      return;
    }
    const small = make("canvas", { width: wide, height: high }), image = new ImageData(wide, high);
    level.forEach((value, at) => { if (value >= 0) image.data.set([...paint(value), 255], 4 * at); });
    small.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, grid.left, grid.top, grid.across, grid.down);
  }
  function labels(pen, font, flat) {
    const red = colour("bad"), soft = colour("soft"), hot = (at) => matrix.named.rows.includes(at);
    const chosen = (start, count) => { // what a check names comes first, then as many as there is room for
      const taken = [], all = Array.from({ length: count }, (_, number) => number);
      for (const number of [...all.filter((each) => hot(rows[start + each])), ...all]) {
        if (grid.cell > 13 ? !taken.includes(number) : taken.every((other) => Math.abs(other - number) * grid.cell >= 12.5)) taken.push(number);
      }
      return taken;
    };
    const write = (at, x, y, turned) => {
      pen.save();
      pen.translate(x, y);
      if (turned) pen.rotate(-Math.PI / 2);
      pen.font = font(hot(at)); pen.fillStyle = hot(at) ? red : soft; pen.textBaseline = "middle";
      pen.textAlign = turned ? "left" : flat && y < grid.top ? "center" : "right";
      pen.fillText(matrix.nodes[at], 0, 0, grid.left - 8);
      pen.restore();
    };
    for (const y of chosen(view.top, view.down)) write(rows[view.top + y], grid.left - 6, grid.top + (y + .5) * grid.cell, false);
    for (const x of chosen(view.left, view.across)) write(rows[view.left + x], grid.left + (x + .5) * grid.cell, grid.top - (flat ? 9 : 5), !flat);
  }

  // Pointer, zoom and keys.
  function under(event) {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left - grid.left) / grid.cell), y = Math.floor((event.clientY - box.top - grid.top) / grid.cell);
    return x < 0 || y < 0 || x >= view.across || y >= view.down ? null : [view.top + y, view.left + x];
  }
  function surround(element, y, x, down, across) {
    element.hidden = false;
    Object.assign(element.style, {
      left: grid.left + (x - view.left) * grid.cell + "px", top: grid.top + (y - view.top) * grid.cell + "px",
      width: across * grid.cell + "px", height: down * grid.cell + "px",
    });
  }
  let began = null;
  const span = (a, b) => [Math.min(a, b), Math.abs(a - b) + 1];
  function point(event) {
    const at = grid && under(event), said = at && read(...at);
    frame.hidden = tip.hidden = true;
    if (began && at) {
      const [[top, down], [left, across]] = [span(began[0], at[0]), span(began[1], at[1])];
      surround(area, top, left, down, across);
    } else if (said) {
      surround(frame, at[0], at[1], 1, 1);
      tell(event, said.who, said.value, said.more);
    }
  }
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", (event) => { // a finger points and does not zoom
    if (event.pointerType !== "mouse") point(event); else if (!event.button) began = under(event);
  });
  window.addEventListener("pointerup", (event) => {
    const at = began && grid && under(event);
    area.hidden = true;
    if (at && (at[0] !== began[0] || at[1] !== began[1])) {
      const [[top, down], [left, across]] = [span(began[0], at[0]), span(began[1], at[1])];
      view = { left: left, top: top, across: across, down: down };
      cursor = null;
      draw();
    }
    began = null;
  });
  canvas.addEventListener("dblclick", arrange);
  canvas.addEventListener("pointerleave", () => { tip.hidden = frame.hidden = true; });
  heat.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return arrange();
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!way) return;
    event.preventDefault();
    const keep = (at, low, count) => Math.max(low, Math.min(low + count - 1, at));
    const move = (from) => [keep(from[0] + way[0], view.top, view.down), keep(from[1] + way[1], view.left, view.across)];
    cursor = cursor ? move(cursor) : [view.top, view.left + 1];
    if (matrix.diagonal && cursor[0] === cursor[1]) cursor = move(cursor);
    read(...cursor);
    surround(frame, cursor[0], cursor[1], 1, 1);
  });

  // Beside the picture: the legend, how the links are spread, the worst of them.
  function aside() {
    const found = [];
    for (let i = 0; i < matrix.count; i++) {
      for (let j = i + matrix.diagonal; j < matrix.count; j++) {
        const code = matrix.codes[index(matrix, i, j)];
        if (code) found.push([matrix.share(code), isNamed(matrix, i, j)]);
      }
    }
    by("worst").replaceChildren(...matrix.worst_links.map(([who, value, , named]) =>
      make("li", {}, make("span", {}, who), make("span", { class: named ? "bad" : "" }, figure(value, matrix.unit)))));
    histogram(by("spread"), found);
  }
  function legend() {
    const anything = matrix.namedNodes.size + matrix.namedPairs.size > 0;
    by("ramps").replaceChildren(...(anything ? ["named", "other"] : ["other"]).map((kind) =>
      make("div", { class: "ramp", style: "background: linear-gradient(90deg, " + RAMPS[root.dataset.theme][kind].map(([at, tone]) => tone + " " + 100 * at + "%").join(", ") + ")" })));
    by("ramp-words").textContent = anything ? "Red: what the check names. Slate: all others." : "The stronger the colour, the slower. Red is kept for what a check names.";
  }
  function histogram(place, found) {
    const BINS = 44, shares = found.map(([share]) => share);
    const most = Math.min(4, shares.reduce((a, b) => Math.max(a, b), 1.25)), least = Math.min(.5, shares.reduce((a, b) => Math.min(a, b), 1) * .95);
    const counts = Array.from({ length: BINS }, () => [0, 0]);
    for (const [share, named] of found) counts[Math.max(0, Math.min(BINS - 1, Math.floor((share - least) / (most - least) * BINS)))][named ? 1 : 0]++;
    const high = Math.max(1, ...counts.map(([other, named]) => other + named)), svg = shape("svg", { viewBox: "0 0 440 76", preserveAspectRatio: "none" });
    counts.forEach(([other, named], at) => {
      let foot = 76;
      for (const [count, name] of [[named, "bad"], [other, ""]]) {
        if (!count) continue;
        const tall = Math.max(3, 74 * count / high);
        foot -= tall;
        const from = least + at / BINS * (most - least), to = from + (most - least) / BINS;
        svg.append(hint(shape("rect", { x: at * 10 + 1, y: foot, width: 8, height: tall, class: name }), count.toLocaleString("en") + (matrix.diagonal ? " links" : " cells"), from.toFixed(2) + " to " + to.toFixed(2) + " × the median"));
      }
    });
    place.replaceChildren(svg, make("p", {}, make("span", {}, least.toFixed(2) + " ×"), make("span", {}, found.length.toLocaleString("en") + (matrix.complete ? "" : " sampled") + (matrix.diagonal ? " links" : " cells")), make("span", {}, most.toFixed(2) + " × median")));
  }
  function choose(at) { matrix = unpacked(data.matrices[at]); aside(); }
  const several = new Set(data.matrices.map((one) => one.check)).size > 1;
  segment(by("matrix"), data.matrices.map((one) => (several ? one.check + " " : "") + one.title), (at) => { choose(at); arrange(); });
  for (const button of by("order").querySelectorAll("button")) {
    button.addEventListener("click", () => { press(by("order"), button); order = button.dataset.order; arrange(); });
  }
  press(by("matrix"), by("matrix").children[data.first]);
  choose(data.first);
  const few = by("order").querySelector("[data-order=few]");
  if (matrix.count > MANY) { few.hidden = false; order = "few"; press(by("order"), few); }
  later(heat, () => (view ? draw() : arrange()));
}
