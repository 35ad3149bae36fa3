//! Converts Anthropic's requests to conversations for the chat template.

use serde_json::{Map, Value, json};
use text::chat::{CallFormat, Message};

use crate::error::{ApiError, Result};
use crate::fields::{Fields, is_empty};
use crate::messages::{self, ChatRequest};
use crate::params::Params;
use crate::served::ServedModel;
use crate::state::App;
use crate::tools::Tools;

/// Reads `messages`, `system`, `thinking` and the tools.
///
/// # Errors
/// 400 for an invalid message, or content that this model cannot read.
pub(crate) fn conversation(fields: &mut Fields, format: CallFormat) -> Result<ChatRequest> {
    let tools = Tools::anthropic(fields, format)?;
    let mut list = Vec::new();
    if let Some(system) = fields.take("system") {
        list.push(Message::new("system", &messages::text(system, "system")?));
    }
    let given = fields.list("messages")?.unwrap_or_default();
    if given.is_empty() {
        return Err(ApiError::field("messages", "is missing or empty"));
    }
    for (i, value) in given.into_iter().enumerate() {
        message(value, &format!("messages[{i}]"), &mut list)?;
    }
    let mut variables = Map::new();
    if let Some(thinking) = fields.object("thinking")? {
        let mut thinking = Fields::from_map(thinking);
        let on = match thinking.string("type")?.as_deref() {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            _ => {
                return Err(ApiError::field(
                    "thinking.type",
                    "must be enabled, adaptive or disabled",
                ));
            }
        };
        // The template turns reasoning on or off. A token budget for it is not supported.
        thinking.ignore(&["budget_tokens", "display"]);
        variables.insert("enable_thinking".to_owned(), on.into());
    }
    let mut chat = ChatRequest {
        messages: list,
        tools,
        variables,
        add_generation_prompt: true,
        ..ChatRequest::default()
    };
    chat.take_prefill()?;
    Ok(chat)
}

/// The shared parameters, and the names of unknown fields.
pub(crate) struct ParsedParams {
    pub(crate) shared: Params,
    pub(crate) unknown: Vec<String>,
}

/// Reads the shared parameters from the remaining fields.
///
/// # Errors
/// 400 for an invalid or unsupported field.
pub(crate) fn params(
    mut fields: Fields,
    app: &App,
    served: &ServedModel,
    stops: &[String],
) -> Result<ParsedParams> {
    let tier = |value: &Value| matches!(value.as_str(), Some("auto" | "standard_only"));
    fields.refuse("service_tier", "this server has only one tier", tier)?;
    for name in ["container", "mcp_servers", "context_management", "output_config", "output_format"]
    {
        fields.refuse(name, "this server does not implement it", is_empty)?;
    }
    // A hint for the provider's prompt cache. This server always caches prefixes.
    fields.ignore(&["cache_control"]);
    if !stops.is_empty() {
        fields.merge([("stop".to_owned(), json!(stops))].into_iter().collect());
    }
    let limit = fields.integer("max_tokens", [1, i64::MAX])?;
    fields.merge(limit.map(|limit| ("max_tokens".to_owned(), limit.into())).into_iter().collect());
    let shared = Params::read(&mut fields, served, &app.config.limits)?;
    let unknown = fields.unknown().into_iter().map(str::to_owned).collect();
    Ok(ParsedParams { shared, unknown })
}

/// Converts a message. It may become several, because each tool result is a separate message.
fn message(value: Value, at: &str, list: &mut Vec<Message>) -> Result<()> {
    let role = value.get("role").and_then(Value::as_str);
    let Some(role @ ("user" | "assistant" | "system")) = role else {
        return Err(ApiError::field(&format!("{at}.role"), "must be user, assistant or system"));
    };
    let content = value.get("content").cloned().unwrap_or_default();
    let Value::Array(blocks) = content else {
        let text = messages::text(content, &format!("{at}.content"))?;
        list.push(Message::new(role, &text));
        return Ok(());
    };
    let mut builder = MessageBuilder { role, texts: Vec::new(), more: Map::new() };
    for (i, block) in blocks.into_iter().enumerate() {
        builder.add_block(block, &format!("{at}.content[{i}]"), list)?;
    }
    builder.flush(list);
    Ok(())
}

