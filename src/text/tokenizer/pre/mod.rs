//! Pre-tokenizers split text into words before BPE. `tokenizer.ggml.pre` names the pre-tokenizer;
//! some of llama.cpp's defaults depend on this name too.
//!
//! A pre-tokenizer is a list of cuts (`split.rs`). Each cut splits the words of the previous cut
//! into matches of a pattern (`patterns.rs`) and the text between matches.
//!
//! Source: llama.cpp, `llama-vocab.cpp` and `unicode.cpp`, and the tokenizers of the named models.

mod patterns;
mod split;

use super::{Error, Spelling};
use patterns::*;
use split::Cut::{self, Plain, Runs, Thousands, Threes, Words};

pub(super) use split::Splitter;

/// The words that become one token without merging if the vocabulary has a token for the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WholeWord {
    None,
    All,
    Newlines,
}

/// Whether a BOS token is prepended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddBos {
    /// Only if the file says so.
    IfSet,
    /// Unless the file says otherwise.
    Default,
    /// Always, even if the file says otherwise.
    Always,
}

/// One pre-tokenizer, with all its names.
#[derive(Debug)]
pub(super) struct Pre {
    names: &'static [&'static str],
    cuts: &'static [Cut],
    pub(super) spelling: Spelling,
    pub(super) whole: WholeWord,
    pub(super) bos: AddBos,
}

const fn pre(names: &'static [&'static str], cuts: &'static [Cut]) -> Pre {
    Pre { names, cuts, spelling: Spelling::Alphabet, whole: WholeWord::None, bos: AddBos::IfSet }
}

const DIGITS_GPT2: &[Cut] = &[Plain(DIGIT), Words(GPT2)];

static TABLE: &[Pre] = &[
    // For files that do not name a pre-tokenizer.
    pre(
        &["default"],
        &[Plain(r"[\p{P}\$\+<=>\^\~\|]+"), Words(GPT2), Plain(r"\p{N}+"), Plain("[0-9][0-9][0-9]")],
    ),
    Pre {
        whole: WholeWord::All,
        bos: AddBos::Default,
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
            &[Words(LLAMA3)],
        )
    },
    pre(&["dbrx", "smaug-bpe", "glm4", "glm5", "chatglm-bpe"], &[Words(LLAMA3)]),
    pre(&["jais-2"], &[Runs(LLAMA3)]),
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
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
            "modern-bert",
        ],
        &[Words(GPT2)],
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
        DIGITS_GPT2,
    ),
    pre(&["falcon"], &[Plain(r"[\p{P}\$\+<=>\^\~\|`]+"), Words(GPT2), Plain("[0-9][0-9][0-9]")]),
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
        &[Words(QWEN2)],
    ),
    pre(&["qwen35"], &[Words(QWEN35)]),
    pre(
        &["deepseek-llm"],
        &[
            Plain(NEWLINE),
            Plain(CASED),
            Plain(PUNCTUATION),
            Plain(r"\s+$"),
            Plain(HAN_HANGUL),
            Plain(r"\p{N}+"),
        ],
    ),
    pre(
        &["deepseek-coder"],
        &[
            Plain(NEWLINE),
            Plain(r"\s?\p{L}+"),
            Plain(r"\s?\p{P}+"),
            Plain(HAN_HANGUL),
            Plain(DIGIT),
        ],
    ),
    pre(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[Plain(THREE_DIGITS), Plain(HAN_KANA), Words(DEEPSEEK3)],
    ),
    pre(&["spark2_5"], &[Plain(THREE_DIGITS), Plain(HAN_KANA), Words(SPARK), Plain(DIGIT)]),
    Pre { whole: WholeWord::All, ..pre(&["youtu"], &[Plain(YOUTU_SCRIPTS), Words(YOUTU)]) },
    Pre { whole: WholeWord::All, bos: AddBos::Default, ..pre(&["tekken"], &[Words(TEKKEN)]) },
    pre(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[Words(GPT4O)]),
    Pre { whole: WholeWord::All, ..pre(&["granite-embed-multi-97m"], &[Words(GRANITE_97M)]) },
    pre(&["tiny_aya", "cohere2moe"], &[Threes, Words(TINY_AYA)]),
    pre(&["superbpe"], &[Plain(r"\p{N}+"), Thousands]),
    pre(&["kimi-k2"], &[Words(KIMI_K2)]),
    pre(&["afmoe"], &[Threes, Plain(AFMOE_SCRIPTS), Words(DEEPSEEK3)]),
    pre(&["bailingmoe", "bailingmoe2", "llada-moe"], &[Words(BAILING)]),
    pre(&["seed-coder"], &[Words(SEED)]),
    pre(&["ufakzeka"], &[Words(UFAKZEKA)]),
    pre(&["exaone-moe"], &[Words(EXAONE_MOE)]),
    pre(&["laguna"], &[Plain(LINES), Words(QWEN2)]),
    Pre { whole: WholeWord::All, ..pre(&["minicpm5"], &[Plain(THREE_DIGITS), Words(MINICPM5)]) },
    pre(&["poro-chat", "bloom", "gpt3-finnish"], &[Plain(BLOOM)]),
    pre(&["viking"], &[Plain(BLOOM), Plain(DIGIT)]),
    Pre {
        bos: AddBos::Default,
        ..pre(
            &["chameleon"],
            &[
                Plain("<sentinel:[0-9]+>"),
                Plain("IMGIMG[A-I]{1,4}Z"),
                Plain(r"[\t\n]|    |  "),
                Plain(DIGIT),
                Plain(r"[\p{P}!-/:-@\[-`{-\~]"),
                Words(GPT2),
            ],
        )
    },
    Pre {
        spelling: Spelling::Marks,
        whole: WholeWord::Newlines,
        bos: AddBos::Always,
        ..pre(&["gemma4", "granite-embed-multi-311m"], &[Plain(LINES)])
    },
    Pre { spelling: Spelling::Marks, ..pre(&["sarvam-moe"], &[Plain(LINES)]) },
];

