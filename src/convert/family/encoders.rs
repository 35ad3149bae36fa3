//! Encoders: embedding models and ranking models.

use std::path::Path;

use super::keys::Build;
use super::rules::{
    BERT_EMBEDDINGS, BERT_POSITIONS, FOUR_NORMS_PLUS_ONE, GATED, GEMMA_EMBEDDINGS,
    MODERN_CLASSIFIER, NO_HEAD, NO_MODERN_HEAD, POOLED_CLASSIFIER, QK, QK_NORMS_PLUS_ONE,
    ROBERTA_CLASSIFIER, ROBERTA_POSITIONS, UP_DOWN, VO,
};
use super::{Family, rules, table};
use crate::Error;
use crate::config::Json;
use gguf::{Array, Strings, Value};

/// The numbers of the pooling types in llama.cpp.
const MEAN: u32 = 1;
pub(super) const FIRST: u32 = 2;
const LAST: u32 = 3;
pub(super) const RANK: u32 = 4;

pub(super) const BERT: Family = Family {
    arch: "bert",
    classes: &["BertModel", "BertForMaskedLM"],
    activation: "gelu",
    rules: &[BERT_EMBEDDINGS, BERT_POSITIONS, rules::BERT, NO_HEAD],
    keys: bert,
    ..table::LLAMA
};

pub(super) const BERT_RANKER: Family = Family {
    classes: &["BertForSequenceClassification"],
    rules: &[BERT_EMBEDDINGS, BERT_POSITIONS, rules::BERT, POOLED_CLASSIFIER],
    keys: |build| ranker(build, bert),
    ..BERT
};

pub(super) const ROBERTA: Family = Family {
    classes: &[
        "RobertaModel",
        "RobertaForMaskedLM",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "CamembertModel",
        "CamembertForMaskedLM",
    ],
    rules: &[BERT_EMBEDDINGS, ROBERTA_POSITIONS, rules::BERT, NO_HEAD],
    keys: roberta,
    ..BERT
};

pub(super) const ROBERTA_RANKER: Family = Family {
    classes: &["RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"],
    rules: &[BERT_EMBEDDINGS, ROBERTA_POSITIONS, rules::BERT, ROBERTA_CLASSIFIER],
    keys: |build| ranker(build, roberta),
    ..BERT
};

pub(super) const NOMIC_BERT: Family = Family {
    arch: "nomic-bert",
    classes: &["NomicBertModel"],
    activation: "silu",
    rules: &[rules::NOMIC_BERT],
    keys: nomic_bert,
    ..table::LLAMA
};

pub(super) const MODERN_BERT: Family = Family {
    arch: "modern-bert",
    classes: &["ModernBertModel", "ModernBertForMaskedLM"],
    activation: "gelu",
    rules: &[rules::MODERN_BERT, NO_MODERN_HEAD],
    keys: modern_bert,
    ..table::LLAMA
};

pub(super) const MODERN_BERT_RANKER: Family = Family {
    classes: &["ModernBertForSequenceClassification"],
    rules: &[rules::MODERN_BERT, MODERN_CLASSIFIER],
    keys: |build| ranker(build, modern_bert),
    ..MODERN_BERT
};

/// EmbeddingGemma.
pub(super) const GEMMA_EMBEDDING: Family = Family {
    arch: "gemma-embedding",
    classes: &["Gemma3TextModel"],
    rules: &[GEMMA_EMBEDDINGS, FOUR_NORMS_PLUS_ONE, QK, QK_NORMS_PLUS_ONE, VO, GATED, UP_DOWN],
    keys: gemma_embedding,
    ..table::GEMMA3
};

fn bert(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if let Some(kind) = config.text(&["position_embedding_type"])?.filter(|kind| kind != "absolute")
    {
        return Err(config.wrong_value("position_embedding_type", "absolute", kind));
    }
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    encoder(build)
}

fn roberta(build: &mut Build<'_>) -> Result<(), Error> {
    bert(build)?;
    after_padding(build)
}

/// Subtracts the positions up to that of the padding from the context length.
pub(super) fn after_padding(build: &mut Build<'_>) -> Result<(), Error> {
    let n_rows = build.config.count(super::keys::CONTEXT, "the number of positions")?;
    let first = build.first_position()?;
    match n_rows.checked_sub(first) {
        Some(n_ctx) if n_ctx > 0 => {
            build.replace("context_length", n_ctx);
            Ok(())
        }
        _ => {
            let expected = format!("more than the {first} positions up to that of the padding");
            Err(build.config.wrong_value(super::keys::CONTEXT[0], &expected, n_rows))
        }
    }
}

/// The settings that all models of Nomic have.
pub(super) fn nomic_layout(build: &Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for (key, expected) in [("prenorm", false), ("rotary_emb_interleaved", false)] {
        if let Some(found) = config.bool(&[key])?.filter(|found| *found != expected) {
            return Err(config.wrong_value(key, &expected.to_string(), found));
        }
    }
    Ok(())
}

fn nomic_bert(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    nomic_layout(build)?;
    build.sizes()?;
    // Nomic Embed 1 and 1.5 state a context that their training did not reach.
    let trained = config.u32(&["max_trained_positions"])?.unwrap_or(2048);
    let n_ctx = config.count(super::keys::CONTEXT, "the context length")?;
    build.replace("context_length", n_ctx.min(trained.max(1)));
    build.feed_forward()?;
    build.layer_norm()?;
    build.rope(super::rope::n_rotated(build, 1.0)?)?;
    encoder(build)
}

