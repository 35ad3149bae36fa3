// Checks of the modules that need no browser: `node tests/page/unit.mjs`. scripts/check_page runs it.

import assert from "node:assert/strict";
import test from "node:test";

import { ACCENTS, ALPHABETS, FENCES, LETTERS, OPERATORS } from "../../src/serve/page/symbols.js";
import * as tree from "../../src/serve/page/tree.js";

function talk() {
  const conversation = tree.newConversation("be brief");
  const question = tree.addMessage(conversation, tree.lastId(conversation), { role: "user", content: "a" });
  const reply = tree.addMessage(conversation, question.id, { role: "assistant", content: "b" });
  return { conversation, question, reply };
}

const texts = (conversation) => tree.path(conversation).map((message) => message.content).join(" ");

test("an edited message makes a branch, and both stay", () => {
  const { conversation, question } = talk();
  const edited = tree.addMessage(conversation, question.parent, { role: "user", content: "c" });
  tree.addMessage(conversation, edited.id, { role: "assistant", content: "d" });
  assert.equal(texts(conversation), "c d");
  assert.deepEqual(tree.place(conversation, edited), { index: 1, count: 2 });
  tree.turn(conversation, edited, -1);
  assert.equal(texts(conversation), "a b");
  tree.turn(conversation, question, -1);
  assert.equal(texts(conversation), "a b", "there is no version before the first");
});

test("a deleted message takes those below it along", () => {
  const { conversation, question } = talk();
  tree.removeMessage(conversation, question);
  assert.equal(tree.path(conversation).length, 0);
  assert.equal(Object.keys(conversation.messages).length, 1);
});

test("a request has the system prompt, attachments, and ends with the question", () => {
  const { conversation, reply } = talk();
  const attachments = [{ name: "a.md", text: "```\nx\n```" }];
  const next = tree.addMessage(conversation, reply.id, { role: "user", content: "e", attachments });
  const messages = tree.requestMessages(conversation, next);
  assert.deepEqual(messages.map((message) => message.role), ["system", "user", "assistant", "user"]);
  assert.ok(messages[3].content.startsWith("File `a.md`:\n````\n```"), "the fence is longer than any inside");
  assert.ok(messages[3].content.endsWith("e"));
});

test("what was exported comes back the same, with new ids", () => {
  const { conversation, question } = talk();
  const edited = tree.addMessage(conversation, question.parent, { role: "user", content: "c" });
  tree.turn(conversation, edited, -1);
  const [copy] = tree.fromJson(tree.toJson([conversation]));
  assert.notEqual(copy.id, conversation.id);
  assert.equal(texts(copy), "a b");
  assert.equal(copy.system, "be brief");
  assert.equal(Object.keys(copy.messages).length, Object.keys(conversation.messages).length);
});

test("foreign and malformed files are refused or cleaned", () => {
  assert.throws(() => tree.fromJson("{"), /not JSON/);
  assert.throws(() => tree.fromJson("[]"), /no Thermocline conversations/);
  const messages = {
    root: { children: ["a", "missing", "root", "evil"] },
    a: { role: "user", content: { toString: 1 }, children: ["a", "root", "b"] },
    b: { role: "assistant", content: "x", children: ["a"] },
    evil: { role: "system", content: "x", children: [] },
    orphan: { role: "user", content: "x", children: [] },
  };
  const file = { format: "thermocline-conversations", conversations: [{ id: 1, title: 7, messages, chosen: { root: "b" } }] };
  const [copy] = tree.fromJson(JSON.stringify(file));
  assert.equal(Object.keys(copy.messages).length, 3, "the root, a and b");
  assert.equal(texts(copy), " x");
  assert.equal(copy.title, "");
});

test("symbols are single characters", () => {
  for (const symbols of [LETTERS, OPERATORS, FENCES, ACCENTS]) {
    for (const [name, symbol] of symbols) assert.equal(Array.from(symbol ?? "").length, 1, name);
  }
  for (const [name, starts] of ALPHABETS) assert.equal(starts.length, 3, name);
});
