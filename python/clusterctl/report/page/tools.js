// Elements, figures in words, themes, tips, and pictures that are drawn when they come into sight.

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const by = (id) => document.getElementById(id);

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
function shape(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function digits(value) { // three of them, and all of those before the point
  if (!value || !isFinite(value)) return String(value);
  const power = Math.floor(Math.log10(Math.abs(value)));
  return Math.abs(power) > 20 ? value.toExponential(2) : value.toFixed(Math.max(0, 2 - power)); // toFixed has a limit
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
function middle(values) { const sorted = [...values].sort((a, b) => a - b); return sorted.length ? sorted[sorted.length >> 1] : NaN; }
function day(seconds, more) { return new Date(seconds * 1000).toLocaleString("en-GB", Object.assign({ day: "numeric", month: "short", timeZone: "UTC" }, more)); }

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

// --- the tip beside the pointer ------------------------------------------------------------------------------------

const tip = by("tip");
function tell(event, title, ...lines) {
  tip.replaceChildren(make("strong", {}, title), ...lines.filter(Boolean).map((line) => make("div", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), x = event.clientX, y = event.clientY;
  tip.style.left = Math.max(8, Math.min(x + 16, innerWidth - box.width - 12)) + "px";
  tip.style.top = (y + 20 + box.height > innerHeight ? y - box.height - 12 : y + 20) + "px";
}
function hint(element, title, ...lines) { // lines may change under the pointer only with the element
  element.addEventListener("pointerenter", (event) => tell(event, title, ...lines));
  element.addEventListener("pointerleave", () => { tip.hidden = true; });
  return element;
}

// --- light and dark, and pictures that are drawn when they come into sight, or all at once before printing ---------

const drawn = new Map(), waiting = new Map();
function redraw() { for (const [place, draw] of drawn) if (place.isConnected) draw(); else drawn.delete(place); }
const sight = new IntersectionObserver((seen) => {
  for (const one of seen) if (one.isIntersecting) show(one.target);
}, { rootMargin: "400px" });
function show(place) {
  const draw = waiting.get(place);
  if (draw) { waiting.delete(place); sight.unobserve(place); drawn.set(place, draw); draw(); }
}
function later(place, draw) { waiting.set(place, draw); sight.observe(place); }

const wish = window.matchMedia("(prefers-color-scheme: dark)");
let chosen = "";
function paint(theme) { root.dataset.theme = theme; redraw(); }
const now = () => chosen || (wish.matches ? "dark" : "light");
root.dataset.theme = now();
wish.addEventListener("change", () => paint(now()));
by("theme").addEventListener("click", () => { chosen = now() === "dark" ? "light" : "dark"; paint(chosen); });
const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

let wide = innerWidth;
window.addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; requestAnimationFrame(redraw); } });
let before = "";
window.addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  for (const place of [...waiting.keys()]) show(place);
  for (const bad of document.querySelectorAll(".check.FAIL, .check.ERROR, .todo details")) bad.open = true;
  paint("light");
});
window.addEventListener("afterprint", () => paint(before));
