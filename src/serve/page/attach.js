// Text files attached to the next message by the button, drag and drop, or pasting.

import { byId, bytes, el, iconButton, say, showError } from "./dom.js";

const MAX_FILE_BYTES = 1 << 20;
const MAX_TOTAL_BYTES = 4 << 20;
const MAX_FILES = 20;

let files = [];

export function takeAttachments() {
  const taken = files;
  files = [];
  show();
  return taken;
}

export function hasAttachments() {
  return files.length > 0;
}

async function add(list) {
  for (const file of list) {
    const problem = refusal(file);
    if (problem) {
      showError(problem);
      continue;
    }
    const text = await readText(file);
    if (text === null) showError(`${file.name} is not a text file in UTF-8.`);
    else files.push({ name: file.name || "pasted.txt", text });
  }
  show();
}

function refusal(file) {
  const all = files.reduce((sum, other) => sum + other.text.length, 0);
  if (file.size > MAX_FILE_BYTES) return `${file.name} has ${bytes(file.size)}; attach at most ${bytes(MAX_FILE_BYTES)} per file.`;
  if (all + file.size > MAX_TOTAL_BYTES) return `Attach at most ${bytes(MAX_TOTAL_BYTES)} per message.`;
  return files.length >= MAX_FILES ? `Attach at most ${MAX_FILES} files per message.` : null;
}

/** The text of a file; null if it is not UTF-8 or holds binary data. */
async function readText(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}

function show() {
  const chips = files.map((file, i) => {
    const remove = iconButton("close", `Remove ${file.name}`, () => {
      files.splice(i, 1);
      show();
      say(`${file.name} removed`);
      byId("input").focus();
    });
    return el("li", { className: "chip" }, `${file.name} (${bytes(file.text.length)})`, remove);
  });
  byId("attachments").replaceChildren(...chips);
  byId("attachments").hidden = files.length === 0;
}

/** Attached files of a message as collapsed elements. */
export function attachmentNodes(attachments = []) {
  return attachments.map((file) => el("details", { className: "attachment" },
    el("summary", { textContent: `${file.name} (${bytes(file.text.length)})` }),
    el("pre", { className: "plain", tabIndex: 0, role: "region", "aria-label": file.name, textContent: file.text })));
}

export function setUpAttachments() {
  const picker = byId("attach-file");
  byId("attach").addEventListener("click", () => picker.click());
  picker.addEventListener("change", async () => {
    await add([...picker.files]);
    picker.value = "";
    byId("input").focus();
  });
  byId("input").addEventListener("paste", (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length === 0) return;
    event.preventDefault();
    add(pasted);
  });
  const main = byId("main");
  main.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    main.classList.add("drop");
  });
  main.addEventListener("dragleave", (event) => {
    if (!main.contains(event.relatedTarget)) main.classList.remove("drop");
  });
  main.addEventListener("drop", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    main.classList.remove("drop");
    add([...event.dataTransfer.files]);
  });
  show();
}
