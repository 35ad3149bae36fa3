// Simple syntax highlighting: comments, strings, numbers, keywords. Except for markup, languages
// differ mainly in comments and quotes.

import { el } from "./dom.js";

/** Maximum length of highlighted code, in characters. */
const MAX_CODE = 60_000;

const KEYWORDS = new Set((
  "abstract and as async await begin bool boolean break byte case catch char class const continue crate data "
  + "def default defer del delete do double dyn elif else elsif end enum except export extends extern false "
  + "final finally float fn for foreach from func function global go goto if impl implements import in include "
  + "inline instanceof int interface internal is isize lambda let local long loop macro match mod module mut "
  + "namespace new nil none None not null nullptr object of operator or override package pass private protected "
  + "proc pub public raise ref repeat require return self Self short signed sizeof static str string String "
  + "struct super switch template then this throw throws trait true True False try type typedef typename typeof "
  + "u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 usize union unless unsafe unsigned until use using val var virtual "
  + "void when where while with yield fi done esac"
).split(" "));

const SQL_KEYWORDS = new Set((
  "add all alter and as asc begin between by case column commit constraint create cross default delete desc "
  + "distinct drop else end exists foreign from full group having in index inner insert into is join key left "
  + "like limit not null offset on or order outer primary references right rollback select set table then union "
  + "unique update values view when where with"
).split(" "));

const HASH = ["bash", "sh", "shell", "zsh", "python", "py", "ruby", "rb", "perl", "r", "yaml", "yml", "toml",
  "ini", "make", "makefile", "dockerfile", "cmake", "elixir", "julia", "nix", "powershell", "ps1", "conf"];
const DASHES = ["sql", "haskell", "hs", "lua", "ada", "elm"];
const MARKUP = ["html", "xml", "svg", "vue"];
const PLAIN = ["", "text", "txt", "plain", "output", "console", "markdown", "md"];

const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*`;
const WORD = String.raw`[A-Za-z_]\w*`;
const DOUBLE = String.raw`"(?:[^"\\\n]|\\[^])*"?`;
const SINGLE = String.raw`'(?:[^'\\\n]|\\[^])*'?`;
// A Rust lifetime or an apostrophe does not begin a string.
const CHAR = String.raw`'(?:[^'\\\n]|\\[^'\n]{1,10})'`;
const BACKTICK = "`(?:[^`\\\\]|\\\\[^])*`?";

/** The scanner of a family of languages; its groups are comment, string, number, word. */
function scanner(comment, strings) {
  return new RegExp(`(${comment})|(${strings})|(${NUMBER})|(${WORD})`, "g");
}

const BLOCK = String.raw`/\*[^]*?(?:\*/|$)`;
const SCANNERS = {
  c: scanner(String.raw`//[^\n]*|${BLOCK}`, `${DOUBLE}|${CHAR}`),
  script: scanner(String.raw`//[^\n]*|${BLOCK}`, `${DOUBLE}|${SINGLE}|${BACKTICK}`),
  hash: scanner(String.raw`#[^\n]*`, `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${DOUBLE}|${SINGLE}`),
  dashes: scanner(String.raw`--[^\n]*|${BLOCK}`, `${DOUBLE}|${SINGLE}`),
  markup: /(<!--[^]*?(?:-->|$))|("[^"\n]*"|'[^'\n]*')|(&#?\w+;)|(<\/?[A-Za-z][\w:-]*|\/?>)/g,
};

function familyOf(language) {
  if (HASH.includes(language)) return "hash";
  if (DASHES.includes(language)) return "dashes";
  if (MARKUP.includes(language)) return "markup";
  return ["js", "javascript", "ts", "typescript", "jsx", "tsx", "go", "json", "css", "dart", "php"].includes(language)
    ? "script"
    : "c";
}

function isKeyword(word, language) {
  return language === "sql" ? SQL_KEYWORDS.has(word.toLowerCase()) : KEYWORDS.has(word);
}

export function highlight(code, name) {
  const language = name.toLowerCase();
  if (code.length > MAX_CODE || PLAIN.includes(language)) return [code];
  if (language === "diff" || language === "patch") return diff(code);
  const family = familyOf(language);
  const nodes = [];
  let at = 0;
  for (const match of code.matchAll(SCANNERS[family])) {
    const [text, comment, string, number, word] = match;
    const after = code[match.index + text.length];
    let kind = null;
    if (comment !== undefined) kind = "comment";
    else if (string !== undefined) kind = language === "json" && after === ":" ? "keyword" : "string";
    else if (number !== undefined) kind = "number";
    else if (family === "markup" || isKeyword(word, language)) kind = "keyword";
    else if (after === "(") kind = "call";
    if (!kind) continue;
    nodes.push(code.slice(at, match.index), el("span", { className: `hl-${kind}`, textContent: text }));
    at = match.index + text.length;
  }
  nodes.push(code.slice(at));
  return nodes;
}

function diff(code) {
  return code.split(/(?<=\n)/).map((line) => {
    const kind = { "+": "added", "-": "removed", "@": "comment" }[line[0]];
    return kind ? el("span", { className: `hl-${kind}`, textContent: line }) : line;
  });
}
