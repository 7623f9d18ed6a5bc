// Around the picture: a small map of the whole, a card on what the pointer is over, full screen, the panels, a file of it.

const MAP = { width: 168, height: 120, room: 6 };
// Pixels: below the picture, above one that begins far down, its least and most.
const BELOW = 12, ABOVE = 140, LEAST = 420, MOST = 1600;

// Scale and left upper corner of the small map.
function mapScale(scene) {
  const scale = Math.min((MAP.width - 2 * MAP.room) / scene.width, (MAP.height - 2 * MAP.room) / scene.height);
  return [scale, (MAP.width - scene.width * scale) / 2, (MAP.height - scene.height * scale) / 2];
}

// What the small map always shows, drawn once a scene: in every frame ten thousand boxes would cost as much again.
function mapContent(scene, theme) {
  const ratio = window.devicePixelRatio || 1, key = `${theme.text} ${ratio}`;
  if (scene.map?.key === key) return scene.map.canvas;
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d"), { items } = scene;
  [canvas.width, canvas.height] = [MAP.width * ratio, MAP.height * ratio];
  const [scale, left, top] = mapScale(scene);
  context.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * left, ratio * top);
  for (const [open, share] of [[true, 8], [false, 42]]) {
    context.fillStyle = mixed(theme.text, share);
    context.fill(boxes(items, items.id.map((_, i) => i).filter((i) => !items.open[i] === !open), false));
  }
  scene.map = { key, canvas };
  return canvas;
}

// Shown only while a part of the picture is out of sight.
function drawMap(me, theme) {
  const map = me.host.querySelector(".map"), { scene } = me.data, [width, height] = me.size();
  const { look } = me, right = look.x + width / look.scale, bottom = look.y + height / look.scale;
  map.hidden = width < 480 || (look.x <= 0 && look.y <= 0 && right >= scene.width && bottom >= scene.height);
  if (map.hidden) return;
  const [scale, left, top] = mapScale(scene), context = sharp(map);
  context.clearRect(0, 0, MAP.width, MAP.height);
  context.drawImage(mapContent(scene, theme), 0, 0, MAP.width, MAP.height);
  if (me.marks.item !== null) {
    const [x, y, w, h] = scene.items.box.slice(4 * me.marks.item, 4 * me.marks.item + 4);
    context.fillStyle = theme.accent;
    context.fillRect(left + x * scale, top + y * scale, Math.max(w * scale, 2), Math.max(h * scale, 2));
  }
  context.strokeStyle = theme.accent;
  context.lineWidth = 2;
  const inside = (value, most) => Math.min(Math.max(value, 1), most - 1);
  const [x, y] = [inside(left + look.x * scale, MAP.width), inside(top + look.y * scale, MAP.height)];
  context.strokeRect(x, y, inside(left + right * scale, MAP.width) - x, inside(top + bottom * scale, MAP.height) - y);
}

// The picture ends where the window does; one that begins far down has a window's height to scroll to.
function stand(me) {
  const explorer = me.host.querySelector(".explorer"), main = document.querySelector('[data-testid="stMain"]');
  if (explorer.matches(":fullscreen")) return explorer.style.removeProperty("--picture");
  const top = me.canvas.getBoundingClientRect().top + (main?.scrollTop ?? 0);
  const foot = me.host.querySelector(".foot").offsetHeight + BELOW;
  const tall = window.innerHeight - foot - (top < window.innerHeight / 2 ? top : ABOVE);
  explorer.style.setProperty("--picture", `${Math.round(Math.min(Math.max(tall, LEAST), MOST))}px`);
}

