//! `/v1/responses` without stored state: every request must contain the whole conversation.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use text::chat::Message;

use super::Usage;
use super::responses_stream::ResponseStream;
use crate::clock::{id, unix_seconds};
use crate::error::{ApiError, Result};
use crate::fields::{Fields, is_empty};
use crate::job::{Job, Outcome, Update};
use crate::messages::{self, ChatRequest};
use crate::params::Params;
use crate::reply::{self, Call, Content, ReplyParser, Turn};
use crate::served::ServedModel;
use crate::state::App;
use crate::stream;
use crate::tools::Tools;
use crate::{json, limits, log};

pub(crate) async fn respond(State(app): State<App>, request: Request) -> Result<Response> {
    let fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let (turn, echoed) = {
        let (app, served) = (app.clone(), served.clone());
        limits::blocking(move || prepare(fields, &app, &served)).await?
    };
    let reply = turn.replies().pop();
    let Turn { params, task, .. } = turn;
    let Some(reply) = reply else {
        return Err(ApiError::server("the request has no choice; please report it"));
    };
    let job = Job::submit(&app, &served, &params, vec![task])?;
    let object = ResponseObject {
        id: id("resp_"),
        item_id: id("msg_"),
        created: unix_seconds(),
        model: app.model_id(&served).to_owned(),
        echoed,
        parts: Content::default(),
    };
    if params.stream {
        let keep_alive = params.keep_alive;
        let streamed = ResponseStream::new(object, params);
        return Ok(stream::response(keep_alive, |events| streamed.write(events, job, reply)));
    }
    whole(object, job, reply).await
}

fn prepare(
    mut fields: Fields,
    app: &App,
    served: &Arc<ServedModel>,
) -> Result<(Turn, Map<String, Value>)> {
    fields.refuse("previous_response_id", "answers are not stored", is_empty)?;
    fields.refuse("conversation", "conversations are not stored", is_empty)?;
    fields.refuse("background", "answers are not stored", is_empty)?;
    fields.refuse("prompt", "prompts are not stored", is_empty)?;
    fields.refuse("include", "there is nothing more to include", is_empty)?;
    fields.refuse("top_logprobs", "this endpoint has no log-probabilities", is_empty)?;
    fields.refuse("max_tool_calls", "the number of calls is not limited", is_empty)?;
    let disabled = |value: &Value| value.as_str() == Some("disabled");
    fields.refuse("truncation", "a prompt that is too long is an error", disabled)?;
    let tools = Tools::responses(&mut fields, served.call_format)?;
    let mut echoed = Map::new();
    for name in ["temperature", "top_p", "metadata"] {
        echoed.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    let instructions = fields.string("instructions")?;
    let input = fields.take("input").ok_or_else(|| ApiError::field("input", "is missing"))?;
    let mut list = conversation(input)?;
    if let Some(text) = &instructions {
        list.insert(0, Message::new("system", text));
    }
    let mut variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.object("reasoning")?.and_then(|mut map| map.shift_remove("effort"))
        && !effort.is_null()
    {
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(false.into());
        }
        variables.entry("reasoning_effort").or_insert(effort);
    }
    if let Some(text) = fields.object("text")? {
        let mut text = Fields::from_map(text);
        // `text.format` is `response_format` of chat completions without the nested `json_schema`.
        if let Some(mut format) = text.object("format")? {
            if format.get("type").and_then(Value::as_str) == Some("json_schema") {
                let schema = format.shift_remove("schema");
                format.insert("json_schema".to_owned(), json!({ "schema": schema }));
            }
            fields.merge([("response_format".to_owned(), format.into())].into_iter().collect());
        }
        let medium = |value: &Value| value.as_str() == Some("medium");
        text.refuse("verbosity", "ask for a short answer in a message instead", medium)?;
    }
    let mut shared = echoed.clone();
    let limit = fields.integer("max_output_tokens", [1, i64::MAX])?;
    shared.extend(limit.map(|limit| ("max_tokens".to_owned(), limit.into())));
    fields.merge(shared);
    let splits_reasoning = reply::splits_reasoning(&mut fields, served)?;
    let params = Params::read(&mut fields, served, &app.config.limits)?;
    log::unknown_fields(&app.config.log, "responses", &fields.unknown());
    echoed.insert("instructions".to_owned(), instructions.into());
    let chat = ChatRequest {
        messages: list,
        tools,
        variables,
        add_generation_prompt: true,
        ..ChatRequest::default()
    };
    let params = Params { n: 1, ..params };
    Ok((Turn::new(&chat, params, splits_reasoning, None, served)?, echoed))
}

