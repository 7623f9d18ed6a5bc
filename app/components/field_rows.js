const PATIENCE_MS = 1000;
let count = 0;

// `held`: what was edited and is not answered yet, by row and field. `since` is the serial of the first report that has
// it: a report has all that is held, because it takes the place of one that the page has not read.
function report(line, row, field, value) {
  line.held.set(`${row}\n${field}`, { row, field, value });
  if (line.timer === undefined) send(line);
}
function send(line) {
  line.serial = Math.max(Date.now(), line.serial + 1);
  const edits = [...line.held.values()];
  for (const edit of edits) edit.since ??= line.serial;
  clearTimeout(line.timer);
  line.timer = setTimeout(() => next(line), PATIENCE_MS);
  line.tell("edits", { serial: line.serial, edits });
}
function flush(line) {
  if ([...line.held.values()].some(edit => edit.since === undefined)) send(line);
}
function next(line) {
  clearTimeout(line.timer);
  line.timer = undefined;
  flush(line);
}
function answered(line, serial) {
  for (const [key, { since }] of line.held) if (since <= serial) line.held.delete(key);
  if (line.timer !== undefined && serial >= line.serial) next(line);
}
const ahead = (line, row, field) => line.held.has(`${row}\n${field}`);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
// A character that turns the direction of what follows shows itself instead, as in the rest of the page.
const plain = text => text.replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

function options(select, listed, value, empty) {
  const every = listed.some(([one]) => one === value) ? listed : [[value, value || empty], ...listed];
  const shape = JSON.stringify(every);
  if (select.shape === shape) return;
  select.shape = shape;
  select.replaceChildren(...every.map(([one, text]) => make("option", { value: one, dir: "auto" }, plain(text))));
}
function control(column) {
  if (column.kind === "choice") return make("select");
  if (column.kind === "choices") return make("span", { class: "choices", role: "group" });
  if (column.kind === "check") return make("input", { type: "checkbox" });
  const keys = column.kind === "figure" ? { inputmode: "decimal" } : { dir: "auto" };
  return make("input", { type: "text", autocomplete: "off", spellcheck: "false", ...keys });
}
function buildField(column, element, line) {
  const field = make(column.kind === "choices" ? "div" : "label", { class: `field ${column.kind}` });
  field.dataset.field = column.id;
  field.style.setProperty("--quarters", column.quarters);
  const input = control(column);
  field.append(make("span", { class: "top" }, make("span", { class: "label" }), make("s")), input);
  field.input = input;
  const told = value => {
    const row = element.row;
    input.shown = input.value;
    if (row.state !== "blank") return report(line, row.id, column.id, value);
    const filled = Object.fromEntries([...element.querySelectorAll("select")].map(
      one => [one.closest(".field").dataset.field, one.value]));
    // Emptied again, what was refused is forgotten.
    if (row.faults || Object.values(filled).every(Boolean)) report(line, row.id, "add", filled);
  };
  if (column.kind === "check") input.onchange = () => told(input.checked);
  else if (column.kind === "choices")
    input.onchange = () => told([...input.querySelectorAll("input")].filter(one => one.checked).map(one => one.value));
  else input.onchange = () => told(input.value);
  if (input.type === "text")
    input.onkeydown = event => { if (event.key === "Escape") input.value = input.shown; };
  return field;
}
function buildSlider(column, field, element, line) {
  const slider = make("input", { type: "range", min: 0, step: 1, class: "slider" });
  slider.dataset.slider = column.id;
  slider.oninput = () => {
    const [value, text] = slider.stops[slider.value];
    field.input.value = field.input.shown = text;
    paint(slider);
    report(line, element.row.id, column.id, value);
  };
  return slider;
}
function paint(slider) {
  slider.setAttribute("aria-valuetext", slider.stops[slider.value][1]);
  slider.style.setProperty("--share", `${(100 * slider.value) / Math.max(1, slider.max)}%`);
}

