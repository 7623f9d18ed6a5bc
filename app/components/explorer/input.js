// Mouse, touch and keyboard.

function listen(me) {
  const { canvas, host } = me;
  pointer(me, canvas);
  canvas.addEventListener("wheel", (event) => {
    // Until the picture is clicked the page scrolls: it must not catch whoever passes by.
    if (!me.entered && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    me.zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  canvas.addEventListener("focus", () => (me.entered = true));
  canvas.addEventListener("blur", () => (me.entered = false));
  canvas.addEventListener("keydown", (event) => sceneKey(me, event));
  host.querySelector(".search input").addEventListener("input", () => me.search(false));
  host.querySelector(".search input").addEventListener("keydown", (event) => {
    if (event.key === "Enter") me.nextMatch(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") {
      event.target.value = "";
      me.search(false);
    }
  });
  host.querySelector(".tools").addEventListener("click", (event) => {
    const todo = event.target.dataset.do;
    if (todo === "in") me.zoom(1.3);
    if (todo === "out") me.zoom(1 / 1.3);
    if (todo === "fit") (me.fit(false), me.draw());
    if (todo === "png") savePicture(me);
    if (todo === "all" || todo === "reset") (me.look = null, me.act(todo, null, null));
  });
  trees(me, host);
  icicle(me);
}

function pointer(me, canvas) {
  const points = new Map();
  let start = null, apart = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    points.set(event.pointerId, at(event));
    if (points.size === 1) start = { at: at(event), look: { ...me.look }, moved: false };
    if (points.size === 2) apart = distance([...points.values()]);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!points.has(event.pointerId) || !start) return;
    points.set(event.pointerId, at(event));
    if (points.size === 2) {
      const [a, b] = [...points.values()], now = distance([a, b]);
      me.zoom(now / apart, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
      apart = now;
      start.moved = true;
      return;
    }
    const [x, y] = at(event), dx = x - start.at[0], dy = y - start.at[1];
    if (Math.hypot(dx, dy) > 4) start.moved = true;
    if (!start.moved) return;
    canvas.classList.add("moving");
    me.look.x = start.look.x - dx / me.look.scale;
    me.look.y = start.look.y - dy / me.look.scale;
    me.draw();
  });
  const up = (event) => {
    points.delete(event.pointerId);
    canvas.classList.remove("moving");
    if (start && !start.moved && event.type === "pointerup") {
      const [x, y] = at(event);
      const item = itemAt(me.data.scene, me.look.x + x / me.look.scale, me.look.y + y / me.look.scale);
      if (item === null || item !== me.selected.item) me.select({ item });
    }
    if (!points.size) start = null;
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("dblclick", (event) => {
    const [x, y] = at(event);
    const item = itemAt(me.data.scene, me.look.x + x / me.look.scale, me.look.y + y / me.look.scale);
    if (item !== null) me.act(me.data.scene.items.open[item] ? "close" : "open", item, null);
  });
}

function distance([a, b]) {
  return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
}

function sceneKey(me, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { items } = me.data.scene, item = me.selected.item;
  const keys = {
    Enter: () => item !== null && me.act(items.open[item] ? "close" : "open"),
    Backspace: () => {
      const open = item === null ? -1 : items.open[item] ? item : items.parent[item];
      if (open >= 0) me.act("close", open, null);
    },
    "+": () => me.zoom(1.25),
    "=": () => me.zoom(1.25),
    "-": () => me.zoom(0.8),
    f: () => (me.fit(false), me.draw()),
    "/": () => me.host.querySelector(".search input").focus(),
    Escape: () => me.select({}),
    ArrowDown: () => step(me, 0, 1),
    ArrowUp: () => step(me, 0, -1),
    ArrowLeft: () => step(me, -1, 0),
    ArrowRight: () => step(me, 1, 0),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

// To the nearest box in that direction; what a line joins counts as nearer.
function step(me, dx, dy) {
  const { items, lines } = me.data.scene;
  const { box } = items, from = me.selected.item;
  if (from === null) return me.select({ item: items.open.findIndex((open) => !open) }, { centre: true });
  const joined = new Set();
  for (const at of touching(me.data.scene, from))
    for (const other of [lines[at][0], ...lines[at][2]]) joined.add(other);
  const x = box[4 * from] + box[4 * from + 2] / 2, y = box[4 * from + 1] + box[4 * from + 3] / 2;
  let best = null, least = Infinity;
  for (let i = 0; i < items.id.length; i++) {
    if (i === from || items.open[i]) continue;
    const a = box[4 * i] + box[4 * i + 2] / 2 - x, b = box[4 * i + 1] + box[4 * i + 3] / 2 - y;
    const along = dx ? a * dx : b * dy, across = Math.abs(dx ? b : a);
    if (along <= 1) continue;
    const far = (along + 2.5 * across) * (joined.has(i) ? 0.35 : 1);
    if (far < least) [best, least] = [i, far];
  }
  if (best !== null) me.select({ item: best }, { centre: true });
}

function trees(me, host) {
  const list = host.querySelector(".rows");
  host.querySelectorAll("[data-tree]").forEach((button) =>
    button.addEventListener("click", () => {
      me.tree = button.dataset.tree;
      host.querySelectorAll("[data-tree]").forEach((other) => other.setAttribute("aria-checked", other === button));
      list.scrollTop = 0;
      me.scrollToRow();
      me.draw();
    }),
  );
  list.addEventListener("scroll", () => me.data?.panels && drawRows(me));
  list.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (!row) return;
    const r = Number(row.dataset.row), open = me.unfolded[me.tree];
    if (event.target.className === "fold" && event.target.textContent) {
      if (!open.delete(r)) open.add(r);
      return me.draw();
    }
    selectRow(me, r);
  });
  list.addEventListener("dblclick", (event) => {
    const row = event.target.closest(".row");
    if (row) me.act("reveal", null, me.data.trees[me.tree].node[Number(row.dataset.row)]);
  });
  list.addEventListener("keydown", (event) => {
    const rows = me.data.trees[me.tree], shown = me.shownRows || [];
    const at = shown.findIndex((r) => rows.node[r] === me.marks.unit), r = shown[at];
    if (event.key === "ArrowDown") selectRow(me, shown[Math.min(at + 1, shown.length - 1)]);
    else if (event.key === "ArrowUp") selectRow(me, shown[Math.max(at - 1, 0)]);
    else if (event.key === "ArrowRight" && at >= 0) (me.unfolded[me.tree].add(r), me.draw());
    else if (event.key === "ArrowLeft" && at >= 0) (me.unfolded[me.tree].delete(r), me.draw());
    else if (event.key === "Enter" && at >= 0) me.act("reveal", null, rows.node[r]);
    else return;
    event.preventDefault();
  });
}

function selectRow(me, r) {
  if (r === undefined) return;
  const node = me.data.trees[me.tree].node[r];
  me.select({ node, item: me.data.nodes.home[node] }, { centre: true });
}

function icicle(me) {
  const canvas = me.icicle;
  const choose = (region) => {
    if (region === null || region === undefined) return;
    const { regions, nodes } = me.data, node = regions.end[region];
    me.select({ node: node < 0 ? null : node, item: node < 0 ? null : nodes.home[node], region }, { centre: true });
  };
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    choose(patchUnder(me.data, box.width, box.height, event.clientX - box.left, event.clientY - box.top));
  });
  canvas.addEventListener("keydown", (event) => {
    const { depth, low, high } = me.data.regions, now = me.marks.patch;
    if (now < 0) return event.key.startsWith("Arrow") && (event.preventDefault(), choose(0));
    const inside = (a, b) => low[a] >= low[b] - 1e-9 && high[a] <= high[b] + 1e-9;
    const all = depth.map((_, i) => i);
    const same = all.filter((i) => depth[i] === depth[now]);
    const next = {
      ArrowDown: () => same[same.indexOf(now) + 1],
      ArrowUp: () => same[same.indexOf(now) - 1],
      ArrowRight: () => all.find((i) => depth[i] === depth[now] + 1 && inside(i, now)),
      ArrowLeft: () => all.find((i) => depth[i] === depth[now] - 1 && inside(now, i)),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    choose(next());
  });
}
