//! OpenAI's endpoints.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod rerank;
pub(crate) mod responses;
mod responses_stream;

use serde_json::{Value, json};

use crate::clock::{id, unix_seconds};
use crate::job::Outcome;
use crate::served::ServedModel;
use crate::state::App;

/// The members that every object of a response has.
#[derive(Clone, Debug)]
pub(crate) struct ResponseHead {
    id: String,
    created: u64,
    model: String,
}

impl ResponseHead {
    pub(crate) fn new(prefix: &str, app: &App, served: &ServedModel) -> ResponseHead {
        let model = app.model_id(served).to_owned();
        ResponseHead { id: id(prefix), created: unix_seconds(), model }
    }

    pub(crate) fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(),
            "choices": choices,
        })
    }
}

/// The system fingerprint: `b` and the version, like llama-server's `b` and build number.
pub(crate) fn fingerprint() -> &'static str {
    concat!("b", env!("CARGO_PKG_VERSION"), "-thermocline")
}

/// Token counts of all choices. A prompt shared by several choices is counted once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    prompt: usize,
    cached: usize,
    completion: usize,
}

impl Usage {
    /// Adds the tokens of a choice. The prompt's tokens are added only if `is_first` is set.
    pub(crate) fn add(&mut self, outcome: &Outcome, is_first: bool) {
        if is_first {
            self.prompt += outcome.n_prompt;
            self.cached += outcome.n_cached;
        }
        self.completion += outcome.n_generated;
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }

    pub(crate) fn responses(&self) -> Value {
        json!({
            "input_tokens": self.prompt,
            "input_tokens_details": { "cached_tokens": self.cached },
            "output_tokens": self.completion,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": self.prompt + self.completion,
        })
    }
}
