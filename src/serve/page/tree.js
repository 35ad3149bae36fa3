// A conversation as a tree of messages. Regenerating or editing adds a sibling; `chosen` says for
// each parent which child is shown. Plain data and functions without DOM, storable as JSON.

const ROOT = "root";
/** Maximum number of messages in an imported conversation. */
const MAX_MESSAGES = 20_000;
const ROLES = ["user", "assistant"];

export function newId() {
  const words = crypto.getRandomValues(new Uint32Array(3));
  return Array.from(words, (word) => word.toString(36)).join("");
}

export function newConversation(system) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    system,
    messages: { [ROOT]: { id: ROOT, parent: null, children: [] } },
    chosen: {},
  };
}

/** Adds a message below `parent`, chooses it, and returns it. */
export function addMessage(conversation, parent, fields) {
  const message = { id: newId(), parent, children: [], created: Date.now(), ...fields };
  conversation.messages[message.id] = message;
  conversation.messages[parent].children.push(message.id);
  conversation.chosen[parent] = message.id;
  conversation.updated = message.created;
  return message;
}

/** The messages that are shown, from first to last. */
export function path(conversation) {
  const shown = [];
  let at = childOf(conversation, ROOT);
  while (at) {
    shown.push(at);
    at = childOf(conversation, at.id);
  }
  return shown;
}

function childOf(conversation, id) {
  const { children } = conversation.messages[id];
  const chosen = conversation.chosen[id];
  const child = children.includes(chosen) ? chosen : children[children.length - 1];
  return child === undefined ? null : conversation.messages[child];
}

/** The id of the parent of the next message. */
export function lastId(conversation) {
  const shown = path(conversation);
  return shown.length > 0 ? shown[shown.length - 1].id : ROOT;
}

/** The messages from the first to `message`, both included. */
export function branchTo(conversation, message) {
  const found = [];
  let at = message;
  while (at && at.id !== ROOT) {
    found.push(at);
    at = conversation.messages[at.parent];
  }
  return found.reverse();
}

/** Position of a message among its siblings, from 0, and their number. */
export function place(conversation, message) {
  const { children } = conversation.messages[message.parent];
  return { index: children.indexOf(message.id), count: children.length };
}

/** Shows the sibling at an offset of `by`. */
export function showSibling(conversation, message, by) {
  const { children } = conversation.messages[message.parent];
  const index = children.indexOf(message.id) + by;
  if (index >= 0 && index < children.length) conversation.chosen[message.parent] = children[index];
}

export function removeMessage(conversation, message) {
  const below = [message];
  while (below.length > 0) {
    const next = below.pop();
    below.push(...next.children.map((id) => conversation.messages[id]));
    delete conversation.messages[next.id];
    delete conversation.chosen[next.id];
  }
  const siblings = conversation.messages[message.parent].children;
  siblings.splice(siblings.indexOf(message.id), 1);
}

/** The title: the user's, or the start of the first message. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = path(conversation)[0];
  const names = first?.attachments?.map((file) => file.name).join(", ");
  const text = (first?.content || names || "").trim().split("\n")[0];
  if (!text) return "New conversation";
  return text.length > 60 ? `${text.slice(0, 59)}\u2026` : text;
}

/** A message of the request: its text, with attached files before it. */
export function requestText(message) {
  const files = (message.attachments ?? []).map((file) => {
    const fence = "`".repeat(Math.max(3, longestRun(file.text) + 1));
    return `File \`${file.name}\`:\n${fence}\n${file.text}\n${fence}\n\n`;
  });
  return files.join("") + message.content;
}

function longestRun(text) {
  let longest = 0;
  for (const run of text.match(/`+/g) ?? []) longest = Math.max(longest, run.length);
  return longest;
}

/** The messages of a request whose last message is `message`. */
export function requestMessages(conversation, message) {
  const messages = branchTo(conversation, message).map((m) => ({ role: m.role, content: requestText(m) }));
  if (conversation.system.trim()) messages.unshift({ role: "system", content: conversation.system });
  return messages;
}

export function searchText(conversation) {
  const texts = Object.values(conversation.messages).map((message) => message.content ?? "");
  return [titleOf(conversation), ...texts].join("\n").toLowerCase();
}

/**
 * The conversations of an exported file, copied field by field, with new ids, so that nothing
 * unexpected gets in and nothing is overwritten. Throws an Error with a message for the user.
 */
export function fromJson(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("the file is not JSON");
  }
  const list = data?.format === "thermocline-conversations" ? data.conversations : null;
  if (!Array.isArray(list)) throw new Error("the file has no Thermocline conversations");
  return list.map(readConversation);
}

export function toJson(conversations) {
  const data = { format: "thermocline-conversations", version: 1, conversations };
  return JSON.stringify(data, null, 1);
}

function text(value) {
  return typeof value === "string" ? value : "";
}

function time(value) {
  return Number.isFinite(value) ? value : Date.now();
}

function readConversation(data) {
  const conversation = newConversation(text(data?.system));
  conversation.title = text(data?.title).slice(0, 200);
  const messages = new Map(Object.entries(data?.messages ?? {}));
  if (messages.size > MAX_MESSAGES) throw new Error(`a conversation has more than ${MAX_MESSAGES} messages`);
  // Add each message once and after its parent, so that cycles and orphans are left out.
  const copies = new Map([[ROOT, ROOT]]);
  const queue = [ROOT];
  while (queue.length > 0) {
    const from = queue.shift();
    const children = messages.get(from)?.children;
    for (const id of Array.isArray(children) ? children : []) {
      const source = messages.get(id);
      if (copies.has(id) || !ROLES.includes(source?.role)) continue;
      copies.set(id, addMessage(conversation, copies.get(from), readMessage(source)).id);
      queue.push(id);
    }
  }
  for (const [from, to] of copies) {
    const chosen = copies.get(data?.chosen?.[from]);
    if (conversation.messages[to].children.includes(chosen)) conversation.chosen[to] = chosen;
  }
  conversation.created = time(data?.created);
  conversation.updated = time(data?.updated);
  return conversation;
}

function readMessage(source) {
  const files = Array.isArray(source.attachments) ? source.attachments : [];
  return {
    role: source.role,
    content: text(source.content),
    reasoning: text(source.reasoning),
    model: text(source.model),
    attachments: files.map((file) => ({ name: text(file?.name), text: text(file?.text) })),
    created: time(source.created),
  };
}
