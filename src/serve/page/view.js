// The messages of the current branch: an `article` element each, updated in place while it is written.

import { attachmentNodes } from "./attach.js";
import { byId, copyText, el, iconButton, number, say } from "./dom.js";
import { render } from "./markdown.js";
import { path, place } from "./tree.js";

/** Distance from the end, in pixels, within which the view follows a stream. */
const NEAR = 80;

let following = true;
let actions = null;

/**
 * `handlers`: `regenerate(message)`, `edit(message, text)`, `turn(message, by)`, `remove(message)`,
 * `isRunning(message)`, `isBusy()`.
 */
export function setUpView(handlers) {
  actions = handlers;
  const scroll = byId("scroll");
  scroll.addEventListener("scroll", () => {
    following = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
    byId("to-end").hidden = following;
  }, { passive: true });
  byId("to-end").addEventListener("click", () => {
    toEnd();
    byId("input").focus();
  });
}

export function toEnd() {
  following = true;
  const scroll = byId("scroll");
  scroll.scrollTop = scroll.scrollHeight;
  byId("to-end").hidden = true;
}

export function showMessages(conversation) {
  const messages = path(conversation);
  byId("log").replaceChildren(...messages.map((message) => article(conversation, message)));
  byId("empty").hidden = messages.length > 0;
  if (following) toEnd();
}

export function updateMessage(conversation, message) {
  const node = document.getElementById(`m-${message.id}`);
  if (!node) return;
  fill(node, conversation, message);
  if (following) toEnd();
}

function article(conversation, message) {
  const name = message.role === "user" ? "You" : "Assistant";
  const node = el("article", { id: `m-${message.id}`, className: `message ${message.role}`, "aria-label": name },
    el("h2", { className: "who", textContent: name }),
    el("div", { className: "files" }),
    el("details", { className: "reasoning", hidden: true },
      el("summary", { textContent: "Reasoning" }), el("div", { className: "text" })),
    el("div", { className: "text body" }),
    el("p", { className: "note", hidden: true }),
    el("div", { className: "tools" }));
  node.querySelector(".files").append(...attachmentNodes(message.attachments));
  fill(node, conversation, message);
  return node;
}

function fill(node, conversation, message) {
  const running = actions.isRunning(message);
  node.setAttribute("aria-busy", String(running));
  render(node.querySelector(".body"), message.content);
  fillReasoning(node, message, running);
  const body = node.querySelector(".body");
  body.classList.toggle("waiting", running && !message.content && !message.reasoning);
  const note = node.querySelector(".note");
  note.textContent = noteOf(message, running);
  note.hidden = note.textContent === "";
  note.classList.toggle("bad", Boolean(message.error));
  // Rebuild the buttons only if their state changes, so that they keep the focus.
  const state = JSON.stringify([running, actions.isBusy(), place(conversation, message)]);
  const tools = node.querySelector(".tools");
  if (tools.dataset.state !== state) {
    tools.dataset.state = state;
    tools.replaceChildren(...(running ? [] : buttons(node, conversation, message)));
  }
}

function fillReasoning(node, message, running) {
  const details = node.querySelector(".reasoning");
  if (!message.reasoning) return;
  if (details.hidden) details.open = running;
  // Fold the reasoning once, when the answer begins.
  if (message.content && running && !details.dataset.folded) {
    details.dataset.folded = "yes";
    details.open = false;
  }
  details.hidden = false;
  const thinking = running && !message.content;
  details.querySelector("summary").textContent = thinking ? "Reasoning ..." : "Reasoning";
  render(details.querySelector(".text"), message.reasoning);
}

function noteOf(message, running) {
  if (message.role === "user") return "";
  if (running) return message.progress ? progressText(message.progress) : "";
  const parts = [];
  if (message.error) parts.push(message.error);
  if (message.finish === "stopped") parts.push("Stopped.");
  if (message.finish === "length") parts.push("The answer reached the token limit.");
  if (message.finish === "partial") parts.push("The page was closed before the answer was complete.");
  if (message.usage) {
    const { prompt_tokens: prompt, completion_tokens: generated, prompt_tokens_details: details } = message.usage;
    const cached = details?.cached_tokens ? `, ${details.cached_tokens} cached` : "";
    parts.push(`${generated} tokens, prompt ${prompt}${cached}`);
  }
  if (message.timings?.predicted_per_second) parts.push(`${number(message.timings.predicted_per_second)} tokens/s`);
  return parts.join(" \u00b7 ");
}

function progressText({ processed, total }) {
  return total > 0 && processed < total ? `Prefill: ${processed} of ${total} tokens` : "";
}

function buttons(node, conversation, message) {
  const made = [];
  const { index, count } = place(conversation, message);
  const busy = actions.isBusy();
  if (count > 1) {
    made.push(
      iconButton("left", "Previous version", () => showVersion(message, -1), { disabled: busy || index === 0 }),
      el("span", { className: "count", "aria-label": `Version ${index + 1} of ${count}` }, `${index + 1}/${count}`),
      iconButton("right", "Next version", () => showVersion(message, 1), { disabled: busy || index === count - 1 }));
  }
  made.push(iconButton("copy", "Copy message", async () => {
    say((await copyText(message.content)) ? "Message copied" : "The browser did not allow copying");
  }));
  made.push(iconButton("edit", "Edit message", () => edit(node, conversation, message), { disabled: busy }));
  if (message.role === "assistant") {
    made.push(iconButton("again", "Regenerate answer", () => actions.regenerate(message), { disabled: busy }));
  }
  made.push(iconButton("trash", "Delete message and those after it", () => actions.remove(message), { disabled: busy }));
  return made;
}

/** Shows another version of a message and keeps the focus on its buttons. */
function showVersion(message, by) {
  const position = [...byId("log").children].findIndex((node) => node.id === `m-${message.id}`);
  actions.turn(message, by);
  const node = byId("log").children[position];
  const label = by < 0 ? "Previous version" : "Next version";
  const button = node?.querySelector(`[aria-label="${label}"]`);
  const other = node?.querySelector('.tools button:not(:disabled)');
  (button && !button.disabled ? button : other)?.focus();
}

function edit(node, conversation, message) {
  const body = node.querySelector(".body");
  const area = el("textarea", { className: "edit", value: message.content, "aria-label": "Edited message" });
  const restore = () => {
    box.replaceWith(body);
    node.querySelector(".tools").hidden = false;
    node.querySelector('[aria-label="Edit message"]')?.focus();
  };
  const save = () => {
    const text = area.value;
    restore();
    if (text !== message.content || message.role === "user") actions.edit(message, text);
  };
  const box = el("div", { className: "edit-box" }, area,
    el("div", { className: "dialog-buttons" },
      el("button", { type: "button", className: "text-button", textContent: "Cancel", onclick: restore }),
      el("button", {
        type: "button",
        className: "primary",
        textContent: message.role === "user" ? "Send" : "Save",
        onclick: save,
      })));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      restore();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      save();
    }
  });
  body.replaceWith(box);
  node.querySelector(".tools").hidden = true;
  area.style.height = `${Math.min(area.scrollHeight + 4, 400)}px`;
  area.focus();
}
