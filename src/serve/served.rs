//! The served model: scheduler, tokenizer, chat template, facts.

use std::sync::{Arc, OnceLock};

use constrain::Vocabulary;
use engine::Engine;
use hal::{Bytes, Device};
use runtime::RankPrompt;
use runtime::dialogue::{self, Ends};
use scheduler::{Pooling, Scheduler, SchedulerOptions, Status};
use serde_json::{Value, json};
use text::chat::{CallFormat, Dialogue, Prompt, Turns};
use text::sample::Constraint;
use text::tokenizer::Tokenizer;

use crate::clock::unix_seconds;
use crate::config::Defaults;
use crate::error::{ApiError, Result};
use crate::structure::Structure;
use crate::thermocline;

/// Id of the built-in model.
const BUILT_IN: &str = "built-in-stories";

/// A loaded model and everything else that requests need.
#[derive(Debug)]
pub struct ServedModel {
    pub(crate) scheduler: Scheduler,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) dialogue: Dialogue,
    /// Tokens and strings that end an answer, in addition to the tokenizer's end-of-generation
    /// tokens.
    pub(crate) ends: Ends,
    /// Control tokens that are kept in the text, because they mark the reasoning.
    pub(crate) marks: Vec<u32>,
    pub(crate) call_format: CallFormat,
    /// Built at the first request with a constraint.
    vocabulary: OnceLock<std::result::Result<Vocabulary, constrain::Error>>,
    pub(crate) defaults: Defaults,
    pub(crate) facts: Facts,
    n_slots: usize,
}

/// Facts about the model that do not change while it is served.
#[derive(Debug)]
pub(crate) struct Facts {
    /// The name of the file without its folder, or of the built-in model.
    pub(crate) name: String,
    /// The path of the file; empty for the built-in model.
    pub(crate) path: String,
    /// When the model was loaded, in seconds since 1970.
    pub(crate) created: u64,
    /// llama-server's `meta`.
    pub(crate) meta: Value,
    /// Maximum number of tokens of one sequence.
    pub(crate) n_ctx: usize,
    pub(crate) n_embd: usize,
    pub(crate) pooling: Pooling,
    /// Formats a query and a document; `None` for models without a ranking head.
    pub(crate) rank_prompt: Option<RankPrompt>,
    /// Layers and plan, for `/thermocline`.
    pub(crate) layers: Value,
    pub(crate) devices: Vec<Device>,
    /// Memory that the driver of each device uses.
    reserves: Vec<Bytes>,
}

impl ServedModel {
    /// Starts a scheduler for a loaded model. `dialogue` formats conversations; `reserves` is the
    /// memory of each device's driver, empty if it is not known.
    ///
    /// # Errors
    /// Folders that cannot be used, or a thread that cannot start.
    pub fn start(
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
        dialogue: Dialogue,
        defaults: Defaults,
        options: SchedulerOptions,
        reserves: &[Bytes],
    ) -> std::result::Result<ServedModel, scheduler::StartError> {
        let facts = Facts::from_engine(&engine, &tokenizer, reserves);
        let ends = dialogue::ends(&dialogue, &tokenizer);
        let marks = dialogue::reasoning_marks(&ends, &tokenizer);
        let scheduler = Scheduler::start(engine, Arc::clone(&tokenizer), options)?;
        let n_slots = scheduler.status().slots.len();
        let call_format = CallFormat::detect(dialogue.source().unwrap_or_default());
        let vocabulary = OnceLock::new();
        Ok(ServedModel {
            scheduler,
            tokenizer,
            dialogue,
            ends,
            marks,
            call_format,
            vocabulary,
            defaults,
            facts,
            n_slots,
        })
    }

    /// Ends all generations and the scheduler's thread, after at most `grace`.
    pub fn stop(&self, grace: std::time::Duration) {
        self.scheduler.shutdown(grace);
    }

    pub(crate) fn pooling(&self) -> Pooling {
        self.defaults.pooling.unwrap_or(self.facts.pooling)
    }

    pub(crate) fn n_slots(&self) -> usize {
        self.n_slots
    }

    pub(crate) fn status(&self) -> Status {
        self.scheduler.status()
    }

