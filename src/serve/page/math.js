// TeX formulas as MathML, for the commands that models write. An unknown command is shown as its
// source, and a formula that cannot be read is shown as code.

import { el } from "./dom.js";
import {
  ACCENTS, ALPHABETS, ELSEWHERE, ENVIRONMENTS, FENCES, FUNCTIONS, INTEGRALS, LARGE, LETTERS, LIMITS, OPERATORS, SPACES,
} from "./symbols.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_DEPTH = 40;
const MAX_TEXT = 5000;
const TOKEN = /\\(?:[A-Za-z]+\*?|[^])|\s+|\d+(?:\.\d+)?|[^]/g;

function mml(tag, attributes = {}, ...children) {
  const node = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A formula as MathML; its source as code if it cannot be read. */
export function mathNode(source, display) {
  try {
    if (source.length > MAX_TEXT) throw new Error("too long");
    const parser = new Parser(source, display);
    const row = mml("mrow", {}, ...parser.sequence(() => false));
    return mml("math", display ? { display: "block" } : {}, row);
  } catch {
    const code = el("code", { className: "math-source", textContent: source.trim() });
    return display ? el("pre", {}, code) : code;
  }
}

class Parser {
  constructor(source, display) {
    this.tokens = source.match(TOKEN) ?? [];
    this.at = 0;
    this.depth = 0;
    this.display = display;
  }

  peek() {
    while (/^\s/.test(this.tokens[this.at] ?? "")) this.at += 1;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new Error("the formula ends early");
    this.at += 1;
    return token;
  }

  expect(wanted) {
    if (this.next() !== wanted) throw new Error(`no ${wanted}`);
  }

  /** Nodes up to a token for which `ends` is true, which is not consumed, or to the end. */
  sequence(ends) {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) throw new Error("nested too deeply");
    const nodes = [];
    for (let token = this.peek(); token !== undefined && !ends(token); token = this.peek()) {
      if (token === "}" || token === "&" || token === "\\\\" || token === "\\right") throw new Error(`stray ${token}`);
      nodes.push(this.withScripts());
    }
    this.depth -= 1;
    return nodes;
  }

  /** One argument: a group or a single item. */
  argument() {
    if (this.peek() === "{") return this.group();
    this.depth += 1;
    if (this.depth > MAX_DEPTH) throw new Error("nested too deeply");
    const node = this.item();
    this.depth -= 1;
    return node;
  }

  group() {
    this.expect("{");
    const nodes = this.sequence((token) => token === "}");
    this.expect("}");
    return nodes.length === 1 ? nodes[0] : mml("mrow", {}, ...nodes);
  }

  /** The text of a group, unchanged. */
  rawGroup() {
    this.expect("{");
    let text = "";
    for (let open = 1; ; ) {
      const token = this.tokens[this.at];
      if (token === undefined) throw new Error("a group without end");
      this.at += 1;
      if (token === "{") open += 1;
      if (token === "}") open -= 1;
      if (open === 0) return text;
      text += token.startsWith("\\") && token.length === 2 ? token[1] : token;
    }
  }

  withScripts() {
    const limits = this.hasLimits(this.peek());
    const base = ["^", "_", "'"].includes(this.peek()) ? mml("mrow") : this.item();
    let [below, above, under] = [null, null, limits];
    for (;;) {
      const token = this.peek();
      if (token === "\\limits" || token === "\\nolimits") {
        this.at += 1;
        under = token === "\\limits";
      } else if (token === "_" && !below) {
        this.at += 1;
        below = this.argument();
      } else if (token === "^" && !above) {
        this.at += 1;
        above = this.argument();
      } else if (token === "'" && !above) {
        above = mml("mo", {}, this.primes());
      } else break;
    }
    const [sub, sup, both] = under ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (below && above) return mml(both, {}, base, below, above);
    if (below) return mml(sub, {}, base, below);
    return above ? mml(sup, {}, base, above) : base;
  }

  hasLimits(token = "") {
    const name = token.slice(1);
    if (name === "underbrace" || name === "overbrace") return true;
    return token.startsWith("\\") && this.display && (LARGE.has(name) || LIMITS.has(name));
  }

  primes() {
    let text = "";
    while (this.peek() === "'") {
      this.at += 1;
      text += "\u2032";
    }
    return text;
  }

  item() {
    const token = this.peek();
    if (token === "{") return this.group();
    this.at += 1;
    if (token === undefined || token === "^" || token === "_") throw new Error("no operand");
    if (token.startsWith("\\")) return this.command(token.slice(1));
    if (/^\d/.test(token)) return mml("mn", {}, token);
    if (/^\p{L}$/u.test(token)) return mml("mi", {}, token);
    if (token === "~") return mml("mspace", { width: "0.25em" });
    if (token === "%") throw new Error("a comment");
    const text = token === "-" ? "\u2212" : token === "*" ? "\u2217" : token;
    return mml("mo", "()[]|".includes(token) ? { stretchy: "false" } : {}, text);
  }

  command(name) {
    if (LETTERS.has(name)) return mml("mi", {}, LETTERS.get(name));
    if (OPERATORS.has(name)) return mml("mo", {}, OPERATORS.get(name));
    if (LARGE.has(name)) return mml("mo", { largeop: "true" }, LARGE.get(name));
    if (INTEGRALS.has(name)) return mml("mo", {}, INTEGRALS.get(name));
    if (FENCES.has(name)) return mml("mo", { stretchy: "false" }, FENCES.get(name));
    if (FUNCTIONS.has(name)) return mml("mi", {}, name);
    if (LIMITS.has(name)) return mml("mo", {}, name.replace("arg", "arg\u2009"));
    if (SPACES.has(name)) return mml("mspace", { width: SPACES.get(name) });
    if (ALPHABETS.has(name)) return this.alphabet(ALPHABETS.get(name));
    if (ACCENTS.has(name)) return this.accent(name);
    return this.structure(name);
  }

  structure(name) {
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
      case "cfrac": return mml("mfrac", {}, this.argument(), this.argument());
      case "binom":
      case "dbinom":
      case "tbinom": return this.binomial();
      case "sqrt": return this.root();
      case "left": return this.fenced();
      case "begin": return this.environment();
      case "text":
      case "textrm":
      case "textbf":
      case "textit":
      case "texttt":
      case "mbox": return mml("mtext", {}, this.rawGroup().replace(/^ | $/g, "\u00a0"));
      case "mathrm":
      case "operatorname":
      case "operatorname*": return mml("mi", { mathvariant: "normal" }, this.rawGroup().trim());
      case "mathit": return this.argument();
      case "underline": return mml("munder", {}, this.argument(), mml("mo", {}, "_"));
      case "underbrace": return mml("munder", {}, this.argument(), mml("mo", { stretchy: "true" }, "\u23DF"));
      case "overset":
      case "stackrel": return this.swapped("mover");
      case "underset": return this.swapped("munder");
      case "boxed": return mml("mrow", { class: "boxed" }, this.argument());
      case "not": return mml("mo", {}, `${this.item().textContent}\u0338`);
      case "pmod": return mml("mrow", {}, mml("mtext", {}, " (mod "), this.argument(), mml("mtext", {}, ")"));
      case "bmod":
      case "mod": return mml("mo", {}, " mod ");
      case "tag": return mml("mtext", {}, ` (${this.rawGroup()})`);
      case "label": this.rawGroup(); return mml("mrow");
      case "displaystyle":
      case "textstyle":
      case "nonumber":
      case "big": case "Big": case "bigg": case "Bigg":
      case "bigl": case "bigr": case "Bigl": case "Bigr": case "biggl": case "biggr": return mml("mrow");
      case "middle": return mml("mo", { stretchy: "true" }, this.fence());
      default: return this.other(name);
    }
  }

  /** An escaped character, or an unknown command: its source. */
  other(name) {
    if (/^[$%#&_]$/.test(name)) return mml("mo", {}, name);
    return mml("mtext", { class: "math-source" }, `\\${name}`);
  }

  swapped(tag) {
    const script = this.argument();
    return mml(tag, {}, this.argument(), script);
  }

  binomial() {
    const fraction = mml("mfrac", { linethickness: "0" }, this.argument(), this.argument());
    return mml("mrow", {}, mml("mo", {}, "("), fraction, mml("mo", {}, ")"));
  }

  root() {
    if (this.peek() !== "[") return mml("msqrt", {}, this.argument());
    this.at += 1;
    const index = mml("mrow", {}, ...this.sequence((token) => token === "]"));
    this.expect("]");
    return mml("mroot", {}, this.argument(), index);
  }

  accent(name) {
    const stretchy = name.startsWith("wide") || name.startsWith("over") ? "true" : "false";
    return mml("mover", { accent: "true" }, this.argument(), mml("mo", { stretchy }, ACCENTS.get(name)));
  }

  alphabet([capital, small, digit]) {
    const code = (char, from, to) => (to ? to + char.charCodeAt(0) - from.charCodeAt(0) : char.charCodeAt(0));
    const text = Array.from(this.rawGroupOrItem(), (char) => {
      let point = char.codePointAt(0);
      if (/[A-Z]/.test(char)) point = code(char, "A", capital);
      else if (/[a-z]/.test(char)) point = code(char, "a", small);
      else if (/\d/.test(char)) point = code(char, "0", digit);
      return ELSEWHERE.get(point) ?? String.fromCodePoint(point);
    });
    return mml("mi", {}, text.join(""));
  }

  rawGroupOrItem() {
    if (this.peek() !== "{") return this.item().textContent;
    const inside = this.rawGroup();
    return inside.replace(/\\([A-Za-z]+)/g, (source, name) => LETTERS.get(name) ?? source);
  }

  /** The character of a fence after \\left or \\right; nothing for a dot. */
  fence() {
    const token = this.next();
    if (token === ".") return "";
    const name = token.startsWith("\\") ? token.slice(1) : null;
    const text = name === null ? token : FENCES.get(name) ?? OPERATORS.get(name);
    if (text === undefined || !/^[^\s\p{L}\d]$/u.test(text)) throw new Error("not a fence");
    return text;
  }

  fenced() {
    const open = this.fence();
    const nodes = this.sequence((token) => token === "\\right");
    this.expect("\\right");
    return around(open, nodes, this.fence());
  }

  environment() {
    const name = this.rawGroup();
    const found = ENVIRONMENTS.get(name);
    if (!found) throw new Error(`unknown environment ${name}`);
    if (name === "array" && this.peek() === "{") this.rawGroup();
    const [open, close, align] = found;
    const ends = (token) => ["&", "\\\\", "\\end"].includes(token);
    const rows = [[]];
    for (let token = "&"; token !== "\\end"; token = this.next()) {
      if (token === "\\\\") rows.push([]);
      while (this.peek() === "\\hline") this.at += 1;
      rows[rows.length - 1].push(this.sequence(ends));
      if (this.peek() === undefined) throw new Error("an environment without end");
    }
    if (this.rawGroup() !== name) throw new Error("another environment ends");
    const last = rows[rows.length - 1];
    if (rows.length > 1 && last.length === 1 && last[0].length === 0) rows.pop();
    const column = (i) => (align === "pairs" ? (i % 2 === 0 ? "right" : "left") : align);
    const cell = (nodes, i) => mml("mtd", { class: `math-${column(i)}` }, ...nodes);
    const made = rows.map((cells) => mml("mtr", {}, ...cells.map(cell)));
    return around(open, [mml("mtable", align === "pairs" ? { displaystyle: "true" } : {}, ...made)], close);
  }
}

function around(open, nodes, close) {
  const fence = (text) => mml("mo", { fence: "true", stretchy: "true" }, text);
  return mml("mrow", {}, ...(open ? [fence(open)] : []), ...nodes, ...(close ? [fence(close)] : []));
}
