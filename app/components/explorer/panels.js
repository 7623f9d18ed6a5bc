// The two panels beside the scene: regions as an icicle, a dominator tree as an outline.

const ROW = 22;

function drawIcicle(context, width, height, data, theme, marks) {
  context.fillStyle = theme.ground;
  context.fillRect(0, 0, width, height);
  const { depth, low, high, label } = data.regions;
  for (let i = 0; i < depth.length; i++) {
    const [x, wide] = column(depth, depth[i], width), y = low[i] * height, h = (high[i] - low[i]) * height;
    if (wide <= 0) continue;
    if (h < 0.4) continue;
    const chosen = marks.patch === i, holds = marks.patches.has(i);
    context.fillStyle = mixed(theme.accent, chosen ? 75 : holds ? 48 : 26 - depth[i]);
    context.fillRect(x + 1, y + 0.5, wide - 2, Math.max(h - 1, 0.6));
    if (h < 13 || depth[i] === 0) continue;
    context.font = `${chosen ? 600 : 400} 11px ${theme.font}`;
    context.fillStyle = chosen ? theme.ground : theme.text;
    context.fillText(cut(context, label[i], wide - 10), x + 5, y + 12);
  }
}

// Left edge and width of a column; the first, the whole model, is a mere bar.
function column(depth, at, width) {
  const columns = Math.min(depth.reduce((most, one) => Math.max(most, one), 0), 9), first = columns ? 14 : width;
  if (at === 0) return [0, first];
  const wide = (width - first) / columns;
  return at > columns ? [0, 0] : [first + (at - 1) * wide, wide];
}

// The deepest region that holds a place of the order; -1 where none does.
function patchAt(data, place) {
  const { first, count, depth } = data.regions;
  let best = -1;
  for (let i = 0; i < first.length; i++)
    if (place >= first[i] && place < first[i] + count[i] && (best < 0 || depth[i] > depth[best])) best = i;
  return best;
}

function patchUnder(data, width, height, x, y) {
  const { depth, low, high } = data.regions;
  for (let i = 0; i < depth.length; i++) {
    const [left, wide] = column(depth, depth[i], width);
    if (x >= left && x < left + wide && y >= low[i] * height && y < high[i] * height) return i;
  }
  return null;
}

// Rows of a tree that are not inside a folded one, and for each whether it has rows inside.
function openRows(tree, unfolded) {
  const shown = [];
  const { indent } = tree;
  let hidden = Infinity;
  for (let r = 0; r < indent.length; r++) {
    if (indent[r] > hidden) continue;
    hidden = Infinity;
    shown.push(r);
    const inner = r + 1 < indent.length && indent[r + 1] > indent[r];
    if (inner && !unfolded.has(r)) hidden = indent[r];
  }
  return shown;
}

function unfoldTo(tree, row, unfolded) {
  let level = tree.indent[row];
  for (let r = row - 1; r >= 0 && level > 0; r--)
    if (tree.indent[r] < level) {
      unfolded.add(r);
      level = tree.indent[r];
    }
}

function drawRows(me) {
  const { tree, data, host } = me;
  const room = host.querySelector(".room"), list = host.querySelector(".rows");
  const rows = data.trees[tree];
  if (!rows.node.length) {
    room.textContent = "Too large for an outline here: the Tables tab has the dominators of every node.";
    return;
  }
  const shown = (me.shownRows = openRows(rows, me.unfolded[tree]));
  room.style.height = `${shown.length * ROW}px`;
  const from = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
  const to = Math.min(shown.length, from + Math.ceil(list.clientHeight / ROW) + 10);
  const pieces = [];
  for (let at = from; at < to; at++) pieces.push(rowElement(me, rows, shown[at], at));
  room.replaceChildren(...pieces);
  list.setAttribute("aria-label", tree === "dominators" ? "Dominator tree" : "Post-dominator tree");
}

function rowElement(me, rows, r, at) {
  const { data, marks } = me;
  const node = rows.node[r], inner = r + 1 < rows.indent.length && rows.indent[r + 1] > rows.indent[r];
  const row = document.createElement("div");
  row.className = "row";
  row.id = `row-${at}`;
  row.setAttribute("role", "treeitem");
  row.setAttribute("aria-level", rows.indent[r] + 1);
  row.setAttribute("aria-selected", marks.unit === node);
  if (inner) row.setAttribute("aria-expanded", me.unfolded[me.tree].has(r));
  if (marks.unit !== node && marks.item !== null && data.nodes.home[node] === marks.item) row.classList.add("inside");
  row.style.top = `${at * ROW}px`;
  row.style.paddingLeft = `${6 + 14 * Math.min(rows.indent[r], 12)}px`;
  row.dataset.row = r;
  const part = (name, text) => {
    const span = document.createElement("span");
    span.className = name;
    span.textContent = text;
    row.append(span);
  };
  part("fold", inner ? (me.unfolded[me.tree].has(r) ? "▾" : "▸") : "");
  part(data.nodes.cut[node] ? "dot cut" : "dot", "");
  part("id", data.nodes.id[node]);
  part("op", data.nodes.ops[data.nodes.op[node]]);
  return row;
}
