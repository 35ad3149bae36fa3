// Markdown as DOM nodes: headings, lists, tables, quotes, code, rules, formulas, paragraphs. HTML is
// shown as text.

import { copyText, el, say } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";
import { mathNode } from "./math.js";

/** Maximum nesting of quotes and lists. Deeper ones are shown as plain text. */
const MAX_DEPTH = 10;
/** Maximum length of a text in characters. Longer texts are shown as plain text. */
const MAX_TEXT = 400_000;
const MAX_COLUMNS = 64;

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const INDENTED = /^(?: {4}|\t)/;

/** Sources of the blocks that an element shows, so that unchanged first blocks are not rebuilt. */
const shown = new WeakMap();

/** Shows `text` in `target`. Nodes of the unchanged blocks before the first change stay. */
export function render(target, text) {
  if (text.length > MAX_TEXT) {
    shown.delete(target);
    target.replaceChildren(el("pre", { className: "plain", textContent: text }));
    return;
  }
  const lines = text.replaceAll("\r\n", "\n").replaceAll("\0", "\uFFFD").split("\n");
  const blocks = split(lines);
  const before = shown.get(target) ?? [];
  let same = 0;
  while (same < before.length && before[same] === blocks[same]?.source) same += 1;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const block of blocks.slice(same)) target.append(build(block, 0));
  shown.set(target, blocks.map((block) => block.source));
}

/** Splits lines into blocks with a `type` and the `source` text. */
function split(lines) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const block = blockAt(lines, at);
    block.source = `${block.type}\n${lines.slice(at, block.end).join("\n")}`;
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function blockAt(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  if (HEADING.test(line)) return { type: "heading", lines: [line], end: at + 1 };
  if (RULE.test(line)) return { type: "rule", end: at + 1 };
  if (QUOTE.test(line)) return quoted(lines, at);
  const item = ITEM.exec(line);
  if (item && item[1].length < 4) return list(lines, at, item);
  if (isTable(lines, at)) return table(lines, at);
  const formula = displayMath(lines, at);
  if (formula) return formula;
  if (INDENTED.test(line)) return indented(lines, at);
  return paragraph(lines, at);
}

/** Whether a block other than a paragraph starts here, which ends a paragraph before it. */
function interrupts(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  const starts = item && item[1].length < 4 && line.length > item[0].length && !/^[2-9]|^1\d/.test(item[2]);
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || starts
    || isTable(lines, at) || /^ {0,3}(\$\$|\\\[)/.test(line);
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !interrupts(lines, end)) end += 1;
  return { type: "paragraph", lines: lines.slice(at, end).map((line) => line.trimStart()), end };
}

function fenced(lines, at, [, mark, info]) {
  const indent = lines[at].search(/\S/);
  const isEnd = (line) => {
    const text = line.trim();
    return text.length >= mark.length && text === mark[0].repeat(text.length);
  };
  let end = at + 1;
  while (end < lines.length && !isEnd(lines[end])) end += 1;
  const code = lines.slice(at + 1, end).map((line) => unindent(line, indent));
  return { type: "code", language: info.trim().split(/\s/)[0], lines: code, end: Math.min(end + 1, lines.length) };
}

function unindent(line, most) {
  let n = 0;
  while (n < most && line[n] === " ") n += 1;
  return line.slice(n);
}

function indented(lines, at) {
  let end = at + 1;
  while (end < lines.length && (INDENTED.test(lines[end]) || lines[end].trim() === "")) end += 1;
  while (lines[end - 1].trim() === "") end -= 1;
  return { type: "code", language: "", lines: lines.slice(at, end).map((line) => line.replace(INDENTED, "")), end };
}

function quoted(lines, at) {
  let end = at + 1;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return { type: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")), end };
}

/** `$$ ... $$` or `\[ ... \]` over one or several lines; null if it does not end. */
function displayMath(lines, at) {
  const open = /^ {0,3}(\$\$|\\\[)/.exec(lines[at]);
  if (!open) return null;
  const close = open[1] === "$$" ? "$$" : "\\]";
  let text = lines[at].slice(open[0].length);
  for (let end = at; ; ) {
    const found = text.indexOf(close, text.length - lines[end].length - 1);
    if (found >= 0) {
      const rest = text.slice(found + close.length).trim();
      return rest === "" ? { type: "math", text: text.slice(0, found), end: end + 1 } : null;
    }
    end += 1;
    if (end >= lines.length || end - at > 100) return null;
    text += `\n${lines[end]}`;
  }
}

function list(lines, at, first) {
  const base = first[1].length;
  const ordered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    const same = item && item[1].length <= base + 1 && /\d/.test(item[2]) === ordered && !RULE.test(lines[end]);
    if (!same) break;
    const found = listItem(lines, end, item, base);
    items.push(found.lines);
    end = found.end;
    const blank = blankEnd(lines, end);
    // A blank line between two items is part of the list.
    if (blank > end && !ITEM.test(lines[blank] ?? "")) break;
    end = blank;
  }
  while (lines[end - 1].trim() === "") end -= 1;
  return { type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, end };
}

function blankEnd(lines, at) {
  let end = at;
  while (end < lines.length && lines[end].trim() === "") end += 1;
  return end;
}

/** The lines of one item without its mark: indented by two more spaces, or lazy continuation lines. */
function listItem(lines, at, [mark, , sign], base) {
  const width = Math.min(mark.length, base + sign.length + 4);
  const own = [lines[at].slice(width)];
  let end = at + 1;
  while (end < lines.length) {
    const next = blankEnd(lines, end);
    if (next >= lines.length) break;
    const indent = lines[next].search(/\S/);
    const belongs = indent >= base + 2;
    const lazy = next === end && !belongs && !ITEM.test(lines[next]) && !interrupts(lines, next);
    if (!belongs && !lazy) break;
    for (; end < next; end += 1) own.push("");
    own.push(unindent(lines[next], width));
    end = next + 1;
  }
  return { lines: own, end };
}

/** The cells of a row. Bars after a backslash and in code do not end a cell. */
function cells(line) {
  const text = line.trim().replace(/^\|/, "").replace(/([^\\])\|$/, "$1");
  const found = [""];
  let inCode = false;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "`") inCode = !inCode && text.indexOf("`", at + 1) > 0;
    if (text[at] === "\\" && text[at + 1] === "|") {
      found[found.length - 1] += "|";
      at += 1;
    } else if (text[at] === "|" && !inCode) found.push("");
    else found[found.length - 1] += text[at];
  }
  return found.map((cell) => cell.trim());
}