/// A message to which content blocks are added.
struct MessageBuilder<'a> {
    role: &'a str,
    texts: Vec<String>,
    more: Map<String, Value>,
}

impl MessageBuilder<'_> {
    fn add_block(&mut self, block: Value, at: &str, list: &mut Vec<Message>) -> Result<()> {
        let text = |name: &str| {
            let text = block.get(name).and_then(Value::as_str).map(str::to_owned);
            text.ok_or_else(|| ApiError::field(at, format!("needs `{name}` as a string")))
        };
        match block.get("type").and_then(Value::as_str) {
            Some("text") => self.texts.push(text("text")?),
            Some("thinking") => {
                self.more.insert("reasoning_content".to_owned(), text("thinking")?.into());
            }
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let call = json!({
                    "id": text("id")?, "type": "function",
                    "function": { "name": text("name")?, "arguments": block.get("input") },
                });
                let calls = self.more.entry("tool_calls").or_insert_with(|| json!([]));
                if let Some(calls) = calls.as_array_mut() {
                    calls.push(call);
                }
            }
            Some("tool_result") => {
                let id = text("tool_use_id")?;
                let content = block.get("content").cloned().unwrap_or_else(|| "".into());
                let content = messages::text(content, at)?;
                self.flush(list);
                let mut message = Message::new("tool", &content);
                message.more.insert("tool_call_id".to_owned(), id.into());
                list.push(message);
            }
            // Rejects images, documents and unknown blocks by their type.
            _ => self.texts.push(messages::text(Value::Array(vec![block]), at)?),
        }
        Ok(())
    }

    /// Moves the blocks added so far, if any, to a message of `list`.
    fn flush(&mut self, list: &mut Vec<Message>) {
        if self.texts.is_empty() && self.more.is_empty() {
            return;
        }
        let mut message = Message::new(self.role, &std::mem::take(&mut self.texts).join("\n"));
        message.more = std::mem::take(&mut self.more);
        list.push(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<ChatRequest> {
        let mut fields = Fields::parse(value.to_string().as_bytes()).unwrap();
        conversation(&mut fields, CallFormat::Hermes)
    }

    #[test]
    fn tool_results_become_separate_messages() {
        let chat = read(json!({
            "system": [{ "type": "text", "text": "Be brief." }],
            "messages": [
                { "role": "user", "content": "Weather?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "Hm.", "signature": "" },
                    { "type": "tool_use", "id": "t1", "name": "get", "input": { "city": "Paris" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": "Sunny" },
                    { "type": "text", "text": "Well?" },
                ] },
            ],
        }));
        let list = chat.unwrap().messages;
        let roles: Vec<&str> = list.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
        assert_eq!(list[2].more["tool_calls"][0]["function"]["arguments"]["city"], "Paris");
        assert_eq!(list[2].more["reasoning_content"], "Hm.");
        assert_eq!((list[3].text(), &list[3].more["tool_call_id"]), ("Sunny", &"t1".into()));
    }

    #[test]
    fn images_are_refused_by_name_even_in_tool_results() {
        let image = json!({ "type": "image", "source": {} });
        let result = json!({ "type": "tool_result", "tool_use_id": "1", "content": [image] });
        for block in [image, result] {
            let error = read(json!({ "messages": [{ "role": "user", "content": [block] }] }));
            assert!(error.unwrap_err().message.contains("image input is not supported"));
        }
    }

    #[test]
    fn thinking_is_a_variable_of_the_template() {
        let user = json!({ "role": "user", "content": "x" });
        let read_thinking = |thinking: Value| {
            let chat = read(json!({ "messages": [user], "thinking": thinking }));
            chat.map(|chat| chat.variables.get("enable_thinking").cloned())
        };
        assert_eq!(read_thinking(json!({ "type": "disabled" })), Ok(Some(false.into())));
        let enabled = json!({ "type": "enabled", "budget_tokens": 1024 });
        assert_eq!(read_thinking(enabled), Ok(Some(true.into())));
        assert!(read_thinking(json!({ "type": "x" })).is_err());
    }
}
