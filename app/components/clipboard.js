// A text on the clipboard; rejected where the browser refuses.
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // A page that came over plain http from another machine has no clipboard of its own.
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("refused");
}

