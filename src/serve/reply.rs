//! Formats the prompt of a conversation, and splits generated text into reasoning, answer and tool
//! calls.

use runtime::dialogue;
use text::chat::{CallDelta, CallParser, Delivery, Reasoning, ReplyPart};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::messages::ChatRequest;
use crate::params::Params;
use crate::served::Served;
use crate::tools::Tools;
use crate::work::Task;

/// A conversation that is ready to be answered.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) params: Params,
    /// The prompt as text.
    pub(crate) text: String,
    pub(crate) task: Task,
    splits: bool,
    tools: Option<Tools>,
}

impl Turn {
    /// Formats and tokenizes a conversation.
    ///
    /// # Errors
    /// 400 if the template rejects it.
    pub(crate) fn new(
        talk: &ChatRequest,
        params: Params,
        splits: bool,
        n_logprobs: Option<usize>,
        served: &Served,
    ) -> Result<Turn> {
        let text = talk.format(served)?;
        let tools = talk.tools.clone();
        let mut written = if splits { served.marks.clone() } else { Vec::new() };
        if tools.is_some() {
            written.extend(dialogue::call_marks(served.calls, &served.tokenizer));
        }
        let structure = match (&tools, &params.structure) {
            (Some(_), Some(structure)) => {
                let problem = "cannot be combined with `tools`";
                return Err(ApiError::field(structure.field, problem));
            }
            (Some(tools), None) => Some(tools.structure()),
            (None, structure) => structure.clone(),
        };
        let is_after = tools.as_ref().is_none_or(Tools::follow_reasoning);
        let after = (splits && is_after).then_some(text.as_str());
        let task = Task {
            prompt: served.conversation_ids(&text)?,
            stops: served.ends.stops.clone(),
            ends: served.ends.tokens.clone(),
            written,
            n_logprobs,
            constraints: served.constraints(structure.as_ref(), params.n, after)?,
            ..Task::default()
        };
        Ok(Turn { params, text, task, splits, tools })
    }

    /// A [`Reply`] for each choice.
    pub(crate) fn replies(&self) -> Vec<Reply> {
        let calls = |tools: &Tools| {
            let parser = CallParser::new(tools.format, &tools.list, rand::random());
            // A grammar keeps the arguments valid, so they can be sent before the call is complete.
            parser.with_delivery(Delivery::Incremental)
        };
        let reply = |_| Reply {
            splitter: self.splits.then(|| Reasoning::after(&self.text)),
            calls: self.tools.as_ref().map(calls),
        };
        (0..self.params.n).map(reply).collect()
    }
}

/// Whether reasoning is separated: the request's `reasoning_format`, else the server's.
///
/// # Errors
/// 400 for an unknown name.
pub(crate) fn splits(fields: &mut Fields, served: &Served) -> Result<bool> {
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

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
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

/// An answer, complete or still arriving, by part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) answer: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
}

impl Parts {
    /// Adds pieces.
    pub(crate) fn add(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::Answer(text) => self.answer += text,
                Piece::Reasoning(text) => self.reasoning += text,
                Piece::Call { id, name, .. } => {
                    let arguments = String::new();
                    self.calls.push(Call { id: id.clone(), name: name.clone(), arguments });
                }
                Piece::Arguments { index, fragment } => {
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
pub(crate) struct Reply {
    splitter: Option<Reasoning>,
    calls: Option<CallParser>,
}

impl Reply {
    /// Adds text and returns the pieces that are now certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Piece> {
        let Reply { splitter, calls } = self;
        let mut pieces = Vec::new();
        match splitter {
            Some(splitter) => {
                splitter.push(text, &mut |part, text| add(&mut pieces, calls, part, text));
            }
            None => add(&mut pieces, calls, ReplyPart::Answer, text),
        }
        pieces
    }

    /// Returns the pieces that were held back, at the end of the text.
    pub(crate) fn finish(&mut self) -> Vec<Piece> {
        let Reply { splitter, calls } = self;
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

fn add(pieces: &mut Vec<Piece>, calls: &mut Option<CallParser>, part: ReplyPart, text: &str) {
    match (part, calls) {
        _ if text.is_empty() => {}
        (ReplyPart::Reasoning, _) => match pieces.last_mut() {
            Some(Piece::Reasoning(last)) => last.push_str(text),
            _ => pieces.push(Piece::Reasoning(text.to_owned())),
        },
        (ReplyPart::Answer, Some(calls)) => {
            pieces.extend(calls.push(text).into_iter().filter_map(piece));
        }
        (ReplyPart::Answer, None) => match pieces.last_mut() {
            Some(Piece::Answer(last)) => last.push_str(text),
            _ => pieces.push(Piece::Answer(text.to_owned())),
        },
    }
}

fn piece(delta: CallDelta) -> Option<Piece> {
    match delta {
        CallDelta::Content(text) => Some(Piece::Answer(text)),
        CallDelta::Begin { index, id, name } => Some(Piece::Call { index, id, name }),
        CallDelta::Arguments { index, fragment } => Some(Piece::Arguments { index, fragment }),
        CallDelta::End { .. } => None,
    }
}
