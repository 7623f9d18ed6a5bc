// The stages of the picked model over the map: copies of one stage joined, arrows in order with what crosses the cut.

const SVG = "http://www.w3.org/2000/svg";

function drawnAs(kind, attributes, parent) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent.append(node);
  return node;
}

// The slices of a picture by their stage, in pixels of the picture; what is folded away has none.
function stagesOf(picture, model) {
  const origin = picture.getBoundingClientRect(), found = new Map();
  for (const node of picture.querySelectorAll("svg[data-stage]")) {
    const box = node.getBoundingClientRect();
    if (node.dataset.model !== model || !box.width) continue;
    const stage = Number(node.dataset.stage);
    if (!found.has(stage)) found.set(stage, []);
    found.get(stage).push({ x: box.left - origin.left + box.width / 2, top: box.top - origin.top, bottom: box.bottom - origin.top });
  }
  return [...found].sort(([a], [b]) => a - b);
}

// From a stage to the next: the two copies that are nearest to each other.
function nearest(from, to) {
  let best = null, least = Infinity;
  for (const a of from)
    for (const b of to) {
      const far = Math.hypot(a.x - b.x, a.bottom - b.bottom);
      if (far < least) [best, least] = [[a, b], far];
    }
  return best;
}

// Below the slices, so that no word is struck through: out of the one's lower edge, into the other's nearer edge.
function arrow(layer, [from, to], words) {
  const x = from.x, y = from.bottom, a = to.x, b = to.top > from.bottom ? to.top : to.bottom;
  const sink = b === to.top ? (b - y) / 2 : 22 + Math.max(0, b - y), rise = b === to.top ? -sink : 22 + Math.max(0, y - b);
  const [cx, cy, dx, dy] = [x, y + sink, a, b + rise];
  const wing = (side) => `${a + side * 5} ${b + (rise > 0 ? 9 : -9)}`;
  drawnAs("path", { class: "way", d: `M${x} ${y}C${cx} ${cy} ${dx} ${dy} ${a} ${b}` }, layer);
  drawnAs("path", { class: "tip", d: `M${a} ${b}L${wing(1)}L${wing(-1)}Z` }, layer);
  if (!words) return;
  const middle = (p, q, r, s) => (p + 3 * q + 3 * r + s) / 8;
  const text = drawnAs("text", { class: "rate", x: middle(x, cx, dx, a), y: middle(y, cy, dy, b) + 12 }, layer);
  text.textContent = words;
}

function drawArrows(picture, model) {
  picture.querySelector(":scope > svg.arrows")?.remove();
  const flow = model === undefined ? null : picture.querySelector(`figure.flow[data-flow="${CSS.escape(model)}"]`);
  if (!flow) return;
  const stages = stagesOf(picture, model), rates = flow.dataset.rates.split("|");
  const layer = drawnAs("svg", { class: "arrows", "aria-hidden": "true" }, picture);
  for (const [, copies] of stages)
    for (const [at, copy] of copies.slice(1).entries())
      drawnAs("path", { class: "joined", d: `M${copies[at].x} ${copies[at].bottom}L${copy.x} ${copy.bottom}` }, layer);
  stages.slice(1).forEach(([stage, copies], at) => {
    // A stage that is folded away leaves a gap, not an arrow past it.
    if (stages[at][0] === stage - 1) arrow(layer, nearest(stages[at][1], copies), rates[stage - 2]);
  });
}
