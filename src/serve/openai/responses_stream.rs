//! Streams `/v1/responses` as events that open, fill and close each output item.

use serde_json::{Value, json};

use super::responses::{ResponseObject, status};
use crate::job::{Job, Outcome, Timings, Update};
use crate::params::Params;
use crate::reply::{ReplyParser, ReplyPiece};
use crate::stream::{Disconnected, Events};

pub(super) struct ResponseStream {
    pub(super) object: ResponseObject,
    pub(super) params: Params,
    /// `sequence_number` of the next event.
    number: u64,
    /// Number of output items that have begun.
    n_items: usize,
    open: Option<OpenItem>,
}

/// The output item that pieces are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenItem {
    Reasoning,
    Message,
    /// The tool call with this index.
    Call(usize),
}

impl ResponseStream {
    pub(super) fn new(object: ResponseObject, params: Params) -> ResponseStream {
        ResponseStream { object, params, number: 0, n_items: 0, open: None }
    }

    pub(super) async fn write(
        mut self,
        events: Events,
        mut job: Job,
        mut reply: ReplyParser,
    ) -> Result<(), Disconnected> {
        for name in ["response.created", "response.in_progress"] {
            let response = self.object.json("in_progress", None);
            self.send(&events, name, json!({ "response": response })).await?;
        }
        while let Some((_, update)) = events.wait(job.next()).await? {
            match update {
                Update::Token(token) => {
                    for piece in reply.push(&token.text) {
                        self.piece(&events, piece, job.timings(0)).await?;
                    }
                }
                Update::Prefill(progress) if self.params.return_progress => {
                    let response = self.object.json("in_progress", None);
                    let data = json!({ "response": response, "prompt_progress": progress.json() });
                    self.send(&events, "response.in_progress", data).await?;
                }
                Update::Done(outcome) => {
                    for piece in reply.finish() {
                        self.piece(&events, piece, outcome.timings).await?;
                    }
                    return self.finish(&events, &outcome).await;
                }
                Update::Failed(error) => {
                    let data = json!({
                        "code": error.kind, "message": error.message, "param": error.param,
                    });
                    return self.send(&events, "error", data).await;
                }
                Update::Started { .. } | Update::Prefill(_) | Update::PromptLogprobs(_) => {}
            }
        }
        Ok(())
    }

    async fn piece(
        &mut self,
        events: &Events,
        piece: ReplyPiece,
        timings: Timings,
    ) -> Result<(), Disconnected> {
        let item = match &piece {
            ReplyPiece::Answer(_) => OpenItem::Message,
            ReplyPiece::Reasoning(_) => OpenItem::Reasoning,
            ReplyPiece::Call { index, .. } | ReplyPiece::Arguments { index, .. } => {
                OpenItem::Call(*index)
            }
        };
        let begins = matches!(piece, ReplyPiece::Call { .. });
        if begins {
            // The event that opens a call has the name of the tool, so add the piece first.
            self.object.parts.add(std::slice::from_ref(&piece));
        }
        self.open(events, item).await?;
        if begins {
            return Ok(());
        }
        self.object.parts.add(std::slice::from_ref(&piece));
        let (name, text) = match piece {
            ReplyPiece::Answer(text) => ("response.output_text.delta", text),
            ReplyPiece::Reasoning(text) => ("response.reasoning_text.delta", text),
            ReplyPiece::Arguments { fragment, .. } => {
                ("response.function_call_arguments.delta", fragment)
            }
            ReplyPiece::Call { .. } => return Ok(()),
        };
        let mut data = self.position(item);
        data["delta"] = text.into();
        match item {
            OpenItem::Message => data["logprobs"] = json!([]),
            OpenItem::Reasoning | OpenItem::Call(_) => {}
        }
        if self.params.timings_per_token {
            data["timings"] = timings.json();
        }
        self.send(events, name, data).await
    }

    fn item(&self, item: OpenItem, status: &str) -> Value {
        match item {
            OpenItem::Reasoning => self.object.reasoning_item(),
            OpenItem::Message => self.object.item(status),
            OpenItem::Call(index) => self.object.call_item(index, status),
        }
    }

    /// The members that identify the open item in an event.
    fn position(&self, item: OpenItem) -> Value {
        let id = self.item(item, "in_progress")["id"].clone();
        let index = self.n_items.saturating_sub(1);
        match item {
            OpenItem::Call(_) => json!({ "item_id": id, "output_index": index }),
            OpenItem::Message | OpenItem::Reasoning => {
                json!({ "item_id": id, "output_index": index, "content_index": 0 })
            }
        }
    }

    /// Opens an item, unless it is already open.
    async fn open(&mut self, events: &Events, item: OpenItem) -> Result<(), Disconnected> {
        if self.open == Some(item) {
            return Ok(());
        }
        self.close(events, "completed").await?;
        self.open = Some(item);
        self.n_items += 1;
        let mut object = self.item(item, "in_progress");
        if item == OpenItem::Message {
            object["content"] = json!([]);
        }
        let data = json!({ "output_index": self.n_items - 1, "item": object });
        self.send(events, "response.output_item.added", data).await?;
        if item != OpenItem::Message {
            return Ok(());
        }
        let mut data = self.position(item);
        data["part"] = self.object.content_part();
        self.send(events, "response.content_part.added", data).await
    }

    async fn close(&mut self, events: &Events, status: &str) -> Result<(), Disconnected> {
        let Some(item) = self.open.take() else { return Ok(()) };
        let at = self.position(item);
        let object = self.item(item, status);
        match item {
            OpenItem::Reasoning => {}
            OpenItem::Message => {
                let mut text = at.clone();
                text["text"] = self.object.parts.answer.as_str().into();
                text["logprobs"] = json!([]);
                self.send(events, "response.output_text.done", text).await?;
                let mut part = at;
                part["part"] = self.object.content_part();
                self.send(events, "response.content_part.done", part).await?;
            }
            OpenItem::Call(_) => {
                let mut done = at;
                done["name"] = object["name"].clone();
                done["arguments"] = object["arguments"].clone();
                self.send(events, "response.function_call_arguments.done", done).await?;
            }
        }
        let data = json!({ "output_index": self.n_items - 1, "item": object });
        self.send(events, "response.output_item.done", data).await
    }

    async fn finish(&mut self, events: &Events, outcome: &Outcome) -> Result<(), Disconnected> {
        // A response without tool calls always has a message, which may be empty.
        if self.object.parts.calls.is_empty() {
            self.open(events, OpenItem::Message).await?;
        }
        self.close(events, status(outcome)).await?;
        let response = self.object.json(status(outcome), Some(outcome));
        let data = json!({ "response": response, "timings": outcome.timings.json() });
        // As in llama-server, every stream ends with this event, even at a token limit; `status`
        // tells the cases apart.
        self.send(events, "response.completed", data).await
    }

    async fn send(&mut self, events: &Events, name: &str, data: Value) -> Result<(), Disconnected> {
        let mut event = json!({ "type": name, "sequence_number": self.number });
        if let (Some(event), Value::Object(data)) = (event.as_object_mut(), data) {
            event.extend(data);
        }
        self.number += 1;
        events.send_named(name, &event).await
    }
}
