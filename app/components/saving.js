// What is drawn around these buttons as one SVG that stands alone, or as PNG: no style sheet, no font, nothing loaded.
// What is listed there as CSV. Pictures and tables go to the clipboard too.

const SPACE = "http://www.w3.org/2000/svg", SCALE = 2, MARGIN = 12;

function element(kind, attributes, parent) {
  const node = document.createElementNS(SPACE, kind);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent?.append(node);
  return node;
}

// Where a component is isolated its drawing lies below a root of its own.
function* everyNode(root, selector) {
  for (const node of root.querySelectorAll("*")) {
    if (node.matches(selector)) yield node;
    if (node.shadowRoot) yield* everyNode(node.shadowRoot, selector);
  }
}

const LOOK = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-size",
  "font-weight", "font-family", "text-anchor", "paint-order", "visibility"];

// A copy with the look that style sheets gave it; what cannot be seen stays behind.
function styled(node) {
  const copy = node.cloneNode(false);
  for (const name of ["class", "tabindex", "role", "style"]) copy.removeAttribute(name);
  const style = getComputedStyle(node);
  if (style.display === "none") return null;
  for (const name of LOOK) {
    const value = style.getPropertyValue(name);
    if (value) copy.setAttribute(name, value.replace(/"/g, "'"));
  }
  // Whoever opens it may have another font: words keep their width.
  if (node.tagName === "text" && node.textContent) {
    copy.setAttribute("textLength", node.getComputedTextLength().toFixed(2));
    copy.setAttribute("lengthAdjust", "spacingAndGlyphs");
  }
  for (const child of node.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) copy.append(child.cloneNode());
    else if (child.nodeType === Node.ELEMENT_NODE) {
      const made = styled(child);
      if (made) copy.append(made);
    }
  }
  return copy;
}

// Words that are no part of an SVG, a line at a time where they stand.
function words(root, sheet, origin) {
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    const around = text.parentElement;
    if (!text.data.trim() || around.closest("svg, button, style, script, [data-saving]")) continue;
    const style = getComputedStyle(around), range = document.createRange();
    range.selectNodeContents(text);
    const boxes = [...range.getClientRects()].filter((box) => box.width);
    if (!boxes.length || style.visibility === "hidden") continue;
    const look = { fill: style.color, "font-size": style.fontSize, "font-weight": style.fontWeight, "font-family": style.fontFamily };
    for (const [line, box] of linesOf(text, boxes)) {
      const at = { x: box.left - origin.left, y: box.top - origin.top + box.height * 0.78,
        textLength: box.width, lengthAdjust: "spacingAndGlyphs" };
      element("text", { ...look, ...at, "xml:space": "preserve" }, sheet).textContent = line;
    }
  }
}

function linesOf(text, boxes) {
  if (boxes.length === 1) return [[text.data.replace(/\s+/g, " "), boxes[0]]];
  const found = new Map(), range = document.createRange();
  for (let at = 0; at < text.length; at++) {
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    const box = range.getBoundingClientRect(), key = Math.round(box.top);
    if (!found.has(key)) found.set(key, ["", box]);
    found.get(key)[0] += text.data[at];
  }
  return [...found.values()];
}

function sheetOf(root) {
  const drawings = [...everyNode(root, "svg")].filter((svg) => {
    const box = svg.getBoundingClientRect();
    return box.width && !svg.parentElement?.closest("svg") && !svg.closest("button, [data-saving], .modebar");
  });
  const boxes = drawings.map((svg) => svg.getBoundingClientRect());
  const texts = [...root.querySelectorAll(".picture")].map((one) => one.getBoundingClientRect());
  const all = [...boxes, ...texts];
  if (!all.length) return null;
  const left = Math.min(...all.map((box) => box.left)) - MARGIN, top = Math.min(...all.map((box) => box.top)) - MARGIN;
  const width = Math.max(...all.map((box) => box.right)) - left + MARGIN;
  const height = Math.max(...all.map((box) => box.bottom)) - top + MARGIN;
  const sheet = element("svg", { xmlns: SPACE, width, height, viewBox: `0 0 ${width} ${height}` });
  const page = getComputedStyle(document.querySelector(".stApp") ?? document.body);
  element("rect", { width, height, fill: page.backgroundColor }, sheet);
  drawings.forEach((svg, at) => {
    const copy = styled(svg), box = boxes[at];
    if (!copy) return;
    for (const [name, value] of [["x", box.left - left], ["y", box.top - top], ["width", box.width], ["height", box.height]])
      copy.setAttribute(name, value);
    copy.setAttribute("color", getComputedStyle(svg).color);
    sheet.append(copy);
  });
  for (const picture of root.querySelectorAll(".picture")) words(picture, sheet, { left, top });
  return [sheet, width, height];
}

