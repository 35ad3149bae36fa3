//! Special tokens, such as BOS and EOS, and chat templates.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value as Setting;

use super::{Vocab, VocabInputs};
use crate::Error;
use crate::config::Json;
use crate::read::text_if_present;
use gguf::{Array, Strings, Value};

/// Role in the settings, key in the file.
const ROLES: &[(&str, &str)] = &[
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("unk", "unknown_token_id"),
    // GGUF spells the key this way.
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("mask", "mask_token_id"),
];
/// Role, the role that replaces it in encoders, and its text in BERT's vocabularies.
const ENCODER_ROLES: [(&str, &str, &str); 4] = [
    ("bos", "cls", "[CLS]"),
    ("eos", "sep", "[SEP]"),
    ("sep", "sep", "[SEP]"),
    ("pad", "pad", "[PAD]"),
];
/// Largest accepted chat template, in bytes: twenty times the largest known one.
const MAX_TEMPLATE: u64 = 1 << 20;

/// Ids of special tokens, and whether BOS and EOS are added to a text.
pub(super) fn keys(
    inputs: &VocabInputs<'_>,
    vocab: &Vocab,
    json: Option<&Json>,
    settings: Option<&Json>,
) -> Result<Vec<(String, Value)>, Error> {
    let ids: HashMap<&str, usize> =
        vocab.tokens.iter().enumerate().map(|(id, text)| (text.as_str(), id)).collect();
    let generation = Json::open_if_present(&inputs.folder.join("generation_config.json"))?;
    let mut keys = Vec::new();
    let mut texts = HashMap::new();
    for &(role, key) in ROLES {
        // Encoders have BOS and EOS under other names.
        let other = ENCODER_ROLES.iter().find(|(of, ..)| *of == role && inputs.encodes);
        let id_of = |role: &str| {
            let text = settings.and_then(|settings| token_text(settings, role))?;
            ids.get(text.as_str()).copied()
        };
        let named = id_of(role).or_else(|| {
            let &(_, role, text) = other?;
            id_of(role).or_else(|| ids.get(text).copied())
        });
        let numbered = || {
            let sources = [Some(inputs.config), generation.as_ref()];
            let stated = sources.into_iter().flatten().find_map(|source| token_id(source, role));
            // The numbers in RWKV's settings are wrong.
            if vocab.model == "rwkv" { matches!(role, "bos" | "eos").then_some(0) } else { stated }
        };
        let own = || vocab.unk.filter(|_| role == "unk").map(|id| id as usize);
        let id = named.or_else(numbered).or_else(own).filter(|&id| id < vocab.tokens.len());
        if let Some(id) = id {
            texts.insert(role, vocab.tokens[id].as_str());
            keys.push((format!("tokenizer.ggml.{key}"), Value::U32(id as u32)));
        }
    }
    keys.extend(fixed(vocab));
    if inputs.embeds
        && let Some(last) = json.map(last_special).transpose()?.flatten()
        && let Some(&id) = ids.get(last.as_str())
    {
        end_with(id, &mut keys);
        texts.insert("eos", vocab.tokens[id].as_str());
    }
    let adds = json.map(|json| adds_bos_eos(json, &texts)).transpose()?.unwrap_or_default();
    if inputs.encodes {
        let separates = json.map(separates_twice).transpose()?.unwrap_or(false);
        keys.push(("tokenizer.ggml.add_sep_token".to_owned(), separates.into()));
    }
    for (role, implied) in [("bos", adds.0), ("eos", adds.1)] {
        let key = format!("add_{role}_token");
        let stated = settings.map(|settings| settings.bool(&[&key])).transpose()?.flatten();
        if let Some(add) = stated.or(implied) {
            keys.push((format!("tokenizer.ggml.{key}"), add.into()));
        }
    }
    Ok(keys)
}

/// Makes token `id` the end of texts; another token that ended texts then ends turns, as in
/// llama.cpp.
fn end_with(id: usize, keys: &mut Vec<(String, Value)>) {
    const EOS: &str = "tokenizer.ggml.eos_token_id";
    let id = Value::U32(id as u32);
    let old = keys.iter_mut().find(|(key, _)| key == EOS);
    match old {
        Some((_, old)) if *old == id => {}
        Some((_, old)) => {
            let turn = std::mem::replace(old, id);
            keys.push(("tokenizer.ggml.eot_token_id".to_owned(), turn));
        }
        None => keys.push((EOS.to_owned(), id)),
    }
}

/// Special tokens that no setting names, as in llama.cpp: RWKV begins and ends texts by token 0, and both
/// families end a turn by a token of their own.
fn fixed(vocab: &Vocab) -> Vec<(String, Value)> {
    let turn = match vocab.model {
        // Two line ends, and `<|plamo:op|>`.
        "rwkv" => 261,
        "plamo2" => 4,
        _ => return Vec::new(),
    };
    if turn as usize >= vocab.tokens.len() {
        return Vec::new();
    }
    vec![("tokenizer.ggml.eot_token_id".to_owned(), Value::U32(turn))]
}

/// The text of a special token: a string, or an object that contains one; `None` if it is not set.
fn token_text(settings: &Json, role: &str) -> Option<String> {
    let key = format!("{role}_token");
    let (_, token) = settings.get(&[&key])?;
    let text = token.as_str().or_else(|| token.get("content")?.as_str());
    text.map(str::to_owned)
}