function isTable(lines, at) {
  const below = lines[at + 1];
  if (!lines[at].includes("|") || below === undefined || !below.includes("-")) return false;
  if (!/^[-:| \t]+$/.test(below)) return false;
  const marks = cells(below);
  return marks.every((cell) => /^:?-+:?$/.test(cell)) && marks.length === cells(lines[at]).length
    && marks.length <= MAX_COLUMNS;
}

function table(lines, at) {
  const align = cells(lines[at + 1]).map((mark) => {
    if (!mark.endsWith(":")) return "";
    return mark.startsWith(":") ? "center" : "end";
  });
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim() !== "") end += 1;
  return { type: "table", align, head: cells(lines[at]), rows: lines.slice(at + 2, end).map(cells), end };
}

function buildAll(lines, depth) {
  if (depth > MAX_DEPTH) return [el("pre", { className: "plain", textContent: lines.join("\n") })];
  return split(lines).map((block) => build(block, depth));
}

function build(block, depth) {
  switch (block.type) {
    case "heading": return heading(block.lines[0]);
    case "rule": return el("hr");
    case "code": return codeBlock(block.language, block.lines.join("\n"));
    case "quote": return el("blockquote", {}, ...buildAll(block.lines, depth + 1));
    case "math": return el("div", { className: "math-block", tabIndex: 0, role: "region", "aria-label": "Formula" }, mathNode(block.text, true));
    case "list": return listNode(block, depth);
    case "table": return tableNode(block);
    default: return el("p", {}, ...inline(block.lines.join("\n")));
  }
}

/** Headings of a message have lower levels than the headings of the page. */
function heading(line) {
  const level = HEADING.exec(line)[1].length;
  let text = line.trim().slice(level).trim();
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  if (end === 0 || text[end - 1] === " ") text = text.slice(0, end).trim();
  return el(`h${Math.min(level + 2, 6)}`, { data: { level } }, ...inline(text));
}

function listNode(block, depth) {
  const node = el(block.ordered ? "ol" : "ul");
  if (block.ordered && block.start !== 1) node.start = block.start;
  for (const lines of block.items) {
    const task = /^\[([ xX])\] /.exec(lines[0]);
    const own = task ? [lines[0].slice(4), ...lines.slice(1)] : lines;
    const nodes = buildAll(own, depth + 1);
    const item = el("li");
    if (task) {
      const done = task[1] !== " ";
      item.className = "task";
      item.append(el("span", { role: "img", "aria-label": done ? "done" : "open" }, done ? "\u2611 " : "\u2610 "));
    }
    // An item of one paragraph needs no paragraph around it.
    if (nodes[0]?.tagName === "P") item.append(...nodes[0].childNodes, ...nodes.slice(1));
    else item.append(...nodes);
    node.append(item);
  }
  return node;
}

function tableNode({ align, head, rows }) {
  const row = (tag, texts) => {
    const made = align.map((to, i) => {
      const cell = el(tag, {}, ...inline(texts[i] ?? ""));
      if (to) cell.className = `to-${to}`;
      if (tag === "th") cell.scope = "col";
      return cell;
    });
    return el("tr", {}, ...made);
  };
  const node = el("table", {},
    el("thead", {}, row("th", head)),
    el("tbody", {}, ...rows.map((texts) => row("td", texts))));
  return el("div", { className: "table-wrap", tabIndex: 0, role: "region", "aria-label": "Table" }, node);
}

export function codeBlock(language, code) {
  const copy = el("button", {
    type: "button",
    className: "copy-code",
    textContent: "Copy",
    onclick: async () => {
      const done = await copyText(code);
      copy.textContent = done ? "Copied" : "Not copied";
      say(done ? "Code copied" : "The browser did not allow copying");
      setTimeout(() => {
        copy.textContent = "Copy";
      }, 1500);
    },
  });
  const label = language || "text";
  copy.setAttribute("aria-label", `Copy ${label} code`);
  const body = el("code", {}, ...highlight(code, language));
  return el("div", { className: "code-block" },
    el("div", { className: "code-head" }, el("span", { textContent: label.slice(0, 30) }), copy),
    el("pre", { tabIndex: 0, role: "region", "aria-label": `${label} code` }, body));
}
