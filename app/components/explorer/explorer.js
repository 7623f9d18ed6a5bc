// One explorer: what is selected, searched and looked at. Python sends scenes and hears of selections.

// Pixels of the canvas in sight from which on it is there that the graph is fitted into.
const LEAST_SEEN = 150;

class Explorer {
  constructor(host) {
    this.host = host;
    this.canvas = host.querySelector(".scene");
    this.icicle = host.querySelector(".icicle");
    this.look = null;
    this.tree = "dominators";
    this.unfolded = { dominators: new Set(), post: new Set() };
    this.selected = { item: null, node: null, region: null };
    this.matches = [];
    this.hovered = null;
    this.marks = { item: null, unit: null, found: new Set(), region: null, patch: -1, patches: new Set(), dim: false };
    listen(this);
    around(this);
    const sizes = new ResizeObserver(() => this.resized());
    sizes.observe(this.canvas);
    sizes.observe(this.icicle);
  }

  // New data: the same drawing again, another view of the model, or another model.
  take({ version, focus, overlay, text }, tell) {
    this.tell = tell;
    this.busy(false);
    const before = this.data;
    if (before && before.version === version && before.focus === focus) return this.draw();
    const data = before && before.version === version ? { ...before, focus } : { ...JSON.parse(text), version, focus, overlay };
    data.regions = data.icicles.find((one) => one.by === this.by) || data.icicles[0];
    const same = before && before.model === data.model;
    const anchor = same && this.anchorOf(before);
    this.data = data;
    if (!same) {
      this.look = null;
      this.selected = { item: null, node: null, region: null };
      this.unfolded = { dominators: new Set(), post: new Set() };
      this.host.querySelector(".search input").value = "";
    } else if (before.steps !== data.steps) {
      // Another preparation has other regions and other trees.
      this.selected.region = null;
      this.unfolded = { dominators: new Set(), post: new Set() };
    }
    this.toolbar();
    stand(this);
    this.search(false);
    if (same) this.keep(anchor);
    if (data.focus && (!before || before.focus !== data.focus)) this.focusOn(data.focus);
    else this.restore();
    this.draw();
  }

  // The selection by name, as indices are of one scene only.
  restore() {
    const { node, region } = this.selected;
    if (node !== null) this.selected.item = this.data.nodes.home[node];
    else if (this.selected.name) {
      const at = this.data.scene.items.id.indexOf(this.selected.name);
      this.selected.item = at < 0 ? null : at;
    }
    this.mark(node, region);
  }

  focusOn(focus) {
    const [, how, ...rest] = focus.split("\n"), name = rest.join("\n"), centre = how !== "stay";
    const item = this.data.scene.items.id.indexOf(name);
    const node = name.startsWith("node:") ? this.data.nodes.id.indexOf(name.slice(5)) : -1;
    if (node >= 0) this.select({ node, item: this.data.nodes.home[node] }, { quiet: true, centre });
    else if (item >= 0) this.select({ item }, { quiet: true, centre });
  }

  select({ item = null, node = null, region = null }, { quiet = false, centre = false, open = false } = {}) {
    const { scene, nodes } = this.data;
    if (node === null && item !== null && !scene.items.open[item] && scene.items.count[item] === 1)
      node = this.onlyNode(item);
    this.selected = { item, node, region, name: item === null ? null : scene.items.id[item] };
    this.mark(node, region);
    if (centre && item !== null) this.bringIntoView(item);
    const label = item === null ? "nothing" : `${scene.items.label[item]}, ${scene.items.note[item] || scene.items.kind[item]}`;
    this.host.querySelector(".said").textContent = `Selected ${node === null ? label : `${nodes.id[node]} in ${label}`}`;
    this.canvas.setAttribute("aria-label", `Dataflow, ${scene.items.id.length} boxes. Selected: ${label}`);
    this.draw();
    this.scrollToRow();
    if (!quiet) this.tell.state("selection", this.selection());
    if (open) this.act("reveal", item, node);
  }

