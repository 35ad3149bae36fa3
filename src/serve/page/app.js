// Starts the page and connects its parts.

import { defaults, models } from "./api.js";
import { hasAttachments, setUpAttachments, takeAttachments } from "./attach.js";
import { answer, isRunning, runningIn, stop } from "./chat.js";
import { byId, el, hideError, number, say, showError } from "./dom.js";
import { setUpDrawers } from "./drawers.js";
import { redrawPanel, setUpPanel } from "./panel.js";
import { applyTheme, changeSetting, confirmed, parameters, setting, setUpSettings, showDefaults } from "./settings.js";
import { setUpSidebar, showConversations } from "./sidebar.js";
import { deleteAllConversations, deleteConversation, openStore, saveConversation, storeError } from "./store.js";
import { addMessage, lastId, newConversation, removeMessage, showSibling, titleOf } from "./tree.js";
import { setUpView, showMessages, toEnd, updateMessage } from "./view.js";

/** Time between two attempts to reach a server that is loading, in milliseconds. */
const RETRY = 2000;

/** Context size in tokens by model, if known. */
let contexts = new Map();
let conversations = [];
let current = newConversation(setting("system"));

async function save(conversation) {
  try {
    // Copy it, because a running answer changes it while the browser stores it.
    await saveConversation(structuredClone(conversation));
  } catch (error) {
    showError(storeError(error));
  }
}

function show() {
  byId("title").textContent = titleOf(current);
  document.title = `${titleOf(current)} - Thermocline`;
  showMessages(current);
  showConversations();
  showButtons();
}

function showButtons() {
  const busy = runningIn(current) !== null;
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
}

function showStatus(message) {
  const { timings, usage } = message;
  const parts = [];
  if (timings?.predicted_per_second) parts.push(`${number(timings.predicted_per_second)} tokens/s`);
  if (timings?.predicted_n) parts.push(`${timings.predicted_n} tokens`);
  if (usage?.total_tokens) {
    const limit = contexts.get(message.model);
    parts.push(`${usage.total_tokens} ${limit ? `of ${limit} ` : ""}tokens of context`);
  }
  byId("status").textContent = parts.join(" \u00b7 ") || "\u00a0";
}

async function ask(question) {
  const conversation = current;
  hideError();
  await answer(conversation, question, { model: byId("model").value, parameters: parameters() }, {
    started: () => {
      save(conversation);
      show();
      toEnd();
      say("Generating");
    },
    changed: (message) => {
      updateMessage(conversation, message);
      if (conversation === current) showStatus(message);
    },
    save: () => save(conversation),
    ended: (message) => {
      save(conversation);
      if (conversation === current) {
        show();
        showStatus(message);
        if (document.activeElement === document.body) byId("input").focus();
      }
      say(message.error ? `Error: ${message.error}` : message.finish === "stopped" ? "Stopped" : "Answer complete");
    },
  });
}

function send() {
  const input = byId("input");
  const content = input.value.trim();
  if (runningIn(current) || (content === "" && !hasAttachments())) return;
  const attachments = takeAttachments();
  input.value = "";
  fitInput();
  if (!conversations.includes(current)) conversations.push(current);
  ask(addMessage(current, lastId(current), { role: "user", content, attachments }));
}

function open(conversation) {
  current = conversation;
  hideError();
  show();
  toEnd();
  byId("status").textContent = "\u00a0";
}

function create() {
  open(newConversation(setting("system")));
  byId("input").focus();
}

async function remove(conversation) {
  if (!(await confirmed(`Delete the conversation "${titleOf(conversation)}"?`))) return;
  stop(conversation);
  conversations = conversations.filter((other) => other !== conversation);
  deleteConversation(conversation.id).catch(() => {});
  if (conversation === current) create();
  else show();
  say("Conversation deleted");
}

async function clear() {
  if (!(await confirmed("Delete all conversations in this browser?"))) return;
  conversations.forEach(stop);
  conversations = [];
  deleteAllConversations().catch(() => {});
  byId("settings").close();
  create();
}

const messageActions = {
  isRunning,
  isBusy: () => runningIn(current) !== null,
  regenerate: (message) => ask(current.messages[message.parent]),
  edit: (message, text) => {
    const { role, attachments = [] } = message;
    const edited = addMessage(current, message.parent, { role, content: text, attachments });
    if (role === "user") ask(edited);
    else {
      save(current);
      show();
    }
  },
  turn: (message, by) => {
    showSibling(current, message, by);
    save(current);
    show();
  },
  remove: async (message) => {
    if (!(await confirmed("Delete this message and the messages after it?"))) return;
    removeMessage(current, message);
    save(current);
    show();
  },
};

function fitInput() {
  const input = byId("input");
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, 240)}px`;
}

function setUpComposer() {
  const input = byId("input");
  input.addEventListener("input", fitInput);
  input.addEventListener("keydown", (event) => {
    // Ignore the key that ends the composition of a character (IME).
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("stop").addEventListener("click", () => {
    stop(current);
    input.focus();
  });
  byId("close-error").addEventListener("click", hideError);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop(current);
    if (event.key === "/" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      input.focus();
    }
  });
}

/** Lists the models; waits for a server that is still loading. */
async function connect() {
  const select = byId("model");
  let found = [];
  try {
    found = await models();
    hideError();
    showDefaults(await defaults());
  } catch (error) {
    showError(error.message);
    if (error.status === 503 || error.status === 0) setTimeout(connect, RETRY);
  }
  const names = found.map((model) => model.id);
  contexts = new Map(found.map((model) => [model.id, model.nCtx]));
  select.replaceChildren(...names.map((name) => el("option", { value: name, textContent: name })));
  if (names.includes(setting("model"))) select.value = setting("model");
  select.hidden = names.length < 2;
  byId("empty-model").textContent = names[0] ?? "the model";
}

async function start() {
  applyTheme();
  setUpView(messageActions);
  setUpAttachments();
  setUpComposer();
  setUpSettings({
    system: () => current.system,
    setSystem: (text) => {
      current.system = text;
      if (conversations.includes(current)) save(current);
    },
    connected: () => {
      connect();
      redrawPanel(true);
    },
    theme: () => redrawPanel(false),
    clear,
  });
  setUpSidebar({
    all: () => conversations,
    current: () => current,
    open: (conversation) => {
      open(conversation);
      byId("conversations").querySelector("[aria-current]")?.focus();
    },
    create,
    renamed: (conversation) => {
      save(conversation);
      show();
    },
    remove,
    add: async (added) => {
      conversations.push(...added);
      for (const conversation of added) await save(conversation);
      showConversations();
    },
  });
  byId("model").addEventListener("change", () => changeSetting("model", byId("model").value));
  setUpPanel();
  setUpDrawers();
  connect();
  try {
    conversations = await openStore();
  } catch (error) {
    showError(storeError(error));
  }
  const latest = conversations.toSorted((a, b) => b.updated - a.updated)[0];
  // Show the latest conversation; `?new` starts with an empty one.
  if (latest && !location.search.includes("new")) current = latest;
  show();
  if (matchMedia("(pointer: fine)").matches) byId("input").focus();
}

start();