    /// The tokens of a text at the start of a sequence, with a BOS token if the vocabulary requires
    /// one. Empty only if the vocabulary has no BOS token.
    ///
    /// # Errors
    /// 400 for a text that cannot be tokenized.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.encode(text, true, true);
        let mut ids =
            ids.map_err(|e| ApiError::field("prompt", format!("cannot be tokenized: {e}")))?;
        if ids.is_empty() {
            ids.extend(self.tokenizer.bos());
        }
        Ok(ids)
    }

    /// A conversation as the template formats it.
    ///
    /// # Errors
    /// 400 if the template rejects the conversation.
    pub(crate) fn format(&self, turns: &Turns<'_>) -> Result<Prompt> {
        self.dialogue.format(turns).map_err(|e| {
            ApiError::invalid(format!("the chat template rejects this conversation: {e}"))
                .with_param("messages")
        })
    }

    /// The tokens of a formatted conversation.
    ///
    /// # Errors
    /// 400 for a text that cannot be tokenized.
    pub(crate) fn conversation_ids(&self, text: &str) -> Result<Vec<u32>> {
        let ids = dialogue::ids(text, &self.tokenizer);
        ids.map_err(|e| ApiError::field("messages", format!("cannot be tokenized: {e}")))
    }

    /// A constraint for each of `n` choices. If `after` is set (to the prompt), the constraint does
    /// not apply to the reasoning before the answer.
    ///
    /// # Errors
    /// 400 for a grammar that is invalid or too complex; 501 for a vocabulary that does not support
    /// constraints.
    pub(crate) fn constraints(
        &self,
        structure: Option<&Structure>,
        n: usize,
        after: Option<&str>,
    ) -> Result<Vec<Box<dyn Constraint>>> {
        let Some(Structure { grammar, field }) = structure else { return Ok(Vec::new()) };
        let vocabulary = self.vocabulary.get_or_init(|| {
            Vocabulary::new(&self.tokenizer).map(|tokens| tokens.with_ends(&self.ends.tokens))
        });
        let vocabulary = vocabulary.as_ref().map_err(|e| ApiError::not_supported(e.to_string()))?;
        let limits = constrain::Limits::default();
        let compile = |_| {
            let constraint = vocabulary.compile(grammar, &limits);
            let constraint =
                constraint.map_err(|e| ApiError::field(field, format!("is invalid: {e}")))?;
            Ok(match after {
                Some(prompt) => vocabulary.after_reasoning(prompt, constraint),
                None => constraint,
            })
        };
        (0..n).map(compile).collect()
    }

    /// The text of tokens, with the names of control tokens.
    pub(crate) fn text(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of a token; for a control token, its name.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        self.tokenizer.piece(id, true).unwrap_or_default()
    }
}

impl Facts {
    pub(crate) fn reserve(&self, device: usize) -> Bytes {
        self.reserves.get(device).copied().unwrap_or_default()
    }

    fn from_engine(engine: &Engine, tokenizer: &Tokenizer, reserves: &[Bytes]) -> Facts {
        let model = engine.model();
        let (file, hyper) = (&model.file, &model.hyper);
        let metadata = file.metadata();
        let path = file.paths().first().map(|path| path.display().to_string()).unwrap_or_default();
        let name = file.paths().first().and_then(|path| path.file_name());
        let name = name.map_or(BUILT_IN.to_owned(), |name| name.to_string_lossy().into_owned());
        let n_params: u64 = file.tensors().iter().map(|tensor| tensor.n_elements()).sum();
        Facts {
            name,
            path,
            created: unix_seconds(),
            meta: json!({
                "vocab_type": vocab_type(metadata.str("tokenizer.ggml.model").ok().flatten()),
                "n_vocab": tokenizer.n_vocab(),
                "n_ctx": engine.max_tokens(),
                "n_ctx_train": hyper.n_ctx_train,
                "n_embd": model.n_embedding(),
                "n_layer": hyper.n_layer,
                "n_params": n_params,
                "size": file.size_bytes(),
                "family": model.spec.name,
            }),
            n_ctx: engine.max_tokens(),
            n_embd: model.n_embedding(),
            pooling: Pooling::of_model(model),
            rank_prompt: model
                .rank
                .as_ref()
                .map(|_| RankPrompt::from_metadata(metadata, tokenizer)),
            layers: thermocline::layers(engine, reserves),
            devices: engine.devices().to_vec(),
            reserves: reserves.to_vec(),
        }
    }
}

/// llama.cpp's number of a vocabulary type.
fn vocab_type(model: Option<&str>) -> u32 {
    match model {
        Some("llama") => 1,
        Some("gpt2" | "gemma4") => 2,
        Some("bert") => 3,
        Some("t5") => 4,
        _ => 0,
    }
}