/// The messages of `input`: a text, or a list of messages.
fn conversation(input: Value) -> Result<Vec<Message>> {
    let items = match input {
        Value::String(text) => return Ok(vec![Message::new("user", &text)]),
        Value::Array(items) if !items.is_empty() => items,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            return Err(ApiError::field("input", "must be a string or a list of messages"));
        }
    };
    let mut list = Vec::new();
    for (i, item) in items.into_iter().enumerate() {
        let at = format!("input[{i}]");
        let Value::Object(mut item) = item else {
            return Err(ApiError::field(&at, "must be an object"));
        };
        match item.get("type").and_then(Value::as_str) {
            None | Some("message") => {}
            // Reasoning of earlier answers is not sent back to the model.
            Some("reasoning") => continue,
            Some("function_call") => {
                call_item(&item, &at, &mut list)?;
                continue;
            }
            Some("function_call_output") => {
                list.push(output_item(item, &at)?);
                continue;
            }
            Some(other) => {
                let problem = format!("has the unsupported type \"{other}\"");
                return Err(ApiError::field(&at, problem));
            }
        }
        let role = item.shift_remove("role");
        let role = role.as_ref().and_then(Value::as_str);
        let Some(role @ ("system" | "developer" | "user" | "assistant")) = role else {
            return Err(ApiError::field(&at, "needs a role: system, user or assistant"));
        };
        let role = if role == "developer" { "system" } else { role };
        let content = item.shift_remove("content").unwrap_or_default();
        let content = messages::text(content, &format!("{at}.content"))?;
        list.push(Message::new(role, &content));
    }
    Ok(list)
}

/// Converts a tool call of an earlier answer. Consecutive calls belong to one message.
fn call_item(item: &Map<String, Value>, at: &str, list: &mut Vec<Message>) -> Result<()> {
    let text = |name: &str| {
        let text = item.get(name).and_then(Value::as_str);
        text.ok_or_else(|| ApiError::field(at, format!("needs `{name}` as a string")))
    };
    let arguments = text("arguments")?;
    let arguments = serde_json::from_str::<Value>(arguments).unwrap_or_else(|_| arguments.into());
    let call = json!({
        "id": text("call_id")?, "type": "function",
        "function": { "name": text("name")?, "arguments": arguments },
    });
    let is_open = |last: &&mut Message| last.more.contains_key("tool_calls");
    if let Some(last) = list.last_mut().filter(is_open)
        && let Some(calls) = last.more.get_mut("tool_calls").and_then(Value::as_array_mut)
    {
        calls.push(call);
        return Ok(());
    }
    let mut message = Message::new("assistant", "");
    message.more.insert("tool_calls".to_owned(), json!([call]));
    list.push(message);
    Ok(())
}

fn output_item(mut item: Map<String, Value>, at: &str) -> Result<Message> {
    let id = item.shift_remove("call_id").filter(Value::is_string);
    let id = id.ok_or_else(|| ApiError::field(at, "needs `call_id` as a string"))?;
    let output = item.shift_remove("output").unwrap_or_default();
    let mut message = Message::new("tool", &messages::text(output, &format!("{at}.output"))?);
    message.more.insert("tool_call_id".to_owned(), id);
    Ok(message)
}

pub(super) struct ResponseObject {
    id: String,
    item_id: String,
    created: u64,
    model: String,
    /// Members of the request that the response repeats.
    echoed: Map<String, Value>,
    pub(super) parts: Content,
}

impl ResponseObject {
    pub(super) fn json(&self, status: &str, outcome: Option<&Outcome>) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": true,
            "tool_choice": "auto",
            "tools": [],
            "metadata": {},
            "store": false,
            "usage": null,
        });
        if let (Some(object), echoed) = (object.as_object_mut(), &self.echoed) {
            object.extend(echoed.clone());
        }
        let Some(outcome) = outcome else { return object };
        let mut usage = Usage::default();
        usage.add(outcome, true);
        object["usage"] = usage.responses();
        if outcome.hit_limit() {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let mut output = Vec::new();
        let Content { answer, reasoning, calls } = &self.parts;
        if !reasoning.is_empty() {
            output.push(self.reasoning_item());
        }
        if !answer.is_empty() || calls.is_empty() {
            output.push(self.item(status));
        }
        output.extend((0..calls.len()).map(|i| self.call_item(i, "completed")));
        object["output"] = output.into();
        object
    }

    pub(super) fn reasoning_item(&self) -> Value {
        json!({
            "id": format!("rs_{}", &self.item_id[4..]),
            "type": "reasoning",
            "summary": [],
            "content": [{ "type": "reasoning_text", "text": self.parts.reasoning }],
        })
    }

    pub(super) fn call_item(&self, index: usize, status: &str) -> Value {
        let Call { id, name, arguments } = self.parts.calls.get(index).cloned().unwrap_or_default();
        json!({
            "id": format!("fc_{}_{index}", &self.item_id[4..]),
            "type": "function_call",
            "call_id": id,
            "name": name,
            "arguments": arguments,
            "status": status,
        })
    }

    pub(super) fn item(&self, status: &str) -> Value {
        json!({
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self.content_part()],
        })
    }

    pub(super) fn content_part(&self) -> Value {
        json!({ "type": "output_text", "text": self.parts.answer, "annotations": [], "logprobs": [] })
    }
}

pub(super) fn status(outcome: &Outcome) -> &'static str {
    if outcome.hit_limit() { "incomplete" } else { "completed" }
}

async fn whole(
    mut object: ResponseObject,
    mut job: Job,
    mut reply: ReplyParser,
) -> Result<Response> {
    while let Some((_, update)) = job.next().await {
        match update {
            Update::Token(token) => object.parts.add(&reply.push(&token.text)),
            Update::Done(outcome) => {
                object.parts.add(&reply.finish());
                let mut body = object.json(status(&outcome), Some(&outcome));
                body["timings"] = outcome.timings.json();
                return Ok(json::answer(&body));
            }
            Update::Failed(error) => return Err(error),
            Update::Started { .. } | Update::Prefill(_) | Update::PromptLogprobs(_) => {}
        }
    }
    Err(ApiError::server("the generation ended without a result"))
}