function build(row, data, line) {
  const element = make("div", { class: "row", role: "group" });
  element.dataset.row = row.id;
  element.row = row;
  element.fields = new Map();
  const present = data.columns.filter(column => column.id in row.values);
  const first = data.named ? 0 : data.columns.findIndex(column => column.id in row.values);
  if (row.name) {
    const who = make("div", { class: "who" }, make("i", { class: "swatch" }), make("span", { class: "name", dir: "auto" }),
      make("span", { class: "note" }));
    who.style.setProperty("--span", first < 0 ? data.columns.length : Math.max(1, first));
    element.append(who);
  }
  const place = (column, into) => {
    const field = buildField(column, element, line);
    element.fields.set(column.id, [column, field]);
    if (column.slider && row.stops?.[column.id]) {
      field.slider = buildSlider(column, field, element, line);
      into.append(field.slider);
    }
    into.append(field);
  };
  for (const column of present) place(column, element);
  const folded = data.more.filter(column => column.id in row.values);
  const press = (name, field) => {
    const button = make("button", { type: "button", class: field }, name);
    button.onclick = () => report(line, element.row.id, field, true);
    return button;
  };
  if (row.state === "gone") element.append(press("Put back", "restore"));
  else if (folded.length) {
    const button = make("button", { type: "button", class: "more", "aria-expanded": "false" }, data.fold ? `${data.fold} ⋯` : "⋯");
    const extra = make("div", { class: "extra" });
    extra.hidden = true;
    if (row.name) extra.append(make("span", { class: "whole", dir: "auto" }));
    for (const column of folded) place(column, extra);
    if (row.remove) extra.append(press(row.remove, "remove"));
    button.onclick = () => {
      extra.hidden = !extra.hidden;
      button.setAttribute("aria-expanded", String(!extra.hidden));
    };
    element.append(button, extra);
  } else if (row.remove) {
    const button = press("×", "remove");
    button.setAttribute("aria-label", row.remove);
    button.title = row.remove;
    element.append(button);
  }
  element.fault = make("p", { class: "fault", role: "status", id: `field-fault-${++count}` });
  element.append(element.fault);
  return element;
}

function showField(element, column, field, line) {
  const row = element.row, input = field.input, value = row.values[column.id];
  const name = `${row.about}, ${column.label}`, before = row.before?.[column.id], fault = row.faults?.[column.id];
  const instead = row.instead?.[column.id];
  write(field.querySelector(".label"), column.label);
  const old = field.querySelector("s");
  write(old, fault && instead ? `stays ${instead}` : before ?? "");
  old.title = old.textContent;
  field.classList.toggle("edited", before !== undefined);
  field.classList.toggle("faulty", fault !== undefined);
  input.setAttribute("aria-label", name);
  const said = [fault ? "" : before === undefined ? "" : `was ${before}`, column.help].filter(Boolean).join(". ");
  if (said) input.setAttribute("aria-description", said);
  else input.removeAttribute("aria-description");
  if (fault) input.setAttribute("aria-describedby", element.fault.id);
  else input.removeAttribute("aria-describedby");
  if (column.kind !== "choices") input.setAttribute("aria-invalid", String(Boolean(fault)));
  const waits = row.state === "blank" || ahead(line, row.id, column.id);
  if (column.kind === "choices") {
    if (waits) return;
    const shape = JSON.stringify(row.options?.[column.id]);
    if (input.shape !== shape) {
      input.shape = shape;
      input.replaceChildren(...(row.options?.[column.id] ?? []).map(([one, text]) =>
        make("label", {}, make("input", { type: "checkbox", value: one }), text)));
    }
    for (const box of input.querySelectorAll("input")) box.checked = value.includes(box.value);
    return;
  }
  input.title = column.kind === "check" ? column.help : String(value);
  input.disabled = Boolean(row.locked?.includes(column.id));
  if (column.kind === "check") {
    if (!waits) input.checked = value;
    return;
  }
  if (column.kind === "choice") {
    options(input, column.options, waits ? input.value : value, column.empty || "choose …");
    if (!waits) input.value = value;
    return;
  }
  input.placeholder = column.empty;
  const typing = document.activeElement === input && input.value !== input.shown;
  if (!waits && !typing) input.value = input.shown = value;
  if (!field.slider || waits) return;
  field.slider.setAttribute("aria-label", name);
  field.slider.stops = row.stops[column.id];
  field.slider.max = field.slider.stops.length - 1;
  const at = field.slider.stops.findIndex(([, text]) => text === (fault ? instead : value));
  field.slider.value = Math.max(0, at);
  paint(field.slider);
}
function show(element, row, line) {
  element.row = row;
  element.className = `row ${row.state ?? ""}`;
  element.setAttribute("aria-label", row.state === "new" ? `${row.about}, new` : row.about);
  const who = element.querySelector(".who");
  if (who) {
    write(who.querySelector(".name"), plain(row.name));
    who.title = row.name;
    const swatch = who.querySelector(".swatch"), note = who.querySelector(".note");
    swatch.hidden = !row.colour;
    swatch.style.background = row.colour ?? "";
    write(note, row.note ?? "");
    note.classList.toggle("below", Boolean(row.below));
    const whole = element.querySelector(".whole");
    if (whole) write(whole, plain(row.name));
  }
  for (const [column, field] of element.fields.values()) showField(element, column, field, line);
  write(element.fault, Object.values(row.faults ?? {}).join(" "));
  const more = element.querySelector("button.more");
  if (more) {
    const marked = element.querySelector(".extra .edited, .extra .faulty") !== null;
    more.classList.toggle("edited", marked);
    more.setAttribute("aria-label", `${line.fold || "More"} of ${row.about}${marked ? ", edited" : ""}`);
  }
}

