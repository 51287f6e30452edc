// The table of nodes, the filter, and the start of every picture.

// --- nodes ------------------------------------------------------------------------------------------------------

const SHOWN = 20;
let wanted = [], every = false;
const columns = data.nodes.columns.map((one) => {
  const raw = bytes(one.values), values = new Float32Array(raw.buffer);
  const sorted = [...values].filter((value) => isFinite(value)).sort((a, b) => a - b), middle = sorted[sorted.length >> 1];
  return Object.assign({ floats: values, share: (at) => one.better === "higher" ? values[at] / middle : one.better === "lower" ? middle / values[at] : 1 }, one);
});
function nodes() {
  const anyNamed = Object.keys(data.nodes.named).length > 0, anySlots = data.nodes.slots.some(Boolean); // no empty column
  const head = make("tr", {}, make("th", {}, "Node"), ...(anyNamed ? [make("th", {}, "Named by")] : []), ...(anySlots ? [make("th", { class: "number" }, "Slots")] : []));
  for (const one of columns) head.append(make("th", { class: "number", title: one.check }, one.title));
  const table = by("node-table");
  table.tHead.replaceChildren(head);
  const hit = data.nodes.order.filter((at) => fits(data.nodes.hosts[at] + " " + (data.nodes.named[at] || []).join(" ")));
  const shown = every ? hit : hit.slice(0, SHOWN);
  table.tBodies[0].replaceChildren(...shown.map((at) => {
    const named = data.nodes.named[at];
    const row = make("tr", { class: named ? "named" : "" }, make("td", {}, data.nodes.hosts[at]));
    if (anyNamed) row.append(make("td", { class: "named" }, (named || []).join(", ")));
    if (anySlots) row.append(make("td", { class: "number" }, String(data.nodes.slots[at] || "")));
    for (const one of columns) row.append(make("td", { class: named && one.share(at) < .8 ? "number low" : "number" }, figure(one.floats[at], one.unit)));
    return row;
  }));
  by("node-count").textContent = shown.length < hit.length ? shown.length + " of " + hit.length + " nodes" + (anyNamed ? ", those that a check names first." : ".") : hit.length + (hit.length === 1 ? " node." : " nodes.");
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
