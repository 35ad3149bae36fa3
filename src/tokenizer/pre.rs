//! Pre-tokenizers: how text is cut into words before byte-level BPE, by the name that a file gives
//! in `tokenizer.ggml.pre`.
//!
//! A pre-tokenizer is a list of patterns. Each cuts the words that the ones before it left into
//! matches and the stretches between matches. Patterns are stated as llama.cpp states them (it
//! tells upper from lower case in ASCII only); the `regex` crate runs them in linear time. It has
//! no look-ahead, and the one needed, `\s+(?!\S)`, always stands last: [`Step`] does that by hand.
//!
//! Source: llama.cpp, `llama-vocab.cpp`, and the tokenizers of the models named.

use std::ops::Range;

use regex::Regex;

use super::Error;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const BLOOM: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";
const DIGIT: &str = r"\p{N}";
const NEWLINE: &str = r"[\r\n]";
const HAN_KANA: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+";
/// White space that these ranges would cover is white space first, in llama.cpp.
const HAN_HANGUL: &str = r"[[\u{800}-\u{9FA5}\u{AC00}-\u{D7FF}]--\s]+";
/// Letters with case, as of the Unicode version of DeepSeek's tokenizer.
const CASED: &str = r"(?x)\s?[
    A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}
    \u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}
    \u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}
    \u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}
    \u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}
    \u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}
    \u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}
    \u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}
    \u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}
    \u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}
    \u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}
    \u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}
    \u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}
    \u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}
    \u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}
    \u{1E900}-\u{1E943}
]+";

/// One pre-tokenizer.
#[derive(Debug)]
pub(super) struct Pre {
    names: &'static [&'static str],
    patterns: &'static [&'static str],
    /// A word that is a token as it stands is not merged up from its bytes.
    pub(super) whole_words: bool,
    /// A begin token is put in front unless the file says otherwise.
    pub(super) add_bos: bool,
}

const fn pre(names: &'static [&'static str], patterns: &'static [&'static str]) -> Pre {
    Pre { names, patterns, whole_words: false, add_bos: false }
}

/// What files without a name get. [`find`] knows it as `default`.
const DEFAULT: Pre =
    pre(&["default"], &[r"[\p{P}\$\+<=>\^\~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]);

static TABLE: &[Pre] = &[
    DEFAULT,
    Pre {
        whole_words: true,
        add_bos: true,
        ..pre(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[LLAMA3],
        )
    },
    pre(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], &[LLAMA3]),
    pre(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "modern-bert",
        ],
        &[GPT2],
    ),
    pre(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[DIGIT, GPT2],
    ),
    pre(&["falcon"], &[r"[\p{P}\$\+<=>\^\~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    pre(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "kormo",
            "f2llmv2",
        ],
        &[QWEN2],
    ),
    pre(&["qwen35"], &[QWEN35]),
    pre(
        &["deepseek-llm"],
        // Nor is the ideographic space among the full-width punctuation.
        &[
            NEWLINE,
            CASED,
            r"\s?[!-/:-\~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3001}\u{3002}]+",
            r"\s+$",
            HAN_HANGUL,
            r"\p{N}+",
        ],
    ),
    pre(&["deepseek-coder"], &[NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", HAN_HANGUL, DIGIT]),
    pre(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3],
    ),
    Pre { whole_words: true, add_bos: true, ..pre(&["tekken"], &[TEKKEN]) },
    pre(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    pre(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    pre(&["seed-coder"], &[SEED]),
    pre(&["ufakzeka"], &[UFAKZEKA]),
    pre(&["exaone-moe"], &[EXAONE_MOE]),
    pre(&["laguna"], &[r"[^\n]+|[\n]+", QWEN2]),
    Pre { whole_words: true, ..pre(&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5]) },
    pre(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    pre(&["viking"], &[BLOOM, DIGIT]),
    Pre {
        add_bos: true,
        ..pre(
            &["chameleon"],
            &[
                "<sentinel:[0-9]+>",
                "IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                DIGIT,
                r"[\p{P}!-/:-@\[-`{-\~]",
                GPT2,
            ],
        )
    },
];

/// The pre-tokenizer of that name.
///
/// # Errors
/// `UnknownPre`, which lists the names there are.
pub(super) fn find(name: &str) -> Result<&'static Pre, Error> {
    TABLE.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| Error::UnknownPre {
        name: name.into(),
        known: TABLE.iter().flat_map(|pre| pre.names).copied().collect::<Vec<_>>().join(", "),
    })
}

/// A pre-tokenizer, compiled.
#[derive(Debug)]
pub(super) struct Splitter {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    regex: Regex,
    /// The pattern ended in `\s+(?!\S)`: white space that nothing else matches is one word, but its
    /// last character stays with what follows, if something does.
    spaces: bool,
}

impl Splitter {
    pub(super) fn new(pre: &Pre) -> Splitter {
        let steps = pre.patterns.iter().map(|pattern| {
            let head = pattern.strip_suffix(r"|\s+").unwrap_or(pattern);
            let cut = head.strip_suffix(r"|\s+(?!\S)");
            let regex = Regex::new(cut.unwrap_or(pattern)).expect("a test compiles the table");
            Step { regex, spaces: cut.is_some() }
        });
        Splitter { steps: steps.collect() }
    }

    /// Words of `text`: ranges of bytes that cover it without overlap, none empty.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let whole = 0..text.len();
        let mut words = vec![whole];
        for step in &self.steps {
            let mut cut = Vec::with_capacity(words.len());
            for word in words {
                let start = word.start;
                step.split(&text[word], |w| {
                    if !w.is_empty() {
                        cut.push(start + w.start..start + w.end);
                    }
                });
            }
            words = cut;
        }
        words
    }
}

