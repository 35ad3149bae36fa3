// Tests of the page's modules that need no browser: `node tests/page/unit.mjs`. scripts/check_page runs it.

import assert from "node:assert/strict";
import test from "node:test";

import { ACCENTS, ALPHABETS, FENCES, LETTERS, OPERATORS } from "../../src/serve/page/symbols.js";
import { cellValues, firedSummary, firedText, skipsNeurons } from "../../src/serve/page/cells.js";
import { fromMarkdown, toMarkdown } from "../../src/serve/page/transcript.js";
import * as tree from "../../src/serve/page/tree.js";

function sample() {
  const conversation = tree.newConversation("be brief");
  const question = tree.addMessage(conversation, tree.lastId(conversation), { role: "user", content: "a" });
  const reply = tree.addMessage(conversation, question.id, { role: "assistant", content: "b" });
  return { conversation, question, reply };
}

const texts = (conversation) => tree.path(conversation).map((message) => message.content).join(" ");

test("an edited message makes a branch, and both stay", () => {
  const { conversation, question } = sample();
  const edited = tree.addMessage(conversation, question.parent, { role: "user", content: "c" });
  tree.addMessage(conversation, edited.id, { role: "assistant", content: "d" });
  assert.equal(texts(conversation), "c d");
  assert.deepEqual(tree.place(conversation, edited), { index: 1, count: 2 });
  tree.showSibling(conversation, edited, -1);
  assert.equal(texts(conversation), "a b");
  tree.showSibling(conversation, question, -1);
  assert.equal(texts(conversation), "a b", "there is no version before the first");
});

test("deleting a message deletes its replies", () => {
  const { conversation, question } = sample();
  tree.removeMessage(conversation, question);
  assert.equal(tree.path(conversation).length, 0);
  assert.equal(Object.keys(conversation.messages).length, 1);
});

test("a request has the system prompt, attachments, and ends with the question", () => {
  const { conversation, reply } = sample();
  const attachments = [{ name: "a.md", text: "```\nx\n```" }];
  const next = tree.addMessage(conversation, reply.id, { role: "user", content: "e", attachments });
  const messages = tree.requestMessages(conversation, next);
  assert.deepEqual(messages.map((message) => message.role), ["system", "user", "assistant", "user"]);
  assert.ok(messages[3].content.startsWith("File `a.md`:\n````\n```"), "the fence is longer than any inside");
  assert.ok(messages[3].content.endsWith("e"));
});

test("an export is imported with new ids", () => {
  const { conversation, question } = sample();
  const edited = tree.addMessage(conversation, question.parent, { role: "user", content: "c" });
  tree.showSibling(conversation, edited, -1);
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

test("cells say which neurons and experts fired", () => {
  const layers = [{ n_neurons: 64, n_experts: null, use: [1, 0] }, { n_neurons: 64, n_experts: 8 }, { n_neurons: 0 }];
  const facts = { is_sparse: true, layers };
  const fired = { tokens: 1, layers: ["f0810003", "0f000f00", null] };
  assert.deepEqual(cellValues(fired, 1).filter((value) => value > 0), [1, 1]);
  assert.equal(cellValues(fired, 0)[2], 8 / 15);
  for (const broken of [null, { layers: [] }, { layers: [7] }, { layers: ["xyz"] }]) assert.equal(cellValues(broken, 0), null);
  assert.equal(cellValues(fired, 2), null);
  const hot = "4 of 8 groups of neurons fired for the token just written: 1 of the 2 hottest, 1 of the 2 coldest";
  assert.equal(firedText(facts, fired, 0), hot);
  assert.equal(firedText(facts, { ...fired, tokens: 3 }, 1), "2 of 8 experts fired for the 3 tokens just written");
  assert.equal(firedSummary(facts, fired), "6 of 16 groups fired for the token just written.");
  assert.equal(firedSummary(facts, null), "");
  assert.ok(skipsNeurons({ ...facts, is_sparse: false }), "a token uses some experts");
  assert.ok(!skipsNeurons({ is_sparse: false, layers: [layers[0]] }));
});

/** The parts of a conversation that Markdown stores. */
function shown(conversation) {
  const messages = tree.path(conversation).map(({ role, content, attachments }) => [role, content, attachments ?? []]);
  return { system: conversation.system, title: tree.titleOf(conversation), named: conversation.title, messages };
}

test("a Markdown export is imported unchanged", () => {
  const odd = ["", "\n", "a\n\n", "\n\n  a", "## User", "x\n\\## User\n## Assistant\n\\\\## System\ny", "# a\n## b",
    "```\n## User\n```", "File `a`:\n```\nno end", "line\r\nline", "\u2028 \u0000 <b>", " ## User", "## User "];
  const files = [{ name: "a`b.md", text: "```\n## User\n````\n" }, { name: "", text: "" }, { name: "c", text: "File `d`:\n```\n" }];
  for (const [i, text] of odd.entries()) {
    for (const system of ["", "Be brief.\n## User\n"]) {
      for (const attachments of [[], files, [files[i % 3]]]) {
        const conversation = tree.newConversation(system);
        if (i % 2) conversation.title = "# A title";
        for (const [role, content] of [["user", text], ["assistant", odd[(i + 3) % odd.length]], ["assistant", text], ["user", ""]]) {
          const fields = role === "user" ? { role, content, attachments } : { role, content };
          tree.addMessage(conversation, tree.lastId(conversation), fields);
        }
        const markdown = toMarkdown(conversation);
        assert.deepEqual(shown(fromMarkdown(markdown)), shown(conversation), markdown);
        assert.equal(toMarkdown(fromMarkdown(markdown)), markdown);
      }
    }
  }
});

test("other Markdown is refused with the reason", () => {
  assert.throws(() => fromMarkdown(""), /no headings/);
  assert.throws(() => fromMarkdown("# A\n\n## System\n\nx\n"), /no headings/);
  assert.throws(() => fromMarkdown("# A\n\nwords\n\n## User\n\nx\n"), /line 3 is not below a heading/);
  assert.throws(() => fromMarkdown("## User\n\nx\n\n## System\n\ny\n"), /not the first heading/);
  const windows = fromMarkdown("# A\r\n\r\n## User\r\n\r\nx\r\ny\r\n");
  assert.deepEqual(shown(windows).messages, [["user", "x\ny", []]]);
  assert.deepEqual(shown(fromMarkdown("## User\nx\n## Assistant\ny")).messages, [["user", "x", []], ["assistant", "y", []]]);
});