fn modern_bert(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    build.set("rope.dimension_count", build.d_head()?);
    let newer = config.inner("rope_parameters")?;
    for (key, own, kind) in [
        ("rope.freq_base", "global_rope_theta", "full_attention"),
        ("rope.freq_base_swa", "local_rope_theta", "sliding_attention"),
    ] {
        let base = config.f32(&[own])?.or(newer.inner(kind)?.f32(&["rope_theta"])?);
        let base = base.ok_or_else(|| config.missing(own, "the base of RoPE"))?;
        build.set(key, base);
    }
    build.set("attention.sliding_window", config.count(&["local_attention"], "the window")?);
    let period = config.u32(&["global_attn_every_n_layers"])?.unwrap_or(3);
    let listed = super::window::layer_types(build)?;
    let usual = |layers: &Vec<bool>| {
        let is_global = |i: usize| (i as u32).is_multiple_of(period.max(1));
        layers.iter().enumerate().all(|(i, &local)| local != is_global(i))
    };
    match listed.filter(|layers| !usual(layers)) {
        Some(layers) => {
            build.set("attention.sliding_window_pattern", Value::Array(Array::Bool(layers)));
        }
        None => build.set("attention.sliding_window_pattern", period),
    }
    if let Some(pooling) = config.text(&["classifier_pooling"])? {
        let kind = match pooling.as_str() {
            "mean" => MEAN,
            "cls" => FIRST,
            other => return Err(config.wrong_value("classifier_pooling", "mean or cls", other)),
        };
        build.set("classifier.pooling_type", kind);
    }
    encoder(build)
}

fn gemma_embedding(build: &mut Build<'_>) -> Result<(), Error> {
    table::gemma3(build)?;
    if build.config.bool(&["use_bidirectional_attention"])? != Some(true) {
        let expected = "true, as in EmbeddingGemma; convert a model that generates text from a folder with the class Gemma3ForCausalLM";
        return Err(build.config.wrong_value("use_bidirectional_attention", expected, "false"));
    }
    encoder(build)
}

/// The keys of every encoder: attention in both directions, token types, pooling.
pub(super) fn encoder(build: &mut Build<'_>) -> Result<(), Error> {
    build.set("attention.causal", false);
    if let Some(n_types) = build.config.u32(&["type_vocab_size"])? {
        build.keys.push(("tokenizer.ggml.token_type_count".to_owned(), n_types.into()));
    }
    set_pooling(build)
}

/// Sets the pooling of a folder of Sentence Transformers, which may have a decoder, unless it is set.
pub(super) fn set_pooling(build: &mut Build<'_>) -> Result<(), Error> {
    if build.has("pooling_type") {
        return Ok(());
    }
    if let Some(pooling) = pooling(build.config)? {
        build.set("pooling_type", pooling);
    }
    let folder = Path::new(build.config.file()).parent().unwrap_or(Path::new(""));
    let dense = super::modules::folders_of(folder, "Dense")?;
    if build.arch != "gemma-embedding" && !dense.is_empty() {
        let expected =
            "modules.json without Dense: only files of `gemma-embedding` have projections";
        return Err(build.config.wrong_value("modules", expected, dense.len()));
    }
    Ok(())
}

/// The keys of a ranker, whose other keys `encoder` sets.
fn ranker(
    build: &mut Build<'_>,
    encoder: fn(&mut Build<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    encoder(build)?;
    build.replace("pooling_type", RANK);
    let labels = labels_of(build)?;
    if !labels.is_empty() {
        build.set("classifier.output_labels", Value::Array(Array::String(labels)));
    }
    Ok(())
}

/// The names of a classifier's outputs.
pub(super) fn labels_of(build: &Build<'_>) -> Result<Strings, Error> {
    let labels = build.config.inner("id2label")?;
    let mut labels: Vec<(u32, &str)> = labels
        .entries()
        .filter_map(|(id, label)| Some((id.parse().ok()?, label.as_str()?)))
        .collect();
    labels.sort_unstable();
    Ok(Strings::from_iter(labels.into_iter().map(|(_, label)| label)))
}

/// The pooling that the files of Sentence Transformers beside `config.json` name.
fn pooling(config: &Json) -> Result<Option<u32>, Error> {
    let Some(folder) = Path::new(config.file()).parent() else { return Ok(None) };
    let modules = super::modules::folders_of(folder, "Pooling")?;
    let Some(module) = modules.first() else { return Ok(None) };
    let settings = Json::open_if_present(&module.join("config.json"))?;
    let Some(settings) = settings else { return Ok(None) };
    for (key, name, kind) in [
        ("pooling_mode_mean_tokens", "mean", MEAN),
        ("pooling_mode_cls_token", "cls", FIRST),
        ("pooling_mode_lasttoken", "lasttoken", LAST),
    ] {
        let named = settings.text(&["pooling_mode"])?.is_some_and(|mode| mode == name);
        if named || settings.bool(&[key])? == Some(true) {
            return Ok(Some(kind));
        }
    }
    Err(settings.wrong_value("pooling_mode", "mean, cls or lasttoken", "another mode"))
}