impl Step {
    /// Hands out consecutive ranges that cover `text`.
    fn split(&self, text: &str, mut word: impl FnMut(Range<usize>)) {
        let mut at = 0;
        for found in self.regex.find_iter(text) {
            // White space before a match ends within it at most: see `spaces`.
            at = self.between(text, at, found.start(), &mut word);
            word(at..found.end());
            at = found.end();
        }
        at = self.between(text, at, text.len(), &mut word);
        word(at..text.len());
    }

    /// Cuts `text[at..end]`, where the regex matches nothing, and returns where it stopped: `end`.
    fn between(
        &self,
        text: &str,
        mut at: usize,
        end: usize,
        word: &mut impl FnMut(Range<usize>),
    ) -> usize {
        while self.spaces && at < end {
            let Some(space) = text[at..end].find(char::is_whitespace) else {
                break;
            };
            word(at..at + space);
            at += space;
            let run = text[at..].find(|c: char| !c.is_whitespace()).map_or(text.len(), |n| at + n);
            let last = text[at..run].chars().next_back().map_or(0, char::len_utf8);
            let stop = if run == text.len() || run - last == at { run } else { run - last };
            // Every pattern that matches within a run of spaces matches at its last character only.
            debug_assert!(stop <= end, "a match inside a run of white space");
            let stop = stop.min(end);
            word(at..stop);
            at = stop;
        }
        word(at..end);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let splitter = Splitter::new(find(name).expect("known"));
        splitter.split(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn every_pattern_compiles_and_covers_the_text() {
        let text = "I'll  be\t\n\n back~é \u{3000}x  12345 中文, ok?\r\n   ";
        for name in TABLE.iter().flat_map(|pre| pre.names) {
            let all = words(name, text);
            assert_eq!(all.concat(), text, "{name}");
            assert!(all.iter().all(|word| !word.is_empty()), "{name}");
        }
    }

    #[test]
    fn no_name_stands_twice() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|pre| pre.names).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn the_last_space_of_a_run_goes_with_the_word_after_it() {
        assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words("gpt-2", "a\n\nb\tc"), ["a", "\n", "\n", "b", "\t", "c"]);
        assert_eq!(words("llama-bpe", "a \n\n  b\t1"), ["a", " \n\n", " ", " b", "\t", "1"]);
        assert_eq!(words("qwen2", "  12 "), [" ", " ", "1", "2", " "]);
    }

    #[test]
    fn patterns_apply_one_after_the_other() {
        assert_eq!(words("falcon", "x=12345!!"), ["x", "=", "123", "45", "!!"]);
        assert_eq!(words("starcoder", " 12"), [" ", "1", "2"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let said = find("klingon").expect_err("unknown").to_string();
        assert!(said.contains("klingon") && said.contains("llama-bpe") && said.contains("qwen2"));
    }
}