function around(me) {
  const stands = new ResizeObserver(() => me.host.isConnected ? stand(me) : stands.disconnect());
  // The one has the height of the window, the other that of what stands above.
  for (const name of ["stMain", "stMainBlockContainer"]) {
    const around = document.querySelector(`[data-testid="${name}"]`);
    if (around) stands.observe(around);
  }
  const { host } = me, map = host.querySelector(".map"), explorer = host.querySelector(".explorer");
  const go = (event) => {
    const box = map.getBoundingClientRect(), [scale, left, top] = mapScale(me.data.scene), [width, height] = me.size();
    me.look.x = (event.clientX - box.left - left) / scale - width / me.look.scale / 2;
    me.look.y = (event.clientY - box.top - top) / scale - height / me.look.scale / 2;
    me.draw();
  };
  map.addEventListener("pointerdown", (event) => (map.setPointerCapture(event.pointerId), go(event)));
  map.addEventListener("pointermove", (event) => event.buttons && go(event));
  host.querySelector(".tools").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.do === "full") {
      if (document.fullscreenElement) document.exitFullscreen();
      else explorer.requestFullscreen?.();
    }
    if (button?.dataset.do === "panels") {
      const bare = explorer.classList.toggle("bare");
      button.setAttribute("aria-pressed", String(!bare));
    }
  });
  document.addEventListener("fullscreenchange", () => {
    const full = explorer.matches(":fullscreen");
    host.querySelector('[data-do="full"]').textContent = full ? "Leave full screen" : "Full screen";
    stand(me);
    me.look = null;
    me.draw();
  });
  me.canvas.addEventListener("pointermove", (event) => hover(me, event));
  me.canvas.addEventListener("pointerleave", () => hover(me, null));
}

// What the pointer is over: its name, its operation or what is inside, its shape, and its time.
function hover(me, event) {
  const card = me.host.querySelector(".card");
  const box = me.canvas.getBoundingClientRect(), { scene, overlays } = me.data ?? {};
  const item = event && scene && me.look && !event.buttons
    ? itemAt(scene, me.look.x + (event.clientX - box.left) / me.look.scale, me.look.y + (event.clientY - box.top) / me.look.scale)
    : null;
  card.hidden = item === null;
  if (item === null) return;
  const x = event.clientX - box.left, y = event.clientY - box.top;
  card.style.left = `${Math.min(x + 14, box.width - 250)}px`;
  card.style.top = `${y + 130 > box.height ? y - card.offsetHeight - 10 : y + 16}px`;
  if (me.hovered === `${item} ${me.data.version}`) return;
  me.hovered = `${item} ${me.data.version}`;
  card.replaceChildren(...cardLines(me, item, overlays).map(([kind, text]) => {
    const line = document.createElement("div");
    line.className = kind;
    line.textContent = text;
    return line;
  }));
}

function cardLines(me, item, overlays) {
  const { items } = me.data.scene, { nodes } = me.data, lines = [["name", items.label[item]]];
  const node = items.count[item] === 1 && !items.open[item] ? me.onlyNode(item) : null;
  if (node !== null) {
    lines.push(["fact", [items.kind[item] === "op" ? nodes.ops[nodes.op[node]] : items.kind[item], nodes.shape[node]].filter(Boolean).join(" · ")]);
    if (nodes.id[node] !== items.label[item]) lines.push(["fact", nodes.id[node]]);
  } else lines.push(["fact", [items.note[item], items.count[item] > 1 ? `${items.count[item]} operations` : ""].filter(Boolean).join(" · ")]);
  for (const one of overlays) if (one.kind === "bar" && one.texts?.[item]) lines.push(["fact", `${one.label}: ${one.texts[item]} (${one.basis})`]);
  return lines.filter(([, text]) => text);
}

// The whole graph as a PNG, at twice its size where a canvas may be so large.
function savePicture(me) {
  const { scene, name } = me.data, most = 8000;
  const scale = Math.min(2, most / scene.width, most / scene.height);
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil((scene.width + 32) * scale);
  canvas.height = Math.ceil((scene.height + 32) * scale);
  const overlay = me.data.overlays.find((one) => one.id === me.overlay);
  drawScene(canvas.getContext("2d"), canvas.width, canvas.height, { scale, x: -16, y: -16 }, scene, themeOf(me.host),
    overlay?.values.length ? overlay : null, { ...me.marks, item: null, found: new Set(), dim: false, region: null });
  canvas.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${name}.png`;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
