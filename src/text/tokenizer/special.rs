//! Finds special tokens by id or name, and matches them in a text before the text is split.
//!
//! Source: llama.cpp, `llama-vocab.cpp`, for the names and the order of matching.

use std::ops::Range;

use super::{Ids, TokenType};

/// Ids of special tokens, as in the keys `tokenizer.ggml.*_token_id` of a file; `None` for tokens
/// that are not defined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// BOS, which begins a text.
    pub bos: Option<u32>,
    /// EOS, which ends a text.
    pub eos: Option<u32>,
    /// EOT, which ends a turn.
    pub eot: Option<u32>,
    /// EOM, which ends a message that a tool answers.
    pub eom: Option<u32>,
    /// The unknown token, which replaces text without a token.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Before the text that precedes the gap, in fill-in-the-middle prompts.
    pub fim_pre: Option<u32>,
    /// Before the text that follows the gap.
    pub fim_suf: Option<u32>,
    /// Before the text that fills the gap.
    pub fim_mid: Option<u32>,
    /// Padding in fill-in-the-middle prompts.
    pub fim_pad: Option<u32>,
    /// Before the name of a repository, in fill-in-the-middle prompts.
    pub fim_rep: Option<u32>,
    /// Separator of files in fill-in-the-middle prompts.
    pub fim_sep: Option<u32>,
}

const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const END_OF_MESSAGE: &[&str] = &["<|eom_id|>"];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEP: &[&str] = &["<|file_sep|>"];
/// Names of the prefix, suffix and middle tokens of fill-in-the-middle prompts. These are always
/// control tokens.
const FIM_PARTS: [&[&str]; 3] = [
    &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
];
/// Names of tokens that end the generation, in addition to [`END_OF_TURN`].
const END_OF_GENERATION: &[&str] = &[
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
];
/// Tokens that are part of answers although files mark them as control tokens (gpt-oss).
const ALWAYS_WRITTEN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Fills in missing ids by the names of tokens, corrects `kinds` of known control tokens, and
/// returns the sorted ids that end generation.
pub(super) fn detect(special: &mut SpecialIds, ids: &Ids, kinds: &mut [TokenType]) -> Vec<u32> {
    let by_name = |name: &&str| ids.get(name.as_bytes()).copied();
    let slots = [
        (&mut special.eot, END_OF_TURN),
        (&mut special.eom, END_OF_MESSAGE),
        (&mut special.fim_pad, FIM_PAD),
        (&mut special.fim_rep, FIM_REP),
        (&mut special.fim_sep, FIM_SEP),
    ];
    for (slot, names) in slots {
        if slot.is_none() {
            *slot = names.iter().find_map(by_name);
            slot.iter().for_each(|&id| kinds[id as usize] = TokenType::Control);
        }
    }
    let parts = [&mut special.fim_pre, &mut special.fim_suf, &mut special.fim_mid];
    for (slot, names) in parts.into_iter().zip(FIM_PARTS) {
        let named = names.iter().find_map(by_name);
        *slot = slot.or(named);
        named.iter().for_each(|&id| kinds[id as usize] = TokenType::Control);
    }
    let mut eog: Vec<u32> =
        END_OF_TURN.iter().chain(END_OF_GENERATION).filter_map(by_name).collect();
    for &id in &eog {
        kinds[id as usize] = TokenType::Control;
    }
    for id in ALWAYS_WRITTEN.iter().filter_map(by_name) {
        kinds[id as usize] = TokenType::UserDefined;
    }
    let SpecialIds { eos, eot, eom, fim_pad, fim_rep, fim_sep, .. } = *special;
    eog.extend([eos, eot, eom, fim_pad, fim_rep, fim_sep].into_iter().flatten());
    eog.sort_unstable();
    eog.dedup();
    apply_exceptions(&mut eog, &by_name, kinds);
    eog
}