/// The pre-tokenizer called `name`.
///
/// # Errors
/// `UnknownPre`, with the supported names.
pub(super) fn find(name: &str) -> Result<&'static Pre, Error> {
    TABLE.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| Error::UnknownPre {
        name: name.into(),
        known: TABLE.iter().flat_map(|pre| pre.names).copied().collect::<Vec<_>>().join(", "),
    })
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
            let split = words(name, text);
            assert_eq!(split.concat(), text, "{name}");
            assert!(split.iter().all(|word| !word.is_empty()), "{name}");
        }
    }

    #[test]
    fn splitting_takes_linear_time() {
        let texts = ["a", " ", "\n", " \n", "1", "'", "中", "\u{300}", "~", "a ", " \t1", "²3"];
        for pre in TABLE {
            let splitter = Splitter::new(pre);
            for text in texts {
                let text = text.repeat((1 << 18) / text.len());
                let start = std::time::Instant::now();
                assert!(!splitter.split(&text).is_empty());
                // 60 s allow for unoptimised code on a busy machine; quadratic code takes minutes.
                let took = start.elapsed();
                assert!(
                    took.as_secs() < 60,
                    "{:?}: {:?} took {took:?}",
                    pre.names,
                    text.chars().next()
                );
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|pre| pre.names).collect();
        let n_names = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n_names);
    }

    #[test]
    fn the_last_space_of_a_run_belongs_to_the_next_word() {
        assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words("gpt-2", "a\n\nb\tc"), ["a", "\n", "\n", "b", "\t", "c"]);
        assert_eq!(words("llama-bpe", "a \n\n  b\t1"), ["a", " \n\n", " ", " b", "\t", "1"]);
        assert_eq!(words("qwen2", "  12 "), [" ", " ", "1", "2", " "]);
        assert_eq!(words("spark2_5", "a \n x\n\n"), ["a", " \n", " x", "\n", "\n"]);
    }

    #[test]
    fn jais_splits_white_space_into_powers_of_two() {
        assert_eq!(
            words("jais-2", &format!("a{}b", " ".repeat(8))),
            ["a", "    ", "  ", " ", " b"]
        );
        assert_eq!(words("jais-2", &" ".repeat(8)), [" ".repeat(8)]);
        assert_eq!(words("jais-2", "a   1"), ["a", "  ", " ", "1"]);
        assert_eq!(words("jais-2", " \n  x"), [" \n", " ", " x"]);
    }

    #[test]
    fn digits_are_grouped_in_threes_from_the_right() {
        assert_eq!(words("superbpe", "a 12345 b"), ["a ", "12", "345", " b"]);
        assert_eq!(words("superbpe", "²345²6"), ["²", "345²6"]);
        assert_eq!(words("afmoe", "ab1234567"), ["ab", "1", "234", "567"]);
        // `Threes` joins the spaces and the first group; `Words` then separates them.
        assert_eq!(words("tiny_aya", "a  12"), ["a", " ", " ", "12"]);
    }

    #[test]
    fn patterns_apply_one_after_the_other() {
        assert_eq!(words("falcon", "x=12345!!"), ["x", "=", "123", "45", "!!"]);
        assert_eq!(words("starcoder", " 12"), [" ", "1", "2"]);
        assert_eq!(words("gemma4", "a b\n\nc"), ["a b", "\n\n", "c"]);
    }

    #[test]
    fn an_unknown_name_lists_the_known_names() {
        let text = find("klingon").expect_err("unknown").to_string();
        assert!(text.contains("klingon") && text.contains("llama-bpe") && text.contains("qwen2"));
    }
}