function give(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function svgText(sheet) {
  return new XMLSerializer().serializeToString(sheet);
}

async function pngOf([sheet, width, height]) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(sheet))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * SCALE);
  canvas.height = Math.round(height * SCALE);
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((give, fail) =>
    canvas.toBlob((blob) => (blob ? give(blob) : fail(new Error("no picture"))), "image/png"));
}

// A table of the page as rows of texts: a cell over several columns is followed by empty ones, groups of thousands close.
function rowsOf(root) {
  const table = root.querySelector("table");
  return [...table.rows].map((row) => [...row.cells].flatMap((cell) => {
    const text = cell.textContent.replace(/\u202f(?=\d{3}(?!\d))/g, "").replace(/\s+/g, " ").trim();
    return [text, ...Array(cell.colSpan - 1).fill("")];
  }));
}

// A spreadsheet runs what begins like a formula, and is no number: an apostrophe makes it a text.
function cellText(text, between) {
  const safe = /^[=+\-@\t\r]/.test(text) && !/^[+-]?[\d.]+(e[+-]?\d+)?( %)?$/i.test(text) ? `'${text}` : text;
  return new RegExp(`["\n${between}]`).test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

function tableText(root, between) {
  return rowsOf(root).map((row) => row.map((text) => cellText(text, between)).join(between)).join("\n") + "\n";
}

const LABELS = { svg: "SVG", png: "PNG", csv: "CSV", copy: "Copy" };
const SHOWN_MS = 1600;

async function act(kind, root, data) {
  if (data.text !== undefined) return copyText(data.text);
  if (data.listed) {
    if (kind === "copy") return copyText(tableText(root, "\t"));
    return give(new Blob([tableText(root, ",")], { type: "text/csv" }), `${data.file}.csv`);
  }
  const made = sheetOf(root);
  if (!made) return;
  if (kind === "svg") return give(new Blob([svgText(made[0])], { type: "image/svg+xml" }), `${data.file}.svg`);
  if (kind === "png") return give(await pngOf(made), `${data.file}.png`);
  // Handed over as a promise, the picture may be made while the browser still counts the press as the user's.
  return navigator.clipboard.write([new ClipboardItem({ "image/png": pngOf(made) })]);
}

export default function ({ parentElement, data }) {
  const around = parentElement.querySelector("[data-saving]");
  if (!around) return;
  const kinds = data.text !== undefined ? ["copy"] : data.listed ? ["csv", "copy"] : ["svg", "png", "copy"];
  const told = around.querySelector("[role=status]");
  around.querySelector("[data-lead]").textContent = data.lead;
  for (const kind of kinds) {
    let button = around.querySelector(`[data-kind=${kind}]`);
    if (!button) {
      button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: LABELS[kind] });
      button.dataset.kind = kind;
      told.before(button);
    }
    button.setAttribute("aria-label", kind === "copy" ? `Copy ${data.what}` : `${data.what} as ${LABELS[kind]}`);
    button.onclick = async () => {
      told.textContent = "";
      try {
        await act(kind, around.closest(`[class*="st-key-saved-"]`), data);
        if (kind !== "copy") return;
        told.textContent = "Copied";
        clearTimeout(around.later);
        around.later = setTimeout(() => { if (told.textContent === "Copied") told.textContent = ""; }, SHOWN_MS);
      } catch {
        told.textContent = kind === "copy" ? `The browser does not let this page copy: take the ${data.instead}.`
          : "The browser could not make the file.";
      }
    };
  }
}
