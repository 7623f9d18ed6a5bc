// The scene on a canvas: colours of the theme, drawing, what lies under a point.

const SMALLEST_TEXT = 0.42;

function themeOf(host) {
  const style = getComputedStyle(host.querySelector(".explorer"));
  const value = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const text = value("--st-text-color", "#1b1f24");
  return {
    ground: value("--st-background-color", "#fbfbf9"),
    frame: value("--st-secondary-background-color", "#f1f1ee"),
    text,
    accent: value("--st-link-color", "#0b5f58"),
    font: value("--st-font", "sans-serif"),
    mark: "#e2a11c",
  };
}

// One ramp, pale to full, as in app/explorer/overlays.py.
const HEAT = "#3f66cc", PALEST_HEAT = 10, FULL_HEAT = 55;

function heat(share) {
  return mixed(HEAT, PALEST_HEAT + (FULL_HEAT - PALEST_HEAT) * share);
}

function mixed(colour, share) {
  return `color-mix(in srgb, ${colour} ${share}%, transparent)`;
}

// Curves are vertical at every point and straight where two points are above each other.
function trace(path, points) {
  path.moveTo(points[0], points[1]);
  for (let i = 2; i < points.length; i += 2) {
    const [x, y, a, b] = [points[i - 2], points[i - 1], points[i], points[i + 1]];
    if (Math.abs(a - x) < 0.05) path.lineTo(a, b);
    else path.bezierCurveTo(x, (y + b) / 2, a, (y + b) / 2, a, b);
  }
}

function arrowHead(path, points) {
  const x = points[points.length - 2], y = points[points.length - 1];
  const back = points.length < 4 || points[points.length - 3] <= y ? -6 : 6;
  path.moveTo(x, y);
  path.lineTo(x - 3.5, y + back);
  path.lineTo(x + 3.5, y + back);
  path.closePath();
}

// Lines by the items they join, made when the first item is selected.
function touching(scene, item) {
  if (!scene.joined) {
    scene.joined = new Map();
    scene.lines.forEach(([source, , targets], at) => {
      for (const one of [source, ...targets]) {
        if (!scene.joined.has(one)) scene.joined.set(one, []);
        scene.joined.get(one).push(at);
      }
    });
  }
  return scene.joined.get(item) || [];
}

// All lines without their bends, made when they are first seen from afar.
function farLines(scene) {
  if (!scene.far) {
    scene.far = new Path2D();
    for (const [, , , points] of scene.lines) {
      scene.far.moveTo(points[0], points[1]);
      for (let i = 2; i < points.length; i += 2) scene.far.lineTo(points[i], points[i + 1]);
    }
  }
  return scene.far;
}

// The lines that pass the heights seen, with their bends, and their arrows.
function nearLines(scene, look, height) {
  const lines = new Path2D(), heads = new Path2D();
  const top = look.y, bottom = top + height / look.scale;
  for (const [, arrow, , points] of scene.lines) {
    const start = points[1], end = points[points.length - 1];
    if (Math.max(start, end) < top || Math.min(start, end) > bottom) continue;
    trace(lines, points);
    if (arrow) arrowHead(heads, points);
  }
  return [lines, heads];
}

function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(text.slice(0, middle) + "…").width <= room) low = middle;
    else high = middle - 1;
  }
  return low ? text.slice(0, low) + "…" : "";
}

// `look`: {scale, x, y} with x, y the scene's point at the canvas's top left; `marks` what stands out.
function drawScene(context, width, height, look, scene, theme, overlay, marks) {
  const { scale } = look;
  context.save();
  context.fillStyle = theme.ground;
  context.fillRect(0, 0, width, height);
  context.scale(scale, scale);
  context.translate(-look.x, -look.y);
  const seen = visible(scene, look, width, height);
  drawBoxes(context, scene, seen, theme, overlay, marks, scale);
  context.lineWidth = Math.max(1, 0.6 / scale);
  context.strokeStyle = mixed(theme.text, marks.dim ? 25 : 45);
  context.fillStyle = context.strokeStyle;
  // From afar a bend is no wider than a pixel; from further away a line is no longer than one.
  if (scale > 0.15) {
    const [lines, heads] = nearLines(scene, look, height);
    context.stroke(lines);
    if (scale > 0.25) context.fill(heads);
  } else if (scale > 0.02) context.stroke(farLines(scene));
  drawTouching(context, scene, theme, marks, scale);
  if (scale > SMALLEST_TEXT) drawTexts(context, scene, seen, theme, marks);
  drawMarks(context, scene, theme, marks, scale);
  context.restore();
}

function visible(scene, look, width, height) {
  const left = look.x, top = look.y, right = left + width / look.scale, bottom = top + height / look.scale;
  const { box, id } = scene.items, found = [];
  for (let i = 0; i < id.length; i++) {
    const at = 4 * i;
    if (box[at] < right && box[at] + box[at + 2] > left && box[at + 1] < bottom && box[at + 1] + box[at + 3] > top)
      found.push(i);
  }
  return found;
}

// Boxes of one look are one path: ten thousand paths of their own would take a second.
function boxes(items, which, round) {
  const path = new Path2D();
  const { box } = items;
  for (const i of which) {
    const at = 4 * i;
    if (round) path.roundRect(box[at], box[at + 1], box[at + 2], box[at + 3], 5);
    else path.rect(box[at], box[at + 1], box[at + 2], box[at + 3]);
  }
  return path;
}

