//! Log-probabilities in the formats of OpenAI's two completion endpoints and of llama-server.

use scheduler::{TokenEvent, TokenLogprobs};
use serde_json::{Map, Value, json};

use crate::served::ServedModel;

/// Replaces minus infinity, which JSON cannot represent, by OpenAI's lowest value.
fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// The text of a token, with U+FFFD for incomplete characters.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn entry(bytes: &[u8], logprob: f32) -> Value {
    json!({ "token": text(bytes), "logprob": finite(logprob), "bytes": bytes })
}

/// One element of `logprobs.content` of a chat completion; `None` for text without a token.
pub(crate) fn chat(token: &TokenEvent, served: &ServedModel) -> Option<Value> {
    let logprobs = token.logprobs.as_ref()?;
    let mut object = entry(&token.bytes, logprobs.chosen);
    let top = logprobs.top.iter().map(|(id, logprob)| entry(served.bytes(*id), *logprob));
    object["top_logprobs"] = top.collect();
    Some(object)
}

/// One element of llama-server's `completion_probabilities`.
pub(crate) fn llama(token: &TokenEvent, served: &ServedModel) -> Option<Value> {
    let logprobs = token.logprobs.as_ref()?;
    let with_id = |id: u32, bytes: &[u8], logprob: f32| json!({ "id": id, "token": text(bytes), "bytes": bytes, "logprob": finite(logprob) });
    let mut object = with_id(token.id?, &token.bytes, logprobs.chosen);
    let top = logprobs.top.iter().map(|(id, p)| with_id(*id, served.bytes(*id), *p));
    object["top_logprobs"] = top.collect();
    Some(object)
}

/// As [`llama`], with probabilities instead of their logarithms.
pub(crate) fn llama_after_sampling(token: &TokenEvent, served: &ServedModel) -> Option<Value> {
    let logprobs = token.logprobs.as_ref()?;
    let with_id = |id: u32, bytes: &[u8], logprob: f32| {
        let probability = f64::from(logprob).exp();
        json!({ "id": id, "token": text(bytes), "bytes": bytes, "prob": probability })
    };
    let mut object = with_id(token.id?, &token.bytes, logprobs.chosen);
    let top = logprobs.top.iter().map(|(id, p)| with_id(*id, served.bytes(*id), *p));
    object["top_probs"] = top.collect();
    Some(object)
}

/// The `logprobs` of a text completion: four lists with an entry per token.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    offset: usize,
    sum: f64,
}

impl TextLogprobs {
    /// Adds a token. The first token of a prompt has no log-probability.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        logprobs: Option<&TokenLogprobs>,
        served: &ServedModel,
    ) {
        let token = text(bytes);
        self.text_offset.push(self.offset);
        self.offset += token.chars().count();
        self.tokens.push(token);
        self.token_logprobs.push(logprobs.map(|entry| finite(entry.chosen)));
        self.top_logprobs.push(logprobs.map_or(Value::Null, |entry| {
            let top = entry.top.iter();
            let pairs = top.map(|(id, p)| (text(served.bytes(*id)), finite(*p).into()));
            Value::Object(pairs.collect::<Map<String, Value>>())
        }));
        self.sum += logprobs.map_or(0.0, |entry| f64::from(finite(entry.chosen)));
    }

    /// Mean log-probability of the tokens that have one.
    pub(crate) fn mean(&self) -> f64 {
        let n = self.token_logprobs.iter().flatten().count();
        if n == 0 { 0.0 } else { self.sum / n as f64 }
    }

    /// Returns the tokens added since the last call; text offsets continue.
    pub(crate) fn take(&mut self) -> Value {
        let offset = self.offset;
        let taken = std::mem::take(self);
        self.offset = offset;
        taken.json()
    }

    /// Whether no token was added since the last [`TextLogprobs::take`].
    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}