  selection() {
    const { item, node, region } = this.selected;
    const { regions } = this.data;
    return {
      item: item === null ? null : this.data.scene.items.id[item],
      node: node === null ? null : this.data.nodes.id[node],
      region: region === null ? null : regions.index[region],
    };
  }

  onlyNode(item) {
    const at = this.data.nodes.home.indexOf(item);
    return at < 0 ? null : at;
  }

  // What of the panels belongs to the selection.
  mark(node, region) {
    const { nodes, regions } = this.data;
    const marks = this.marks;
    marks.item = this.selected.item;
    marks.unit = node === null ? null : nodes.unit[node] < 0 ? null : nodes.unit[node];
    marks.patches = new Set();
    marks.region = null;
    const place = node === null ? -1 : nodes.place[node];
    marks.patch = region !== null ? region : place >= 0 ? patchAt(this.data, place) : -1;
    if (marks.patch >= 0) {
      const end = regions.first[marks.patch] + regions.count[marks.patch];
      for (let i = 0; i < regions.first.length; i++)
        if (regions.first[i] <= regions.first[marks.patch] && regions.first[i] + regions.count[i] >= end) marks.patches.add(i);
    }
    if (region !== null) {
      const first = regions.first[region], end = first + regions.count[region];
      const inside = new Map();
      nodes.home.forEach((item, i) => {
        const held = nodes.place[i] >= first && nodes.place[i] < end;
        if (nodes.place[i] >= 0) inside.set(item, held && inside.get(item) !== false);
      });
      marks.region = new Set([...inside].filter(([, held]) => held).map(([item]) => item));
    }
  }

  // Expand, collapse, reveal: Python answers with another scene.
  act(kind, item = this.selected.item, node = this.selected.node) {
    const { scene, nodes } = this.data;
    if (["open", "close"].includes(kind) && (item === null || !scene.items.expandable[item])) return;
    this.acted = item;
    this.busy(true);
    this.turn = (this.turn || 0) + 1;
    this.tell.trigger("action", {
      kind,
      item: item === null ? null : scene.items.id[item],
      node: node === null || node === undefined ? null : nodes.id[node],
      turn: this.turn,
    });
  }

  busy(is) {
    this.canvas.style.cursor = is ? "progress" : "";
    this.host.querySelector(".explorer").setAttribute("aria-busy", is);
  }

  // The box that was acted on stays where it was on the screen.
  anchorOf(before) {
    const item = this.acted ?? this.selected.item;
    if (item === null || item === undefined || !this.look) return null;
    const { box, parent, id } = before.scene.items;
    const node = before.nodes.home.findIndex((home) => this.isInside(before, home, item));
    return { node, around: parent[item] < 0 ? null : id[parent[item]], x: box[4 * item] + box[4 * item + 2] / 2, y: box[4 * item + 1] };
  }

  isInside(data, item, outer) {
    for (; item >= 0; item = data.scene.items.parent[item]) if (item === outer) return true;
    return false;
  }

  keep(anchor) {
    this.acted = null;
    if (!anchor || anchor.node < 0 || !this.look) return;
    const { parent, id, box } = this.data.scene.items;
    let item = this.data.nodes.home[anchor.node];
    while (parent[item] >= 0 && id[parent[item]] !== anchor.around) item = parent[item];
    this.look.x += box[4 * item] + box[4 * item + 2] / 2 - anchor.x;
    this.look.y += box[4 * item + 1] - anchor.y;
  }

  size() {
    return [this.canvas.clientWidth, this.canvas.clientHeight];
  }

  // Where the canvas is in sight: pixels of it above the window, and how many are seen.
  seen() {
    const box = this.canvas.getBoundingClientRect();
    const above = Math.max(0, -box.top), height = Math.min(box.height, window.innerHeight - box.top) - above;
    return height < LEAST_SEEN ? [0, box.height] : [above, height];
  }

