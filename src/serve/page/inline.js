// Inline Markdown as DOM nodes. Only this file makes links in messages, and text only becomes text
// nodes, so HTML in a message is shown, never parsed.
//
// To take linear time even for hostile input, a scanner remembers delimiters that do not occur again,
// and tries a fixed number of candidates for an end.

import { el } from "./dom.js";
import { mathNode } from "./math.js";

const MAX_DEPTH = 12;
/** Maximum number of candidates that are tried for the end of an emphasis. */
const MAX_TRIES = 40;
/** Longest link text or address, and longest formula within a line, in characters. */
const MAX_LINK = 1000;
const MAX_MATH = 2000;
const PROTOCOLS = ["http:", "https:", "mailto:"];
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;
const BARE_URL = /https?:\/\/[^\s<>"'`]+/y;

/** The URL of an absolute address with http, https or mailto; null for other addresses. */
export function safeUrl(address) {
  let url;
  try {
    url = new URL(address.trim());
  } catch {
    return null;
  }
  return PROTOCOLS.includes(url.protocol) ? url.href : null;
}

/** A link that sends no referrer and gives the other page no access to this one. */
function link(address, title, children) {
  const href = safeUrl(address);
  if (href === null) return null;
  const props = { href, rel: "noopener noreferrer nofollow", target: "_blank" };
  return el("a", title ? { ...props, title } : props, ...children);
}

export function inline(text, depth = 0) {
  return new Scanner(text, depth).run();
}

class Scanner {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.at = 0;
    /** Plain text since the last node. */
    this.plain = "";
    this.nodes = [];
    /** Delimiters that do not occur in the rest of the text. */
    this.absent = new Set();
  }

  run() {
    if (this.depth > MAX_DEPTH) return [document.createTextNode(this.text)];
    while (this.at < this.text.length) {
      const node = this.special(this.text[this.at]);
      if (node) {
        this.flush();
        this.nodes.push(node);
      } else {
        this.plain += this.text[this.at];
        this.at += 1;
      }
    }
    this.flush();
    return this.nodes;
  }

  flush() {
    if (this.plain) this.nodes.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  /** The node that starts here, with `at` moved past it; null for plain text. */
  special(char) {
    switch (char) {
      case "\\": return this.escape();
      case "`": return this.code();
      case "$": return this.dollars();
      case "*":
      case "_":
      case "~": return this.emphasis(char);
      case "!": return this.text[this.at + 1] === "[" ? this.reference(true) : null;
      case "[": return this.reference(false);
      case "<": return this.angle();
      case "h": return this.bare();
      case "\n": return this.lineBreak();
      default: return null;
    }
  }

  /** Position of a delimiter from `from` on; -1 without searching if an earlier search failed. */
  find(delimiter, from) {
    if (this.absent.has(delimiter)) return -1;
    const found = this.text.indexOf(delimiter, from);
    if (found < 0) this.absent.add(delimiter);
    return found;
  }

  lineBreak() {
    this.plain = this.plain.trimEnd();
    this.at += 1;
    return el("br");
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "(" || next === "[") {
      const node = this.math(this.at + 2, next === "(" ? "\\)" : "\\]", next === "[");
      if (node) return node;
    }
    if (next === "\n") {
      this.at += 2;
      return el("br");
    }
    if (PUNCTUATION.test(next)) {
      this.plain += next;
      this.at += 2;
      return document.createTextNode("");
    }
    return null;
  }

  code() {
    let length = 1;
    while (this.text[this.at + length] === "`") length += 1;
    const fence = "`".repeat(length);
    let end = this.find(fence, this.at + length);
    for (let tries = 0; end >= 0 && this.text[end + length] === "`"; tries += 1) {
      while (this.text[end + length] === "`") end += 1;
      end = tries < MAX_TRIES ? this.text.indexOf(fence, end + length) : -1;
    }
    if (end < 0) {
      this.plain += fence;
      this.at += length;
      return document.createTextNode("");
    }
    let content = this.text.slice(this.at + length, end).replaceAll("\n", " ");
    if (/^ .*[^ ].* $/.test(content)) content = content.slice(1, -1);
    this.at = end + length;
    return el("code", { textContent: content });
  }

  dollars() {
    const double = this.text[this.at + 1] === "$";
    const begin = this.at + (double ? 2 : 1);
    if (double) return this.math(begin, "$$", true);
    // A price is not a formula: no space inside the dollars, no digit after them.
    if (/\s/.test(this.text[begin] ?? " ")) return null;
    for (let end = begin, tries = 0; tries < MAX_TRIES; tries += 1) {
      end = this.find("$", end + 1);
      if (end < 0 || end - begin > MAX_MATH) return null;
      const ends = !/[\s\\]/.test(this.text[end - 1]) && !/[\d$]/.test(this.text[end + 1] ?? "");
      if (ends) return this.formula(begin, end, 1, false);
    }
    return null;
  }

  math(begin, close, display) {
    const end = this.find(close, begin);
    if (end < 0 || end === begin || end - begin > MAX_MATH) return null;
    return this.formula(begin, end, close.length, display);
  }

  formula(begin, end, closeLength, display) {
    this.at = end + closeLength;
    return mathNode(this.text.slice(begin, end), display);
  }

  emphasis(char) {
    let length = 1;
    while (this.text[this.at + length] === char) length += 1;
    const run = char.repeat(length);
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + length] ?? " ";
    const opens = !/\s/.test(after) && (char !== "_" || !WORD.test(before));
    const fits = char === "~" ? length === 2 : length <= 3;
    const end = opens && fits ? this.emphasisEnd(run) : -1;
    if (end < 0) {
      this.plain += run;
      this.at += length;
      return document.createTextNode("");
    }
    const inner = this.text.slice(this.at + length, end);
    this.at = end + length;
    const children = inline(inner, this.depth + 1);
    if (char === "~") return el("del", {}, ...children);
    if (length === 1) return el("em", {}, ...children);
    const strong = el("strong", {}, ...children);
    return length === 2 ? strong : el("em", {}, strong);
  }

  emphasisEnd(run) {
    const char = run[0];
    let end = this.at + run.length;
    for (let tries = 0; tries < MAX_TRIES; tries += 1) {
      end = this.find(run, end + 1);
      if (end < 0) return -1;
      let found = run.length;
      while (this.text[end + found] === char) found += 1;
      const after = this.text[end + found] ?? " ";
      const closes = !/[\s\\]/.test(this.text[end - 1]) && (char !== "_" || !WORD.test(after));
      // Skip longer runs, as in `*a **b** c*`; a run of three may also close an inner one: `**a *b***`.
      if (closes && (found === run.length || found === 3)) return end + found - run.length;
      end += found - 1;
    }
    return -1;
  }

  /** `[text](address "title")`; with a `!` before it an image, which is shown as a link. */
  reference(image) {
    const begin = this.at + (image ? 2 : 1);
    const middle = this.bracketEnd(begin);
    if (middle < 0 || this.text[middle + 1] !== "(") return null;
    const end = this.addressEnd(middle + 2);
    if (end < 0) return null;
    const inside = this.text.slice(middle + 2, end).trim();
    const split = inside.search(/\s["'(]/);
    const title = split < 0 ? "" : inside.slice(split + 2, -1);
    const address = (split < 0 ? inside : inside.slice(0, split)).replace(/^<|>$/g, "");
    // Check this first: a rejected link is scanned again as text, and nested links would double the work.
    if (safeUrl(address) === null) return null;
    const label = this.text.slice(begin, middle);
    const children = image ? [`Image: ${label || address}`] : inline(label, this.depth + 1);
    this.at = end + 1;
    return link(address, title, children);
  }

  bracketEnd(begin) {
    if (this.find("](", begin) < 0) return -1;
    for (let at = begin, open = 1; at < this.text.length && at - begin < MAX_LINK; at += 1) {
      const char = this.text[at];
      if (char === "\\") at += 1;
      else if (char === "[") open += 1;
      else if (char === "]") {
        open -= 1;
        if (open === 0) return at;
      }
    }
    return -1;
  }

  addressEnd(begin) {
    for (let at = begin, open = 1; at < this.text.length && at - begin < MAX_LINK; at += 1) {
      const char = this.text[at];
      if (char === "\n") return -1;
      if (char === "(") open += 1;
      else if (char === ")") {
        open -= 1;
        if (open === 0) return at;
      }
    }
    return -1;
  }

  /** `<https://...>`; also `<br>`, which models write in table cells. */
  angle() {
    const end = this.find(">", this.at);
    if (end < 0 || end - this.at > MAX_LINK) return null;
    const inside = this.text.slice(this.at + 1, end);
    if (/^br\s*\/?$/i.test(inside)) {
      this.at = end + 1;
      return el("br");
    }
    if (!/^(https?:\/\/|mailto:)\S+$/i.test(inside)) return null;
    const node = link(inside, "", [inside]);
    if (node) this.at = end + 1;
    return node;
  }

  bare() {
    if (!this.text.startsWith("http", this.at) || WORD.test(this.text[this.at - 1] ?? " ")) return null;
    BARE_URL.lastIndex = this.at;
    let found = BARE_URL.exec(this.text)?.[0];
    if (!found) return null;
    // Punctuation at the end belongs to the sentence, and a bracket to the text around it.
    found = found.replace(/[.,;:!?*_~\]]+$/, "");
    if (found.endsWith(")") && !found.includes("(")) found = found.slice(0, -1);
    const node = link(found, "", [found]);
    if (node) this.at += found.length;
    return node;
  }
}