/// Handles vocabularies in which a token that usually ends the generation does not.
fn apply_exceptions(
    eog: &mut Vec<u32>,
    by_name: &impl Fn(&&str) -> Option<u32>,
    kinds: &mut [TokenType],
) {
    let ends = |eog: &[u32], name| by_name(&name).is_some_and(|id| eog.contains(&id));
    let call = ends(eog, "<|call|>") || ends(eog, "<|calls|>");
    // gpt-oss and solar-open end a message, not the answer, with <|end|>.
    if call
        && (ends(eog, "<|return|>") || ends(eog, "<|flush|>"))
        && let Some(end) = by_name(&"<|end|>")
    {
        eog.retain(|&id| id != end);
        kinds[end as usize] = TokenType::UserDefined;
    }
    // In Gemma 4's vocabulary </s> is HTML text.
    if ends(eog, "<|tool_response>")
        && let Some(s) = by_name(&"</s>")
    {
        eog.retain(|&id| id != s);
        kinds[s as usize] = TokenType::Normal;
    }
}

/// A byte range of a text that is still to be tokenized, or a special token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

#[derive(Debug)]
struct Entry {
    id: u32,
    text: String,
    /// Whether to match the token even without `parse_special`; true for user-defined tokens.
    always: bool,
    /// Whether spaces after the token belong to it.
    rstrip: bool,
}

#[derive(Debug)]
pub(super) struct Matcher {
    /// The special tokens, longest text first.
    entries: Vec<Entry>,
}

impl Matcher {
    /// A matcher for the special tokens. `rstrip` says whether spaces after a token belong to it.
    pub(super) fn new(
        texts: &[Vec<u8>],
        kinds: &[TokenType],
        rstrip: impl Fn(&str) -> bool,
    ) -> Matcher {
        let mut entries = Vec::new();
        for (id, (text, kind)) in (0u32..).zip(texts.iter().zip(kinds)) {
            let always = match kind {
                TokenType::UserDefined => true,
                TokenType::Control | TokenType::Unknown => false,
                TokenType::Normal | TokenType::Unused | TokenType::Byte | TokenType::Undefined => {
                    continue;
                }
            };
            if let Ok(text) = String::from_utf8(text.clone()) {
                let rstrip = rstrip(&text);
                entries.push(Entry { id, text, always, rstrip });
            }
        }
        entries.sort_by_key(|e| std::cmp::Reverse(e.text.len()));
        Matcher { entries }
    }

    /// Splits `text` at special tokens. Longer tokens are matched first, each from left to right in
    /// the text that earlier tokens did not match.
    pub(super) fn partition(&self, text: &str, parse_special: bool) -> Vec<Fragment> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = vec![Fragment::Text(0..text.len())];
        let pairs = Pairs::new(text);
        for entry in self.entries.iter().filter(|e| parse_special || e.always) {
            if pairs.may_contain(&entry.text) && text.contains(&entry.text) {
                fragments = fragments.into_iter().fold(Vec::new(), |mut out, fragment| {
                    match fragment {
                        Fragment::Text(range) => entry.cut_fragments(text, range, &mut out),
                        Fragment::Token(_) => out.push(fragment),
                    }
                    out
                });
            }
        }
        fragments
    }
}

impl Entry {
    fn cut_fragments(&self, text: &str, mut range: Range<usize>, out: &mut Vec<Fragment>) {
        while let Some(at) = text[range.clone()].find(&self.text) {
            let at = range.start + at;
            if at > range.start {
                out.push(Fragment::Text(range.start..at));
            }
            out.push(Fragment::Token(self.id));
            range.start = at + self.text.len();
            if self.rstrip {
                let rest = &text[range.clone()];
                let space = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
                range.start = range.end - rest.trim_start_matches(space).len();
            }
        }
        if !range.is_empty() {
            out.push(Fragment::Text(range));
        }
    }
}

/// The byte pairs that occur in a text. Checking a token's pairs excludes most special tokens
/// without searching the text.
struct Pairs(Box<[bool; 1 << 16]>);

impl Pairs {
    fn new(text: &str) -> Pairs {
        let mut seen = Box::new([false; 1 << 16]);
        for pair in text.as_bytes().windows(2) {
            seen[usize::from(u16::from_ne_bytes([pair[0], pair[1]]))] = true;
        }
        Pairs(seen)
    }

    fn may_contain(&self, token: &str) -> bool {
        let mut pairs = token.as_bytes().windows(2);
        pairs.all(|p| self.0[usize::from(u16::from_ne_bytes([p[0], p[1]]))])
    }
}
