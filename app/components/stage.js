// The window as a stage: keys for its buttons, full screen, and a map as large as the room that is left for it.

const MAP = ".st-key-present-map", STRIP = ".st-key-present-strip", HEAD = ".st-key-present-head",
  VERDICT = ".present-verdict";
const PHONE = 640, BELOW = 10, LEAST_CARD = 270, LEAST_TEXT = 17, LEAST_ROOM = 160, NEARLY = 0.93;

function press(name) {
  document.querySelector(`.st-key-present-${name} button`)?.click();
}

// What takes keys of its own, or is open over the page, has them.
function taken(event) {
  const at = event.target;
  if (document.querySelector('[data-testid="stPopoverBody"], [role="dialog"], [role="listbox"]')) return true;
  if (at.closest?.("input[type=range]")) return event.key.startsWith("Arrow");
  if (at.closest?.("input, textarea, select, [contenteditable]")) return true;
  return event.key === " " && at.closest?.("button, summary, a, [role=button]");
}

function keyed(stage, event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || taken(event)) return;
  const step = side => press((stage.at = side));
  const keys = {
    ArrowLeft: () => step("before"),
    ArrowRight: () => step("after"),
    // By what was pressed last: the page may still be on its way there.
    " ": () => step(stage.at === "after" ? "before" : "after"),
    // In full screen Escape ends that first.
    Escape: () => document.fullscreenElement === null && press("leave"),
    f: turnFull,
    F: turnFull,
  };
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
}

function turnFull() {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen?.().catch(() => {}); // a browser that refuses
}

// So many cards beside each other that each is as large as it can be.
function fit() {
  fitText();
  const map = document.querySelector(MAP), strip = document.querySelector(STRIP);
  if (!map) return;
  const main = map.closest('[data-testid="stMain"]'), phone = innerWidth <= PHONE;
  const top = map.getBoundingClientRect().top + (main?.scrollTop ?? 0);
  const room = Math.max(innerHeight - top - (strip ? strip.offsetHeight + 9 : 0) - BELOW, LEAST_ROOM);
  main.style.setProperty("--stage-room", `${Math.floor(room)}px`);
  const grid = map.querySelector(".picture > div > .gpus");
  if (!grid) return;
  const width = map.querySelector(".picture").clientWidth;
  const first = grid.querySelector("svg[viewBox]"), cells = [...grid.children];
  if (phone || !first) {
    grid.style.gridTemplateColumns = phone ? "minmax(0, 1fr)" : "";
    return;
  }
  const style = getComputedStyle(grid), across = parseFloat(style.columnGap), down = parseFloat(style.rowGap);
  const ratio = first.viewBox.baseVal.height / first.viewBox.baseVal.width;
  const around = grid.parentElement.getBoundingClientRect().height - grid.getBoundingClientRect().height;
  const below = Math.max(...cells.map(cell => (cell.querySelector("summary")?.offsetHeight ?? -4) + 4));
  const free = room - around - 4;
  const sizes = cells.map((_, at) => {
    const columns = at + 1, rows = Math.ceil(cells.length / columns);
    return Math.min((width - at * across) / columns, ((free - (rows - 1) * down) / rows - below) / ratio);
  });
  const best = Math.max(...sizes);
  // Of almost equal ones that with most columns: a window is wide.
  let columns = sizes.findLastIndex(size => size >= NEARLY * best) + 1, size = sizes[columns - 1];
  if (best < LEAST_CARD) {
    // Too many to be read in one window: they scroll.
    columns = Math.max(1, Math.floor((width + across) / (LEAST_CARD + across)));
    size = (width - 12 - (columns - 1) * across) / columns;
  }
  grid.style.gridTemplateColumns = `repeat(${columns}, ${Math.floor(size)}px)`;
  grid.style.justifyContent = "center";
  const picture = map.querySelector(".picture");
  reach(picture, picture.scrollHeight > picture.clientHeight);
}

// A long verdict in smaller letters rather than cut.
function fitText() {
  const box = document.querySelector(VERDICT), text = box?.querySelector("p");
  if (!text) return;
  text.style.fontSize = "";
  reach(text, false);
  if (innerWidth <= PHONE) return;
  let size = parseFloat(getComputedStyle(text).fontSize);
  while (size > LEAST_TEXT && text.scrollHeight > box.clientHeight - 10) text.style.fontSize = `${--size}px`;
  reach(text, text.scrollHeight > box.clientHeight);
}

// What scrolls can be scrolled by the keyboard too.
function reach(node, scrolls) {
  if (scrolls) node.tabIndex = 0;
  else node.removeAttribute("tabindex");
}

function begin(stage) {
  let waiting = false;
  const soon = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      if (stage.full.isConnected) fit();
      else end();
    });
  };
  const stop = new AbortController(), { signal } = stop;
  document.addEventListener("keydown", event => keyed(stage, event), { signal });
  addEventListener("resize", soon, { signal });
  // A slider that was dragged and a button that was clicked give the keys back to the stage; reached by Tab they
  // have them.
  document.addEventListener("pointerup", event => {
    event.target.closest?.(`input[type=range], ${HEAD} button`)?.blur();
  }, { signal });
  const drawn = new MutationObserver(soon), sized = new ResizeObserver(soon);
  drawn.observe(document.querySelector('[data-testid="stMain"]'), { childList: true, subtree: true });
  sized.observe(document.querySelector('[data-testid="stMainBlockContainer"]'));
  const end = () => {
    stop.abort();
    drawn.disconnect();
    sized.disconnect();
  };
  soon();
}

export default function ({ parentElement, data }) {
  const full = parentElement.querySelector(".full");
  if (!full) return;
  if (!full.stage) {
    full.stage = { full };
    full.hidden = !document.fullscreenEnabled;
    full.onclick = turnFull;
    begin(full.stage);
  }
  full.stage.at = data.at;
}
