//! Writes Anthropic's answers: a message of content blocks, whole or as a stream of events.

use scheduler::EndReason;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::job::{Job, Outcome, Update};
use crate::reply::{Call, Content, ReplyParser, ReplyPiece};
use crate::stream::{Disconnected, Events};

/// Metadata of an answer, and the state of its stream.
#[derive(Debug)]
pub(super) struct Answer {
    id: String,
    model: String,
    n_prompt: usize,
    /// The client's stop strings. Only these are reported in `stop_sequence`.
    stops: Vec<String>,
    has_calls: bool,
    /// Number of blocks of the stream that have begun.
    n_blocks: usize,
    open_block: Option<BlockContent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockContent {
    Text,
    Thinking,
    /// The tool call with this index.
    Call(usize),
}

impl Answer {
    pub(super) fn new(id: String, model: String, n_prompt: usize, stops: Vec<String>) -> Answer {
        Answer { id, model, n_prompt, stops, has_calls: false, n_blocks: 0, open_block: None }
    }

    fn message(&self, content: Value, outcome: Option<&Outcome>, n_cached: usize) -> Value {
        let (reason, stop) = outcome.map_or((None, None), |outcome| self.stop(outcome));
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": {
                "input_tokens": self.n_prompt - n_cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": n_cached,
                "output_tokens": outcome.map_or(0, |outcome| outcome.n_generated),
            },
        })
    }

    /// `stop_reason` and `stop_sequence`.
    fn stop(&self, outcome: &Outcome) -> (Option<&'static str>, Option<String>) {
        let stop = outcome.stopped_by.clone().filter(|stop| self.stops.contains(stop));
        let reason = match outcome.ended {
            EndReason::Length | EndReason::TimeLimit | EndReason::Deadline => "max_tokens",
            EndReason::ContextFull => "model_context_window_exceeded",
            EndReason::Stop if stop.is_some() => "stop_sequence",
            _ if self.has_calls => "tool_use",
            EndReason::Stop
            | EndReason::EndOfText
            | EndReason::Complete
            | EndReason::Cancelled
            | EndReason::Shutdown => "end_turn",
        };
        (Some(reason), stop)
    }

    pub(super) async fn whole(mut self, mut job: Job, mut reply: ReplyParser) -> Result<Value> {
        let mut parts = Content::default();
        while let Some((_, update)) = job.next().await {
            match update {
                Update::Token(token) => parts.add(&reply.push(&token.text)),
                Update::Done(outcome) => {
                    parts.add(&reply.finish());
                    self.has_calls = !parts.calls.is_empty();
                    return Ok(self.message(content(&parts), Some(&outcome), outcome.n_cached));
                }
                Update::Failed(error) => return Err(error),
                Update::Started { .. } | Update::Prefill(_) | Update::PromptLogprobs(_) => {}
            }
        }
        Err(ApiError::server("the generation ended without a result"))
    }

    pub(super) async fn stream(
        mut self,
        events: Events,
        mut job: Job,
        mut reply: ReplyParser,
    ) -> std::result::Result<(), Disconnected> {
        while let Some((_, update)) = events.wait(job.next()).await? {
            match update {
                Update::Started { n_cached } => {
                    let message = self.message(json!([]), None, n_cached);
                    send(&events, "message_start", json!({ "message": message })).await?;
                }
                Update::Token(token) => {
                    for piece in reply.push(&token.text) {
                        self.piece(&events, piece).await?;
                    }
                }
                Update::Done(outcome) => {
                    for piece in reply.finish() {
                        self.piece(&events, piece).await?;
                    }
                    return self.finish(&events, &outcome).await;
                }
                Update::Failed(error) => {
                    return events.send_named("error", &error.anthropic()).await;
                }
                Update::Prefill(_) | Update::PromptLogprobs(_) => {}
            }
        }
        Ok(())
    }

    /// Sends a piece. Begins a new block if the open block has another kind of content.
    async fn piece(
        &mut self,
        events: &Events,
        piece: ReplyPiece,
    ) -> std::result::Result<(), Disconnected> {
        let delta = match piece {
            ReplyPiece::Answer(text) => {
                self.open(events, BlockContent::Text, text_block("")).await?;
                json!({ "type": "text_delta", "text": text })
            }
            ReplyPiece::Reasoning(text) => {
                self.open(events, BlockContent::Thinking, thinking_block("")).await?;
                json!({ "type": "thinking_delta", "thinking": text })
            }
            ReplyPiece::Call { index, id, name } => {
                self.has_calls = true;
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                return self.open(events, BlockContent::Call(index), block).await;
            }
            ReplyPiece::Arguments { fragment, .. } => {
                json!({ "type": "input_json_delta", "partial_json": fragment })
            }
        };
        let index = self.n_blocks.saturating_sub(1);
        send(events, "content_block_delta", json!({ "index": index, "delta": delta })).await
    }

    /// Begins a block with this content, unless such a block is open.
    async fn open(
        &mut self,
        events: &Events,
        content: BlockContent,
        block: Value,
    ) -> std::result::Result<(), Disconnected> {
        if self.open_block == Some(content) {
            return Ok(());
        }
        self.close(events).await?;
        let start = json!({ "index": self.n_blocks, "content_block": block });
        self.open_block = Some(content);
        self.n_blocks += 1;
        send(events, "content_block_start", start).await
    }

    async fn close(&mut self, events: &Events) -> std::result::Result<(), Disconnected> {
        if self.open_block.take().is_none() {
            return Ok(());
        }
        let index = self.n_blocks.saturating_sub(1);
        send(events, "content_block_stop", json!({ "index": index })).await
    }

    async fn finish(
        &mut self,
        events: &Events,
        outcome: &Outcome,
    ) -> std::result::Result<(), Disconnected> {
        if self.n_blocks == 0 {
            self.open(events, BlockContent::Text, text_block("")).await?;
        }
        self.close(events).await?;
        let message = self.message(Value::Null, Some(outcome), outcome.n_cached);
        let delta = json!({
            "delta": {
                "stop_reason": message["stop_reason"],
                "stop_sequence": message["stop_sequence"],
            },
            "usage": message["usage"],
        });
        send(events, "message_delta", delta).await?;
        send(events, "message_stop", json!({})).await
    }
}

/// The content blocks of a complete answer, at least one.
fn content(parts: &Content) -> Value {
    let Content { answer, reasoning, calls } = parts;
    let mut blocks = Vec::new();
    if !reasoning.is_empty() {
        blocks.push(thinking_block(reasoning));
    }
    if !answer.is_empty() || calls.is_empty() {
        blocks.push(text_block(answer));
    }
    blocks.extend(calls.iter().map(|Call { id, name, arguments }| {
        let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
        json!({ "type": "tool_use", "id": id, "name": name, "input": input })
    }));
    blocks.into()
}

fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// Anthropic uses signatures to verify that reasoning is unchanged. This server has none, so the
/// field is empty.
fn thinking_block(text: &str) -> Value {
    json!({ "type": "thinking", "thinking": text, "signature": "" })
}

async fn send(events: &Events, name: &str, data: Value) -> std::result::Result<(), Disconnected> {
    let mut event = json!({ "type": name });
    if let (Some(event), Value::Object(data)) = (event.as_object_mut(), data) {
        event.extend(data);
    }
    events.send_named(name, &event).await
}
