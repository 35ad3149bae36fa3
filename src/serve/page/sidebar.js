// The list of conversations: open, search, rename, delete, import, export.

import { byId, el, saveFile, say, showError } from "./dom.js";
import { fromMarkdown, toMarkdown } from "./transcript.js";
import { fromJson, searchText, titleOf, toJson } from "./tree.js";

const MAX_IMPORT = 64 << 20;

let actions = null;
/** The conversation whose title is being edited. */
let renaming = null;

/**
 * `handlers`: `all()`, `current()`, `open(conversation)`, `create()`, `renamed(conversation)`,
 * `remove(conversation)`, `add(conversations)`.
 */
export function setUpSidebar(handlers) {
  actions = handlers;
  byId("new-chat").addEventListener("click", () => actions.create());
  byId("search").addEventListener("input", showConversations);
  byId("export-all").addEventListener("click", () => {
    saveFile("thermocline-conversations.json", "application/json", toJson(actions.all()));
  });
  const picker = byId("import-file");
  byId("import").addEventListener("click", () => picker.click());
  picker.addEventListener("change", async () => {
    const file = picker.files[0];
    if (file) await importFile(file);
    picker.value = "";
  });
  byId("conversations").addEventListener("keydown", moveInList);
}

async function importFile(file) {
  try {
    if (file.size > MAX_IMPORT) throw new Error("the file is larger than 64 MiB");
    const text = await file.text();
    const conversations = /\.(md|markdown)$/i.test(file.name) ? [fromMarkdown(text)] : fromJson(text);
    await actions.add(conversations);
    say(conversations.length === 1 ? "1 conversation imported" : `${conversations.length} conversations imported`);
  } catch (error) {
    showError(`Cannot import ${file.name}: ${error.message}.`);
  }
}

/** Shows the conversations that match the search, the latest first. */
export function showConversations() {
  const wanted = byId("search").value.trim().toLowerCase();
  const found = actions.all().filter((c) => wanted === "" || searchText(c).includes(wanted));
  found.sort((a, b) => b.updated - a.updated);
  byId("conversations").replaceChildren(...found.map(entry));
  byId("no-conversations").hidden = found.length > 0 || wanted === "";
}

function entry(conversation) {
  const current = conversation === actions.current();
  if (conversation === renaming) return el("li", { className: "current" }, renameField(conversation));
  const title = titleOf(conversation);
  const open = el("button", {
    type: "button",
    className: "conversation",
    title,
    textContent: title,
    onclick: () => actions.open(conversation),
  });
  if (!current) return el("li", {}, open);
  open.setAttribute("aria-current", "true");
  const tool = (text, label, onclick) =>
    el("button", { type: "button", className: "small-button", textContent: text, "aria-label": label, onclick });
  const tools = el("div", { className: "entry-tools" },
    tool("Rename", "Rename conversation", () => rename(conversation)),
    tool("JSON", "Export as JSON", () => exportJson(conversation)),
    tool("Markdown", "Export as Markdown", () => exportMarkdown(conversation)),
    tool("Delete", "Delete conversation", () => actions.remove(conversation)));
  return el("li", { className: "current" }, open, tools);
}

function fileName(conversation, extension) {
  const name = titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 50);
  return `${name || "conversation"}.${extension}`;
}

function exportJson(conversation) {
  saveFile(fileName(conversation, "json"), "application/json", toJson([conversation]));
}

function exportMarkdown(conversation) {
  saveFile(fileName(conversation, "md"), "text/markdown", toMarkdown(conversation));
}

function rename(conversation) {
  renaming = conversation;
  showConversations();
  const field = byId("rename");
  field.focus();
  field.select();
}

function renameField(conversation) {
  const done = (save) => {
    if (renaming !== conversation) return;
    renaming = null;
    if (save) {
      conversation.title = field.value.trim().slice(0, 200);
      actions.renamed(conversation);
    }
    showConversations();
    byId("conversations").querySelector("[aria-current]")?.focus();
  };
  const field = el("input", {
    id: "rename",
    type: "text",
    value: titleOf(conversation),
    "aria-label": "New title",
    onblur: () => done(true),
    onkeydown: (event) => {
      event.stopPropagation();
      if (event.key === "Enter") done(true);
      else if (event.key === "Escape") done(false);
    },
  });
  return field;
}

/** Arrow keys, Home and End move in the list; F2 renames, Delete deletes. */
function moveInList(event) {
  const entries = [...byId("conversations").querySelectorAll(".conversation")];
  const at = entries.indexOf(document.activeElement);
  if (at < 0) return;
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: entries.length - 1 }[event.key];
  if (to !== undefined) {
    event.preventDefault();
    entries[Math.min(Math.max(to, 0), entries.length - 1)].focus();
  } else if ((event.key === "F2" || event.key === "Delete") && entries[at].hasAttribute("aria-current")) {
    event.preventDefault();
    if (event.key === "F2") rename(actions.current());
    else actions.remove(actions.current());
  }
}
