// A conversation as Markdown: the shown branch, with a heading per message. An import restores it
// except for other branches, reasoning, models and times, which only JSON has.

import { addMessage, lastId, newConversation, path, requestText, titleOf } from "./tree.js";

/** A heading of a message, or a line of a message that looks like one, escaped with backslashes. */
const HEADING = /^(\\*)## (System|User|Assistant)$/;
const MAX_MESSAGES = 20_000;

/** Lines of a message that look like headings get a backslash, which Markdown does not show. */
function escape(text) {
  return text.split("\n").map((line) => (HEADING.test(line) ? `\\${line}` : line)).join("\n");
}

function unescape(lines) {
  return lines.map((line) => (HEADING.test(line) ? line.slice(1) : line)).join("\n");
}

export function toMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}\n`];
  if (conversation.system.trim()) parts.push(`## System\n\n${escape(conversation.system)}\n`);
  for (const message of path(conversation)) {
    const name = message.role === "user" ? "User" : "Assistant";
    parts.push(`## ${name}\n\n${escape(requestText(message))}\n`);
  }
  return parts.join("\n");
}

/** The conversation of an exported Markdown file. Throws an Error with a message for the user. */
export function fromMarkdown(source) {
  const first = source.split("\n", 1)[0];
  const lines = (first.endsWith("\r") ? source.replaceAll("\r\n", "\n") : source).split("\n");
  const [title, sections] = sectionsOf(lines);
  if (!sections.some((section) => section.name !== "System")) {
    throw new Error("the file has no headings `## User` or `## Assistant`");
  }
  if (sections.length > MAX_MESSAGES) throw new Error(`a conversation has more than ${MAX_MESSAGES} messages`);
  const conversation = newConversation("");
  for (const [i, { name, body }] of sections.entries()) {
    const text = unescape(trimmed(body));
    if (name === "System" && i > 0) throw new Error("`## System` is not the first heading");
    if (name === "System") conversation.system = text;
    else if (name === "User") addMessage(conversation, lastId(conversation), userMessage(text));
    else addMessage(conversation, lastId(conversation), { role: "assistant", content: text, reasoning: "", model: "" });
  }
  // Do not store a title that is derived from the first message.
  if (title !== titleOf(conversation)) conversation.title = title.slice(0, 200);
  return conversation;
}

/** The title, and the lines below each heading. */
function sectionsOf(lines) {
  let title = "";
  const sections = [];
  for (const [i, line] of lines.entries()) {
    const [, slashes, name] = line.match(HEADING) ?? [];
    if (slashes === "") sections.push({ name, body: [] });
    else if (sections.length > 0) sections[sections.length - 1].body.push(line);
    else if (i === 0 && line.startsWith("# ")) title = line.slice(2);
    else if (line.trim() !== "") throw new Error(`line ${i + 1} is not below a heading \`## User\` or \`## Assistant\``);
  }
  return [title, sections];
}

/** The lines of a section without the empty ones that the export puts around them. */
function trimmed(body) {
  const from = body[0] === "" ? 1 : 0;
  return body.slice(from, body.length > from && body[body.length - 1] === "" ? -1 : undefined);
}

/** A message of the user: attached files come before its text, each in a fence. */
function userMessage(text) {
  const attachments = [];
  let rest = text;
  for (;;) {
    const [head, name, fence] = rest.match(/^File `([^\n]*)`:\n(`{3,})\n/) ?? [];
    if (head === undefined) break;
    const end = rest.indexOf(`\n${fence}\n\n`, head.length - 1);
    if (end < 0) break;
    attachments.push({ name, text: rest.slice(head.length, end) });
    rest = rest.slice(end + fence.length + 3);
  }
  return { role: "user", content: rest, attachments };
}
