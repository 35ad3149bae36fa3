//! The report as JSON.

use super::verdict::Verdict;
use super::{Facts, StoredProfile};
use crate::embedded;
use crate::gguf::{Array, TensorInfo, Value};
use crate::tokenizer::Tokenizer;
use serde_json::{Map, Value as Json, json};

/// Arrays up to this length are printed in full.
const FULL_ARRAY: usize = 64;

pub(super) fn report(facts: &Facts<'_>, verdict: &Verdict) -> Json {
    let file = facts.file;
    let metadata = file.metadata().iter().map(|(key, v)| (key.to_owned(), value(v)));
    let hyper = facts.hyper.iter().map(|(name, v)| (name.replace([' ', '-'], "_"), value(v)));
    let types = facts.types.iter().map(|(name, (count, bytes))| {
        ((*name).to_owned(), json!({ "tensors": count, "bytes": integer(*bytes) }))
    });
    json!({
        "verdict": verdict.json(),
        "file": file.name(),
        "parts": file.paths().len(),
        "container": file.container().to_string(),
        "version": file.version(),
        "size_bytes": file.size_bytes(),
        "architecture": facts.architecture,
        "n_params": integer(facts.n_params),
        "model": hyper.collect::<Map<_, _>>(),
        "types": types.collect::<Map<_, _>>(),
        "tokenizer": match &facts.tokenizer {
            None => Json::Null,
            Some(Err(why)) => json!({ "error": why }),
            Some(Ok(t)) => tokenizer(t),
        },
        "metadata": metadata.collect::<Map<_, _>>(),
        "tensors": file.tensors().iter().map(tensor).collect::<Vec<_>>(),
        "predictor": facts.predictor.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        "predictor_threshold":
            (!facts.predictor.is_empty()).then(|| facts.predictor_threshold()),
        "profile": match &facts.profile {
            None => Json::Null,
            Some(Err(why)) => json!({ "error": why }),
            Some(Ok(known)) => profile(known),
        },
        "notices": facts.is_built_in.then_some(embedded::NOTICES),
    })
}

fn profile(known: &StoredProfile) -> Json {
    let summary = known.profile.summary();
    json!({
        "file": known.file,
        "source": known.profile.source(),
        "tokens": known.profile.n_tokens(),
        "tokens_wanted": known.profile.n_wanted(),
        "density": summary.density,
        "density_by_layer": summary.density_by_layer,
        "hot": summary.hot,
        "never": summary.never_fired,
    })
}

fn tokenizer(tokenizer: &Tokenizer) -> Json {
    let special = Facts::special_tokens(tokenizer).into_iter();
    let special =
        special.map(|(role, id, text)| (role.to_owned(), json!({ "id": id, "text": text })));
    let warnings = tokenizer.warnings().iter().map(ToString::to_string);
    json!({
        "n_vocab": tokenizer.n_vocab(),
        "special": special.collect::<Map<_, _>>(),
        "eog": tokenizer.eog(),
        "adds_bos": tokenizer.adds_bos(),
        "adds_eos": tokenizer.adds_eos(),
        "space_prefix": tokenizer.has_space_prefix(),
        "warnings": warnings.collect::<Vec<_>>(),
    })
}

fn tensor(tensor: &TensorInfo) -> Json {
    json!({
        "name": tensor.name,
        "type": tensor.ty.to_string(),
        "shape": tensor.shape,
        "bytes": tensor.n_bytes(),
        "part": tensor.part(),
        "offset": tensor.offset(),
    })
}

/// A JSON number: exact up to `u64::MAX`, above it the nearest `f64`.
fn integer(n: u128) -> Json {
    #[allow(clippy::cast_precision_loss)] // above u64::MAX, the nearest f64 is enough
    u64::try_from(n).map_or_else(|_| json!(n as f64), |n| json!(n))
}

fn value(value: &Value) -> Json {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(text) => json!(String::from_utf8_lossy(text)),
        Value::Array(values) => array(values),
    }
}

/// A short array in full, a long array as its type, length and first 8 elements.
fn array(array: &Array) -> Json {
    if array.len() <= FULL_ARRAY {
        return Json::Array(first(array, FULL_ARRAY));
    }
    json!({ "type": array.type_name(), "length": array.len(), "first": first(array, 8) })
}

fn first(values: &Array, n: usize) -> Vec<Json> {
    fn numbers<T: Copy + Into<Json>>(values: &[T], n: usize) -> Vec<Json> {
        values.iter().take(n).map(|v| (*v).into()).collect()
    }
    match values {
        Array::U8(v) => numbers(v, n),
        Array::I8(v) => numbers(v, n),
        Array::U16(v) => numbers(v, n),
        Array::I16(v) => numbers(v, n),
        Array::U32(v) => numbers(v, n),
        Array::I32(v) => numbers(v, n),
        Array::U64(v) => numbers(v, n),
        Array::I64(v) => numbers(v, n),
        Array::F32(v) => numbers(v, n),
        Array::F64(v) => numbers(v, n),
        Array::Bool(v) => numbers(v, n),
        Array::String(v) => v.iter().take(n).map(|s| json!(String::from_utf8_lossy(s))).collect(),
        Array::Array(v) => v.iter().take(n).map(array).collect(),
    }
}
