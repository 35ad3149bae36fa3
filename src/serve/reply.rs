//! Formats the prompt of a conversation, and splits generated text into reasoning, answer and tool
//! calls.

use std::hash::{BuildHasher, RandomState};

use runtime::dialogue;
use text::chat::{CallDelta, CallParser, Delivery, Reasoning, ReplyPart};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::job::Task;
use crate::messages::ChatRequest;
use crate::params::Params;
use crate::served::ServedModel;
use crate::tools::Tools;

/// A conversation that is ready to be answered.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) params: Params,
    /// The prompt as text.
    pub(crate) text: String,
    pub(crate) task: Task,
    splits_reasoning: bool,
    tools: Option<Tools>,
}

impl Turn {
    /// Formats and tokenizes a conversation.
    ///
    /// # Errors
    /// 400 for an invalid conversation or constraint.
    pub(crate) fn new(
        chat: &ChatRequest,
        params: Params,
        splits_reasoning: bool,
        n_logprobs: Option<usize>,
        served: &ServedModel,
    ) -> Result<Turn> {
        let text = chat.format(served)?;
        let tools = chat.tools.clone();
        let mut written_tokens = if splits_reasoning { served.marks.clone() } else { Vec::new() };
        if tools.is_some() {
            written_tokens.extend(dialogue::call_marks(served.call_format, &served.tokenizer));
        }
        let structure = match (&tools, &params.structure) {
            (Some(_), Some(structure)) => {
                let problem = "cannot be combined with `tools`";
                return Err(ApiError::field(structure.field, problem));
            }
            (Some(tools), None) => Some(tools.structure()),
            (None, structure) => structure.clone(),
        };
        let is_delayed = tools.as_ref().is_none_or(Tools::starts_after_reasoning);
        let after = (splits_reasoning && is_delayed).then_some(text.as_str());
        let task = Task {
            prompt: served.conversation_ids(&text)?,
            stops: served.ends.stops.clone(),
            end_tokens: served.ends.tokens.clone(),
            written_tokens,
            n_logprobs,
            constraints: served.constraints(structure.as_ref(), params.n, after)?,
            ..Task::default()
        };
        Ok(Turn { params, text, task, splits_reasoning, tools })
    }

    pub(crate) fn replies(&self) -> Vec<ReplyParser> {
        let calls = |tools: &Tools| {
            let parser =
                CallParser::new(tools.format, &tools.list, RandomState::new().hash_one(()));
            // A grammar keeps the arguments valid, so they can be sent before the call is complete.
            parser.with_delivery(Delivery::Incremental)
        };
        let reply = |_| ReplyParser {
            splitter: self.splits_reasoning.then(|| Reasoning::after(&self.text)),
            calls: self.tools.as_ref().map(calls),
        };
        (0..self.params.n).map(reply).collect()
    }
}

/// Whether reasoning is separated: the request's `reasoning_format`, else the server's default.
///
/// # Errors
/// 400 for an unknown name.
pub(crate) fn splits_reasoning(fields: &mut Fields, served: &ServedModel) -> Result<bool> {
    match fields.string("reasoning_format")?.as_deref() {
        None => Ok(served.defaults.splits_reasoning),
        Some("none") => Ok(false),
        Some("auto" | "deepseek" | "deepseek-legacy") => Ok(true),
        Some(other) => {
            let problem = format!("is \"{other}\", expected none, auto or deepseek");
            Err(ApiError::field("reasoning_format", problem))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplyPiece {
    /// Text of the answer.
    Answer(String),
    /// Text of the reasoning before the answer.
    Reasoning(String),
    /// A tool call begins.
    Call { index: usize, id: String, name: String },
    /// The next part of a call's arguments.
    Arguments { index: usize, fragment: String },
}

/// A tool call, complete or still arriving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The arguments: a JSON object as text.
    pub(crate) arguments: String,
}

/// The parts of an answer, complete or still arriving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) answer: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
}

impl Content {
    pub(crate) fn add(&mut self, pieces: &[ReplyPiece]) {
        for piece in pieces {
            match piece {
                ReplyPiece::Answer(text) => self.answer += text,
                ReplyPiece::Reasoning(text) => self.reasoning += text,
                ReplyPiece::Call { id, name, .. } => {
                    let arguments = String::new();
                    self.calls.push(Call { id: id.clone(), name: name.clone(), arguments });
                }
                ReplyPiece::Arguments { index, fragment } => {
                    if let Some(call) = self.calls.get_mut(*index) {
                        call.arguments += fragment;
                    }
                }
            }
        }
    }
}

/// Splits the text of one choice into pieces.
#[derive(Debug)]
pub(crate) struct ReplyParser {
    splitter: Option<Reasoning>,
    calls: Option<CallParser>,
}

impl ReplyParser {
    /// Adds text and returns the pieces that are now certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<ReplyPiece> {
        let ReplyParser { splitter, calls } = self;
        let mut pieces = Vec::new();
        match splitter {
            Some(splitter) => {
                splitter.push(text, &mut |part, text| add(&mut pieces, calls, part, text));
            }
            None => add(&mut pieces, calls, ReplyPart::Answer, text),
        }
        pieces
    }

    /// Ends the text and returns the pieces that were held back.
    pub(crate) fn finish(&mut self) -> Vec<ReplyPiece> {
        let ReplyParser { splitter, calls } = self;
        let mut pieces = Vec::new();
        if let Some(splitter) = splitter.take() {
            splitter.finish(&mut |part, text| add(&mut pieces, calls, part, text));
        }
        if let Some(calls) = calls.take() {
            pieces.extend(calls.finish().into_iter().filter_map(piece));
        }
        pieces
    }
}

fn add(pieces: &mut Vec<ReplyPiece>, calls: &mut Option<CallParser>, part: ReplyPart, text: &str) {
    match (part, calls) {
        _ if text.is_empty() => {}
        (ReplyPart::Reasoning, _) => match pieces.last_mut() {
            Some(ReplyPiece::Reasoning(last)) => last.push_str(text),
            _ => pieces.push(ReplyPiece::Reasoning(text.to_owned())),
        },
        (ReplyPart::Answer, Some(calls)) => {
            pieces.extend(calls.push(text).into_iter().filter_map(piece));
        }
        (ReplyPart::Answer, None) => match pieces.last_mut() {
            Some(ReplyPiece::Answer(last)) => last.push_str(text),
            _ => pieces.push(ReplyPiece::Answer(text.to_owned())),
        },
    }
}

fn piece(delta: CallDelta) -> Option<ReplyPiece> {
    match delta {
        CallDelta::Content(text) => Some(ReplyPiece::Answer(text)),
        CallDelta::Begin { index, id, name } => Some(ReplyPiece::Call { index, id, name }),
        CallDelta::Arguments { index, fragment } => Some(ReplyPiece::Arguments { index, fragment }),
        CallDelta::End { .. } => None,
    }
}