function head(root, data) {
  let line = root.querySelector(":scope > .head");
  if (!line) root.prepend(line = make("div", { class: "head", "aria-hidden": "true" }));
  const labels = data.named ? [make("span")] : [];
  for (const column of data.columns) {
    if (column.slider && !data.named) labels.push(make("span"));
    labels.push(make("span", { title: column.help, class: column.kind }, column.label));
  }
  line.replaceChildren(...labels);
}
function tracks(data) {
  const widths = data.named ? ["minmax(0, 1fr)"] : [];
  for (const column of data.columns) {
    if (column.slider && !data.named) widths.push("minmax(2.5rem, 1fr)");
    widths.push(column.width);
  }
  return [...widths, "1.7rem"].join(" ");
}
// What makes another row of it: which fields it has, not what is in them.
function shapeOf(row, data) {
  const fields = [...data.columns, ...data.more].filter(column => column.id in row.values);
  return JSON.stringify([row.state === "gone" || row.state === "blank" ? row.state : "", Boolean(row.name), row.remove,
    fields.map(column => [column.id, column.slider && Boolean(row.stops?.[column.id])])]);
}
function focusable(element, held) {
  return (held && element.querySelector(`[data-field="${held}"] :is(input, select)`))
    ?? element.querySelector(".restore, input, select, button");
}

function begin(root) {
  const line = { held: new Map(), serial: 0, timer: undefined };
  // Who leaves the rows may press a button next, which must not come before what was edited.
  root.addEventListener("focusout", event => { if (!root.contains(event.relatedTarget)) flush(line); });
  return line;
}

export default function ({ parentElement, data, setStateValue }) {
  const root = parentElement.querySelector(".field-rows");
  if (!root) return;
  const line = root.line ??= begin(root);
  line.tell = setStateValue;
  line.fold = data.fold;
  answered(line, data.answered);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", data.label);
  root.className = `field-rows${data.named ? " named" : ""}${data.stacked ? " stacked" : ""}`;
  root.style.setProperty("--tracks", tracks(data));
  if (!data.stacked && root.heads !== JSON.stringify(data.columns)) {
    head(root, data);
    root.heads = JSON.stringify(data.columns);
  }
  const known = root.elements ??= new Map(), listed = new Set(data.rows.map(row => row.id));
  for (const [id, element] of known) if (!listed.has(id)) { element.remove(); known.delete(id); }
  let after = data.stacked ? null : root.querySelector(":scope > .head");
  for (const row of data.rows) {
    const shape = shapeOf(row, data);
    let element = known.get(row.id);
    if (element?.shape !== shape) {
      const focused = element?.contains(document.activeElement);
      const held = focused && document.activeElement.closest("[data-field]")?.dataset.field;
      const fresh = build(row, data, line);
      fresh.shape = shape;
      if (element) element.replaceWith(fresh);
      known.set(row.id, element = fresh);
      show(element, row, line);
      if (focused) focusable(element, held)?.focus({ preventScroll: true });
    } else show(element, row, line);
    const right = after ? after.nextElementSibling : root.firstElementChild;
    if (right !== element) root.insertBefore(element, right);
    after = element;
  }
}
