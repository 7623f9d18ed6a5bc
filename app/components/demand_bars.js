const PATIENCE_MS = 1000;

// `held`: what was drawn and is not answered yet, by bar; `sent`: the serial of the report under way, if any.
function report(line) {
  line.serial = Math.max(Date.now(), line.serial + 1);
  line.sent = new Map(line.held);
  line.timer = setTimeout(() => settle(line), PATIENCE_MS);
  line.tell("drawn", { serial: line.serial, subject: line.data.subject, values: Object.fromEntries(line.sent) });
}
function settle(line) {
  clearTimeout(line.timer);
  line.timer = undefined;
  if (line.data.answered >= line.serial) {
    for (const [place, value] of line.sent) if (line.held.get(place) === value) line.held.delete(place);
    line.sent.clear();
  }
  flush(line);
}
function flush(line) {
  const isNew = ([place, value]) => line.sent.get(place) !== value;
  if (line.drag || ![...line.held].some(isNew)) return;
  clearTimeout(line.timer);
  report(line);
}
function make(tag, name) {
  const node = document.createElement(tag);
  node.className = name;
  return node;
}
const snap = (value, data) => Number((Math.round(Math.max(0, value) / data.step) * data.step).toPrecision(12));

function paint(line, bar) {
  const value = line.held.get(bar.place) ?? bar.value, top = line.data.top;
  const text = value === null ? "empty" : `${value.toLocaleString("en", { maximumSignificantDigits: 6 })} ${line.data.unit}`;
  bar.style.setProperty("--share", `${Math.min(100, (100 * (value ?? 0)) / top)}%`);
  bar.setAttribute("aria-valuenow", value ?? 0);
  bar.setAttribute("aria-valuemax", Math.max(top, value ?? 0));
  bar.setAttribute("aria-valuetext", text);
  if (line.touched === bar.place) line.now.textContent = `${line.data.bars[bar.place].name} ${line.data.bars[bar.place].times}: ${text}`;
  bar.figure.textContent = value === null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: 3 });
}
function set(line, bar, value) {
  line.touched = bar.place;
  line.held.set(bar.place, snap(value, line.data));
  paint(line, bar);
}
// A stroke passes over several windows: each gets the height at which the pointer crosses it.
function draw(line, event) {
  const bar = line.bars.find(one => {
    const { left, right } = one.getBoundingClientRect();
    return event.clientX >= left && event.clientX < right;
  });
  if (!bar) return;
  const { bottom, height } = bar.getBoundingClientRect();
  set(line, bar, Math.min(1, (bottom - event.clientY) / height) * line.data.top);
}
function press(line, bar, event) {
  const { step, top } = line.data, now = line.held.get(bar.place) ?? bar.value ?? 0;
  const moves = {
    ArrowUp: now + step, ArrowDown: now - step, PageUp: now + 10 * step, PageDown: now - 10 * step, Home: 0, End: top,
  };
  const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (sideways) line.bars[bar.place + sideways]?.focus();
  else if (event.key in moves) {
    set(line, bar, moves[event.key]);
    if (line.timer === undefined) report(line);
  } else return;
  event.preventDefault();
}
function build(line, root) {
  line.touched = undefined;
  line.now = make("div", "now");
  line.now.setAttribute("aria-hidden", "true");
  const columns = make("div", "columns");
  columns.append(...line.data.bars.map((_, place) => {
    const column = make("div", "column"), bar = make("div", "bar");
    bar.place = place;
    bar.tabIndex = 0;
    bar.setAttribute("role", "slider");
    bar.setAttribute("aria-orientation", "vertical");
    bar.setAttribute("aria-valuemin", 0);
    bar.append(make("i", "fill"));
    bar.onkeydown = event => press(line, bar, event);
    bar.onfocus = () => { line.touched = place; paint(line, bar); };
    bar.figure = make("span", "figure");
    bar.label = make("span", "label");
    for (const text of [bar.figure, bar.label]) text.setAttribute("aria-hidden", "true");
    column.append(bar.figure, bar, bar.label);
    return column;
  }));
  root.replaceChildren(columns, line.now);
  line.bars = [...root.querySelectorAll(".bar")];
}

function begin(root) {
  const line = { held: new Map(), sent: new Map(), serial: 0, bars: [] };
  // Who leaves the bars may press a button next, which must not come before what was drawn.
  root.addEventListener("focusout", event => { if (!root.contains(event.relatedTarget)) flush(line); });
  return line;
}

export default function ({ parentElement, data, setStateValue }) {
  const root = parentElement.querySelector(".demand-bars");
  if (!root) return;
  const line = root.line ??= begin(root);
  const another = line.data?.subject !== data.subject || line.bars.length !== data.bars.length;
  line.data = data;
  line.tell = setStateValue;
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", data.label);
  if (another) {
    line.held.clear();
    build(line, root);
  }
  line.bars.forEach((bar, place) => {
    const { name, times, hours, value } = data.bars[place];
    bar.value = value;
    bar.setAttribute("aria-label", `${data.subject}, ${name} ${times}`);
    bar.label.textContent = name;
    bar.title = `${name} ${times}`;
    bar.parentElement.style.flexGrow = hours;
  });
  if (data.answered >= line.serial) settle(line);
  for (const bar of line.bars) paint(line, bar);
  root.onpointerdown = event => {
    if (event.button || !event.target.closest(".bar")) return;
    root.setPointerCapture(event.pointerId);
    line.drag = true;
    event.target.closest(".bar").focus({ preventScroll: true });
    draw(line, event);
    event.preventDefault();
  };
  root.onpointermove = event => { if (line.drag) draw(line, event); };
  root.onpointerup = root.onpointercancel = () => {
    if (!line.drag) return;
    line.drag = false;
    if (line.timer === undefined) report(line);
  };
}