  fit(readable) {
    // The buttons lie on the left edge of the canvas, in a narrow window above it.
    const tools = this.host.querySelector(".tools"), over = getComputedStyle(tools).position === "absolute";
    const left = over ? tools.offsetLeft + tools.offsetWidth : 0;
    const width = this.size()[0] - left, [above, height] = this.seen();
    const { scene } = this.data;
    const whole = Math.min(width / (scene.width + 40), height / (scene.height + 40), 1.1);
    const wide = Math.min(width / (scene.width + 40), 0.9);
    // At first a long picture begins at its top, large enough to read.
    const scale = readable && whole < 0.6 && wide > 0.2 ? Math.max(wide, 0.5) : whole;
    const y = height / scale > scene.height + 40 ? (scene.height - height / scale) / 2 : -20;
    this.look = { scale, x: (scene.width - width / scale) / 2 - left / scale, y: y - above / scale };
    this.fitted = { ...this.look, readable };
  }

  // A view that nobody has moved since it was fitted fits the new size too: the first one, while the page settles.
  resized() {
    const { look, fitted } = this;
    if (look && fitted && ["scale", "x", "y"].every((part) => look[part] === fitted[part])) this.fit(fitted.readable);
    this.draw();
  }

  zoom(factor, x, y) {
    const [width, height] = this.size();
    const at = [x ?? width / 2, y ?? height / 2], before = this.look.scale;
    const scale = Math.min(Math.max(before * factor, 0.01), 4);
    this.look.x += at[0] / before - at[0] / scale;
    this.look.y += at[1] / before - at[1] / scale;
    this.look.scale = scale;
    this.draw();
  }

  bringIntoView(item) {
    const [width, height] = this.size(), { box } = this.data.scene.items, look = this.look || (this.fit(true), this.look);
    const x = (box[4 * item] - look.x) * look.scale, y = (box[4 * item + 1] - look.y) * look.scale;
    const w = box[4 * item + 2] * look.scale, h = box[4 * item + 3] * look.scale;
    if (look.scale < 0.5) {
      look.scale = 0.7;
      look.x = box[4 * item] + box[4 * item + 2] / 2 - width / look.scale / 2;
      look.y = box[4 * item + 1] - height / look.scale / 2.5;
      return;
    }
    // No further than needed, with some room around it; of what is too large the top left.
    const room = 50;
    if (x + w > width - room) look.x += (x + w - width + room) / look.scale;
    if (x < room || w > width - 2 * room) look.x = box[4 * item] - room / look.scale;
    if (y + h > height - room) look.y += (y + h - height + room) / look.scale;
    if (y < room || h > height - 2 * room) look.y = box[4 * item + 1] - room / look.scale;
  }

  search(jump) {
    const text = this.host.querySelector(".search input").value, said = this.host.querySelector(".found");
    const { nodes } = this.data;
    this.matches = [];
    said.classList.remove("bad");
    if (text) {
      try {
        const pattern = new RegExp(text, "i");
        nodes.id.forEach((id, i) => {
          const words = [id, nodes.ops[nodes.op[i]], nodes.modules[nodes.module[i]], nodes.source[i]];
          if (words.some((word) => pattern.test(word))) this.matches.push(i);
        });
        said.textContent = `${this.matches.length} found`;
      } catch {
        said.textContent = "no regular expression";
        said.classList.add("bad");
      }
    } else said.textContent = "";
    this.marks.found = new Set(this.matches.map((node) => nodes.home[node]));
    this.marks.dim = this.matches.length > 0;
    this.turnOfMatch = -1;
    if (jump) this.nextMatch(1);
    this.draw();
  }

  nextMatch(step) {
    if (!this.matches.length) return;
    this.turnOfMatch = (this.turnOfMatch + step + this.matches.length) % this.matches.length;
    const node = this.matches[this.turnOfMatch], item = this.data.nodes.home[node];
    const hidden = this.data.scene.items.expandable[item];
    this.select({ node, item }, { centre: true, quiet: hidden, open: hidden });
    this.host.querySelector(".found").textContent = `${this.turnOfMatch + 1} of ${this.matches.length}`;
  }