function drawBoxes(context, scene, seen, theme, overlay, marks, scale) {
  const { items } = scene;
  const round = scale > 0.3;
  context.lineWidth = Math.max(1, 0.5 / scale);
  const edge = mixed(theme.text, 24), ground = mixed(theme.text, 4);
  // Frames lie in each other, so each is its own.
  for (const i of seen.filter((i) => items.open[i])) {
    const frame = boxes(items, [i], round);
    context.fillStyle = ground;
    context.fill(frame);
    context.strokeStyle = edge;
    context.stroke(frame);
  }
  const closed = seen.filter((i) => !items.open[i]);
  const all = boxes(items, closed, round);
  context.fillStyle = theme.frame;
  context.fill(all);
  if (marks.region) {
    context.fillStyle = mixed(theme.accent, 16);
    context.fill(boxes(items, closed.filter((i) => marks.region.has(i)), round));
  }
  drawOverlay(context, items, closed, overlay, theme, round);
  context.strokeStyle = edge;
  if (scale > 0.05) context.stroke(all);
  const ends = closed.filter((i) => items.kind[i] === "input" || items.kind[i] === "output");
  context.strokeStyle = mixed(theme.text, 60);
  context.stroke(boxes(items, ends, round));
  // A second edge: more of the same lies behind.
  context.beginPath();
  for (const i of closed) {
    if (items.repeats[i] < 2) continue;
    const right = items.box[4 * i] + items.box[4 * i + 2], bottom = items.box[4 * i + 1] + items.box[4 * i + 3];
    context.moveTo(items.box[4 * i] + 5, bottom + 3);
    context.lineTo(right, bottom + 3);
    context.lineTo(right + 3, bottom);
    context.lineTo(right + 3, items.box[4 * i + 1] + 5);
  }
  context.stroke();
  context.setLineDash([4, 3]);
  context.strokeStyle = mixed(theme.text, 45);
  context.beginPath();
  for (const [, , x, y, w, h] of scene.stubs) context.rect(x, y, w, h);
  context.stroke();
  context.setLineDash([]);
}

function drawOverlay(context, items, closed, overlay, theme, round) {
  if (!overlay) return;
  const fill = (i, from, share, colour) => {
    const [x, y, w, h] = items.box.slice(4 * i, 4 * i + 4);
    context.fillStyle = colour;
    context.beginPath();
    const left = round && from === 0 ? 5 : 0, right = round && from + share > 0.999 ? 5 : 0;
    context.roundRect(x + w * from, y, Math.max(w * share, 1.5), h, [left, right, right, left]);
    context.fill();
  };
  for (const i of closed) {
    const value = overlay.values[i];
    if (!value) continue;
    if (overlay.kind === "bar") fill(i, 0, value, heat(value));
    else {
      let from = 0;
      for (const [category, share] of value) {
        fill(i, from, share, mixed(overlay.colours[category], 42));
        from += share;
      }
    }
  }
}

function drawTouching(context, scene, theme, marks, scale) {
  const lines = marks.item === null ? [] : touching(scene, marks.item);
  if (!lines.length) return;
  const path = new Path2D(), heads = new Path2D();
  for (const at of lines) {
    trace(path, scene.lines[at][3]);
    if (scene.lines[at][1]) arrowHead(heads, scene.lines[at][3]);
  }
  context.lineWidth = Math.max(1.8, 1.4 / scale);
  context.strokeStyle = context.fillStyle = theme.accent;
  context.stroke(path);
  context.fill(heads);
}

function drawTexts(context, scene, seen, theme, marks) {
  const { box, open, label, note, expandable } = scene.items;
  context.textBaseline = "alphabetic";
  for (const i of seen) {
    const x = box[4 * i] + 10, y = box[4 * i + 1], h = box[4 * i + 3], room = box[4 * i + 2] - 18;
    const dim = marks.dim && !marks.found.has(i);
    context.fillStyle = dim ? mixed(theme.text, 60) : theme.text;
    context.font = `600 13px ${theme.font}`;
    const lower = open[i] || note[i] ? 18 : h / 2 + 4.5;
    const sign = expandable[i] ? (open[i] ? "▾ " : "▸ ") : "";
    context.fillText(cut(context, sign + label[i], room), x, y + lower);
    if (note[i] && !open[i]) {
      context.font = `11px ${theme.font}`;
      context.fillStyle = mixed(theme.text, 78);
      context.fillText(cut(context, note[i], room), x, y + 33);
    }
  }
  context.font = `11px ${theme.font}`;
  context.fillStyle = mixed(theme.text, 85);
  for (const [source, , x, y, w] of scene.stubs)
    context.fillText(cut(context, `${label[source]} ↲`, w - 12), x + 6, y + 13);
}

function drawMarks(context, scene, theme, marks, scale) {
  const { box } = scene.items;
  const ring = (i, colour, width, grow) => {
    context.beginPath();
    context.roundRect(box[4 * i] - grow, box[4 * i + 1] - grow, box[4 * i + 2] + 2 * grow, box[4 * i + 3] + 2 * grow, 6);
    context.strokeStyle = colour;
    context.lineWidth = width / Math.min(1, scale * 1.2);
    context.stroke();
  };
  for (const i of marks.found) ring(i, theme.mark, 1.6, 2);
  if (marks.item !== null) ring(marks.item, theme.accent, 2.4, 1);
}

// The innermost item (or the reader's stub, as its source) under a point of the scene.
function itemAt(scene, x, y) {
  for (const [source, , left, top, w, h] of scene.stubs)
    if (x >= left && x <= left + w && y >= top && y <= top + h) return source;
  const { box, id } = scene.items;
  for (let i = id.length - 1; i >= 0; i--)
    if (x >= box[4 * i] && x <= box[4 * i] + box[4 * i + 2] && y >= box[4 * i + 1] && y <= box[4 * i + 1] + box[4 * i + 3])
      return i;
  return null;
}
