// The stages of the picked model over the map: copies of one stage joined, arrows in order with what crosses the cut.

const SVG = "http://www.w3.org/2000/svg";

function drawnAs(kind, attributes, parent) {
  const node = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent.append(node);
  return node;
}

// The middles of a picture's slices by their stage, in pixels of the picture; what is folded away has none.
function stagesOf(picture, model) {
  const origin = picture.getBoundingClientRect(), found = new Map();
  for (const node of picture.querySelectorAll("svg[data-stage]")) {
    const box = node.getBoundingClientRect();
    if (node.dataset.model !== model || !box.width) continue;
    const stage = Number(node.dataset.stage);
    if (!found.has(stage)) found.set(stage, []);
    found.get(stage).push([box.left - origin.left + box.width / 2, box.top - origin.top + box.height / 2]);
  }
  return [...found].sort(([a], [b]) => a - b);
}

// From a stage to the next: the two copies that are nearest to each other.
function nearest(from, to) {
  let best = null, least = Infinity;
  for (const a of from)
    for (const b of to) {
      const far = Math.hypot(a[0] - b[0], a[1] - b[1]);
      if (far < least) [best, least] = [[a, b], far];
    }
  return best;
}

function arrow(layer, [[x, y], [a, b]], words) {
  const far = Math.hypot(a - x, b - y) || 1, bend = Math.min(26, far / 4);
  // Bent to one side, so that a way back is no line over the way there.
  const [mx, my] = [(x + a) / 2 - ((b - y) / far) * bend, (y + b) / 2 + ((a - x) / far) * bend - 8];
  const back = Math.atan2(b - my, a - mx), wing = (turn) => `${a - 11 * Math.cos(back + turn)} ${b - 11 * Math.sin(back + turn)}`;
  drawnAs("path", { class: "way", d: `M${x} ${y}Q${mx} ${my} ${a} ${b}` }, layer);
  drawnAs("path", { class: "tip", d: `M${a} ${b}L${wing(0.45)}L${wing(-0.45)}Z` }, layer);
  if (!words) return;
  const text = drawnAs("text", { class: "rate", x: (x + a + 2 * mx) / 4, y: (y + b + 2 * my) / 4 - 5 }, layer);
  text.textContent = words;
}

function drawArrows(picture, model) {
  picture.querySelector(":scope > svg.arrows")?.remove();
  const flow = model === undefined ? null : picture.querySelector(`figure.flow[data-flow="${CSS.escape(model)}"]`);
  if (!flow) return;
  const stages = stagesOf(picture, model), rates = flow.dataset.rates.split("|");
  const layer = drawnAs("svg", { class: "arrows", "aria-hidden": "true" }, picture);
  for (const [, copies] of stages)
    for (const copy of copies.slice(1))
      drawnAs("path", { class: "joined", d: `M${copies[0]}L${copy}` }, layer);
  stages.slice(1).forEach(([stage, copies], at) => {
    // A stage that is folded away leaves a gap, not an arrow past it.
    if (stages[at][0] === stage - 1) arrow(layer, nearest(stages[at][1], copies), rates[stage - 2]);
  });
}