  toolbar() {
    const { data, host } = this;
    const chosen = data.overlays.find((one) => one.id === this.overlay) ? this.overlay : data.overlay;
    this.overlay = chosen;
    const place = host.querySelector(".overlays");
    place.replaceChildren(
      ...data.overlays.map((one) => {
        const button = choice(one.label, one.id === chosen, () => {
          this.overlay = one.id;
          this.toolbar();
          this.draw();
          this.tell.state("overlay", one.id);
        });
        button.disabled = !one.values.length;
        button.title = one.why || "";
        return button;
      }),
    );
    this.legend(data.overlays.find((one) => one.id === chosen));
    host.querySelector(".sizes").replaceChildren(
      ...data.icicles.map((one) => choice(`by ${one.by}`, one === data.regions, () => this.sizeBy(one.by))),
    );
    host.querySelector(".explorer").classList.toggle("plain", !data.panels);
  }

  // Another size for the icicle's regions; the one selected stays so.
  sizeBy(by) {
    const { region, node } = this.selected, before = this.data.regions;
    this.by = by;
    this.data.regions = this.data.icicles.find((one) => one.by === by);
    const same = region === null ? -1 : this.data.regions.index.indexOf(before.index[region]);
    this.selected.region = same < 0 ? null : same;
    this.mark(node, this.selected.region);
    this.toolbar();
    this.draw();
  }

  legend(overlay) {
    const place = this.host.querySelector(".legend");
    place.replaceChildren();
    if (!overlay || !overlay.values.length) return;
    const add = (text, colour, kind) => {
      const span = document.createElement("span");
      if (colour) {
        const swatch = document.createElement("i");
        swatch.style.background = colour;
        span.append(swatch);
      }
      if (kind) span.className = kind === "ramp" ? kind : `basis ${kind}`;
      span.append(text);
      place.append(span);
    };
    if (overlay.basis) add(overlay.basis, null, overlay.basis.split(" ")[0]);
    if (overlay.kind === "bar") {
      add("0");
      add("", `linear-gradient(to right, ${heat(0)}, ${heat(1)})`, "ramp");
      add(overlay.most);
    } else overlay.names.forEach((name, i) => add(name, overlay.colours[i]));
  }

  draw() {
    if (!this.data || this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const [width, height] = this.size();
    if (!width || !height) return;
    if (!this.look) this.fit(true);
    const theme = themeOf(this.host), overlay = this.data.overlays.find((one) => one.id === this.overlay);
    const began = performance.now();
    const context = sharp(this.canvas);
    drawScene(context, width, height, this.look, this.data.scene, theme, overlay?.values.length ? overlay : null, this.marks);
    // Read by the benchmark and the browser tests.
    this.canvas.dataset.drawn = this.data.version;
    this.canvas.dataset.took = (performance.now() - began).toFixed(2);
    this.canvas.dataset.look = JSON.stringify(this.look);
    drawMap(this, theme);
    if (!this.data.panels) return;
    const small = sharp(this.icicle);
    drawIcicle(small, this.icicle.clientWidth, this.icicle.clientHeight, this.data, theme, this.marks);
    drawRows(this);
  }

  scrollToRow() {
    if (!this.data.panels || this.marks.unit === null) return;
    const rows = this.data.trees[this.tree], row = rows.node.indexOf(this.marks.unit);
    if (row < 0) return;
    unfoldTo(rows, row, this.unfolded[this.tree]);
    const at = openRows(rows, this.unfolded[this.tree]).indexOf(row), list = this.host.querySelector(".rows");
    // Before the first painting the list has no height to scroll in yet.
    drawRows(this);
    if (at * ROW < list.scrollTop || (at + 1) * ROW > list.scrollTop + list.clientHeight)
      list.scrollTop = at * ROW - list.clientHeight / 2;
    this.draw();
  }
}

// One button of a choice.
function choice(text, chosen, choose) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("role", "radio");
  button.setAttribute("aria-checked", chosen);
  button.textContent = text;
  button.onclick = choose;
  return button;
}

// A context whose pixels are the screen's.
function sharp(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

const explorers = new WeakMap();

export default function ({ parentElement, data, setStateValue, setTriggerValue }) {
  let explorer = explorers.get(parentElement);
  if (!explorer) explorers.set(parentElement, (explorer = new Explorer(parentElement)));
  explorer.take(data, { state: setStateValue, trigger: setTriggerValue });
}