/// The id of a special token: a number, or a list that begins with it; `None` if it is not set.
fn token_id(settings: &Json, role: &str) -> Option<usize> {
    let key = format!("{role}_token_id");
    let (_, id) = settings.get(&[&key])?;
    let id = id.as_u64().or_else(|| id.as_array()?.first()?.as_u64());
    id.and_then(|id| usize::try_from(id).ok())
}

fn kind(step: &Setting) -> &str {
    step.get("type").and_then(Setting::as_str).unwrap_or_default()
}

/// The steps of the post-processor in `tokenizer.json`.
fn post_processors(json: &Json) -> Result<Vec<Setting>, Error> {
    let Some(processor) = json.object("post_processor")? else { return Ok(Vec::new()) };
    let processor = Setting::Object(processor.clone());
    if kind(&processor) != "Sequence" {
        return Ok(vec![processor]);
    }
    Ok(processor.get("processors").and_then(Setting::as_array).cloned().unwrap_or_default())
}

/// The text of the special token that the post-processor in `tokenizer.json` adds at the end of a text.
fn last_special(json: &Json) -> Result<Option<String>, Error> {
    let steps = post_processors(json)?;
    let template = steps.iter().find(|step| kind(step) == "TemplateProcessing");
    let last = template.and_then(|template| template.get("single")?.as_array()?.last());
    let text = last.and_then(|last| last.get("SpecialToken")?.get("id")?.as_str());
    Ok(text.map(str::to_owned))
}

/// Whether the post-processor in `tokenizer.json` adds BOS at the start and EOS at the end of a
/// text; `None` for both if it has no step that does so.
fn adds_bos_eos(
    json: &Json,
    texts: &HashMap<&str, &str>,
) -> Result<(Option<bool>, Option<bool>), Error> {
    let steps = post_processors(json)?;
    if steps.iter().any(|step| matches!(kind(step), "RobertaProcessing" | "BertProcessing")) {
        return Ok((Some(true), Some(true)));
    }
    let Some(template) = steps.iter().find(|step| kind(step) == "TemplateProcessing") else {
        return Ok((None, None));
    };
    let single = template.get("single").and_then(Setting::as_array);
    let is_role = |step: Option<&Setting>, role: &str| {
        let text = step.and_then(|step| step.get("SpecialToken")?.get("id")?.as_str());
        text.is_some() && text == texts.get(role).copied()
    };
    Ok((
        Some(is_role(single.and_then(|list| list.first()), "bos")),
        Some(is_role(single.and_then(|list| list.last()), "eos")),
    ))
}

/// Whether the post-processor in `tokenizer.json` writes two special tokens between two texts, as
/// RoBERTa does.
fn separates_twice(json: &Json) -> Result<bool, Error> {
    let processor = json.object("post_processor")?.cloned().unwrap_or_default();
    if processor.get("type").and_then(Setting::as_str) == Some("RobertaProcessing") {
        return Ok(true);
    }
    let pair = processor.get("pair").and_then(Setting::as_array).cloned().unwrap_or_default();
    let mut parts = pair.iter().map(|step| step.get("SpecialToken").is_some());
    let after_first = parts.by_ref().skip_while(|special| *special).skip(1);
    Ok(after_first.take_while(|special| *special).count() > 1)
}

/// The keys of the default chat template and of named templates.
pub(super) fn templates(
    folder: &Path,
    settings: Option<&Json>,
) -> Result<Vec<(String, Value)>, Error> {
    let mut default = text_if_present(&folder.join("chat_template.jinja"), MAX_TEMPLATE)?;
    let mut named: Vec<(String, String)> = Vec::new();
    if default.is_none()
        && let Some(json) = Json::open_if_present(&folder.join("chat_template.json"))?
    {
        default = json.text(&["chat_template"])?;
    }
    if let Some(settings) = settings
        && let Some((_, template)) = settings.get(&["chat_template"])
    {
        if let Some(text) = template.as_str() {
            default.get_or_insert(text.to_owned());
        }
        for entry in template.as_array().into_iter().flatten() {
            let part = |key: &str| entry.get(key).and_then(Setting::as_str).map(str::to_owned);
            match (part("name"), part("template")) {
                (Some(name), Some(text)) if name == "default" => drop(default.get_or_insert(text)),
                (Some(name), Some(text)) => named.push((name, text)),
                (_, _) => {
                    return Err(settings.wrong_value(
                        "chat_template",
                        "a string, or objects with name and template",
                        entry,
                    ));
                }
            }
        }
    }
    let mut keys = Vec::new();
    if let Some(text) = default {
        keys.push(("tokenizer.chat_template".to_owned(), Value::from(text)));
    }
    // In a key, a name consists of letters, digits and underscores.
    let clean = |name: &str| {
        name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "_").to_lowercase()
    };
    named.sort();
    named.dedup_by(|(a, _), (b, _)| clean(a) == clean(b));
    if !named.is_empty() {
        let names = named.iter().map(|(name, _)| clean(name));
        keys.push((
            "tokenizer.chat_templates".to_owned(),
            Value::Array(Array::String(Strings::from_iter(names))),
        ));
    }
    keys.extend(named.into_iter().map(|(name, text)| {
        (format!("tokenizer.chat_template.{}", clean(&name)), Value::from(text))
    }));
    Ok(keys)
}
