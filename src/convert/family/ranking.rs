//! Qwen 3 as a ranking model: its head compares the answers "yes" and "no".

use std::path::{Path, PathBuf};

use super::Family;
use super::encoders::{RANK, labels_of};
use super::keys::Build;
use super::rule::{Rule, Transform, rule, same_name};
use super::rules::{GATED, NORMS, QK, QK_NORMS, UP_DOWN, VO};
use super::table::{self, LLAMA};
use crate::Error;
use crate::change::Selection;
use crate::config::Json;
use crate::read::text_if_present;
use gguf::{Array, Strings, Value};

const TIED: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    rule("embed_tokens", "cls.output", Transform::Rows(answers)),
    rule("lm_head", "", Transform::Drop),
    same_name("norm", "output_norm"),
];
const UNTIED: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    rule("lm_head", "cls.output", Transform::Rows(answers)),
    same_name("norm", "output_norm"),
];
/// Readers of the file apply a softmax to the outputs. With a row of zeros beside a single output, this
/// is its sigmoid.
const CLASSIFIER: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    rule("score", "cls.output", Transform::PadRows(|_| Ok(2))),
    same_name("norm", "output_norm"),
];
/// The largest README that is read.
const MAX_README: u64 = 1 << 20;
/// The prompt of the published models, from their card.
const PROMPT: &str = concat!(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and ",
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n",
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer ",
    "the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
);

const QWEN3_RANKER: Family = Family {
    arch: "qwen3",
    classes: &["Qwen3ForCausalLM"],
    when: |config| is_reranker(config) && is_tied(config),
    rules: &[TIED, NORMS, QK, QK_NORMS, VO, GATED, UP_DOWN],
    keys: |build| {
        table::qwen(build)?;
        ranks(build, yes_or_no())
    },
    ..LLAMA
};

/// These precede Qwen 3, whose class they share.
pub(super) const FAMILIES: &[Family] = &[
    QWEN3_RANKER,
    Family {
        when: |config| is_reranker(config) && !is_tied(config),
        rules: &[UNTIED, NORMS, QK, QK_NORMS, VO, GATED, UP_DOWN],
        ..QWEN3_RANKER
    },
    Family {
        classes: &["Qwen3ForSequenceClassification"],
        when: |_| true,
        rules: &[CLASSIFIER, NORMS, QK, QK_NORMS, VO, GATED, UP_DOWN],
        keys: classifier,
        ..QWEN3_RANKER
    },
];

fn folder_of(config: &Json) -> PathBuf {
    let folder = Path::new(config.file()).parent().unwrap_or(Path::new("."));
    std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())
}

/// Whether the name of the folder or of the model, or the title of its card, is that of a Qwen3-Reranker.
/// The settings are those of any Qwen 3.
fn is_reranker(config: &Json) -> bool {
    let folder = folder_of(config);
    let own = config.text(&["_name_or_path"]).ok().flatten();
    let names = [folder.file_name().map(|name| name.to_string_lossy().into_owned()), own];
    let card = text_if_present(&folder.join("README.md"), MAX_README).ok().flatten();
    names.into_iter().flatten().any(|name| name.to_lowercase().contains("qwen3-reranker"))
        || card.is_some_and(|card| card.to_lowercase().contains("# qwen3-reranker"))
}

fn is_tied(config: &Json) -> bool {
    config.bool(&["tie_word_embeddings"]).ok().flatten().unwrap_or(false)
}

/// The rows of "yes" and "no" in a matrix with a row for each token.
fn answers(build: &Build<'_>) -> Result<Selection, Error> {
    let n_vocab = build.config.count(&["vocab_size"], "the size of the vocabulary")?;
    let file = folder_of(build.config).join("tokenizer.json");
    let tokens = Json::open(&file)?.inner("model")?.inner("vocab")?;
    let id = |answer: &str| match tokens.u32(&[answer])? {
        Some(id) if id < n_vocab => Ok(id),
        Some(_) | None => {
            Err(tokens.missing(&format!("model.vocab.{answer}"), "the token of an answer"))
        }
    };
    Ok(Selection::join([id("yes")?, id("no")?], n_vocab))
}

fn yes_or_no() -> Strings {
    Strings::from_iter(["yes", "no"])
}

/// Sets the keys of a ranking model whose outputs have these names.
fn ranks(build: &mut Build<'_>, labels: Strings) -> Result<(), Error> {
    build.replace("pooling_type", RANK);
    build.set("classifier.output_labels", Value::Array(Array::String(labels)));
    if is_reranker(build.config) {
        let names = Value::Array(Array::String(Strings::from_iter(["rerank"])));
        build.keys.push(("tokenizer.chat_templates".to_owned(), names));
        build.keys.push(("tokenizer.chat_template.rerank".to_owned(), Value::from(PROMPT)));
    }
    Ok(())
}

fn classifier(build: &mut Build<'_>) -> Result<(), Error> {
    table::qwen(build)?;
    let labels = labels_of(build)?;
    let labels = if labels.len() < 2 { yes_or_no() } else { labels };
    ranks(build, labels)
}
