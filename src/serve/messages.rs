//! Converts the messages of a request to messages for the chat template.

use serde_json::{Map, Value, json};
use text::chat::{CallFormat, Message, Turns};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::served::ServedModel;
use crate::tools::Tools;

const MAX_MESSAGES: usize = 1 << 14;
const FIELD: &str = "messages";

/// A conversation that is ready for the template.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChatRequest {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Option<Tools>,
    pub(crate) documents: Option<Value>,
    pub(crate) variables: Map<String, Value>,
    /// Whether the prompt ends with the beginning of the assistant's message.
    pub(crate) add_generation_prompt: bool,
    /// Beginning of the answer, which the model continues.
    pub(crate) prefill: Option<String>,
}

impl ChatRequest {
    /// Reads OpenAI's `messages` and the fields for the template.
    ///
    /// # Errors
    /// 400 for an invalid message, content that this model cannot read, or an unsupported field.
    pub(crate) fn read(fields: &mut Fields, format: CallFormat) -> Result<ChatRequest> {
        let tools = Tools::openai(fields, format)?;
        let list = fields.list(FIELD)?.ok_or_else(|| ApiError::field(FIELD, "is missing"))?;
        // llama-server joins the parts of a continued message with a blank line.
        let last = list.last().and_then(|last| last.get("content")).filter(|c| c.is_array());
        let continued = last.map(|parts| join(parts, FIELD, "\n\n"));
        let messages = messages(list)?;
        let mut variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
        if let Some(effort) = fields.string("reasoning_effort")? {
            if effort == "none" {
                variables.entry("enable_thinking").or_insert(false.into());
            }
            variables.entry("reasoning_effort").or_insert(effort.into());
        }
        let continues = fields.bool("continue_final_message")?;
        let begins = fields.bool("add_generation_prompt")?;
        if continues == Some(true) && begins == Some(true) {
            let problem = "and `add_generation_prompt` cannot be combined: send one of them";
            return Err(ApiError::field("continue_final_message", problem));
        }
        let documents = fields.list("documents")?.map(Value::Array);
        let begins = begins.unwrap_or(true);
        let mut chat = ChatRequest {
            messages,
            tools,
            documents,
            variables,
            add_generation_prompt: begins,
            prefill: None,
        };
        if continues == Some(true) || continues.is_none() && begins {
            chat.take_prefill()?;
        }
        if let (Some(prefill), Some(continued)) = (&mut chat.prefill, continued) {
            *prefill = continued?;
        }
        if continues == Some(true) && chat.prefill.is_none() {
            let problem = "needs an assistant message at the end";
            return Err(ApiError::field("continue_final_message", problem));
        }
        Ok(chat)
    }

    /// Treats an assistant message at the end as the beginning of the answer.
    ///
    /// # Errors
    /// 400 for two assistant messages at the end.
    pub(crate) fn take_prefill(&mut self) -> Result<()> {
        let is_text = |message: &mut Message| {
            message.role == "assistant" && !message.more.contains_key("tool_calls")
        };
        let Some(last) = self.messages.pop_if(is_text) else { return Ok(()) };
        if self.messages.last().is_some_and(|message| message.role == "assistant") {
            return Err(ApiError::field(FIELD, "ends with two assistant messages"));
        }
        self.add_generation_prompt = true;
        self.prefill = Some(last.text().to_owned());
        Ok(())
    }

    /// The prompt as text, including the beginning of the answer.
    ///
    /// # Errors
    /// 400 if the template rejects the conversation.
    pub(crate) fn format(&self, served: &ServedModel) -> Result<String> {
        let source = served.dialogue.source().unwrap_or_default();
        let messages = self.adapt(source);
        let text = match served.format(&self.turns(&messages)) {
            Ok(prompt) => prompt.text,
            // Some templates fail if a message with tool calls has no text, so retry with an empty
            // text.
            Err(error) => match without_nulls(&messages) {
                Some(messages) => served.format(&self.turns(&messages))?.text,
                None => return Err(error),
            },
        };
        Ok(text + self.prefill.as_deref().unwrap_or_default())
    }

    fn turns<'a>(&'a self, messages: &'a [Message]) -> Turns<'a> {
        Turns {
            messages,
            tools: self.tools.as_ref().map(|tools| &tools.descriptions),
            documents: self.documents.as_ref(),
            add_generation_prompt: self.add_generation_prompt,
            variables: &self.variables,
        }
    }

    /// The messages for the template `source`. If the template does not support tools, the system
    /// message describes them. If it does not support tool calls, these become text in the format
    /// of [`CallFormat::Generic`].
    fn adapt(&self, source: &str) -> Vec<Message> {
        let mut messages = self.messages.clone();
        if !source.contains("tool_calls") {
            for message in &mut messages {
                let Some(calls) = message.more.shift_remove("tool_calls") else { continue };
                let functions = calls.as_array().into_iter().flatten();
                let functions: Value =
                    functions.filter_map(|call| call.get("function")).cloned().collect();
                let calls = json!({ "tool_calls": functions }).to_string();
                let text = message.text();
                let text = if text.is_empty() { calls } else { format!("{text}\n{calls}") };
                message.content = text.into();
            }
        }
        let Some(tools) = self.tools.as_ref().filter(|_| !source.contains("tools")) else {
            return messages;
        };
        let mut text = format!("You can call these tools:\n{}", tools.descriptions);
        if tools.format == CallFormat::Generic {
            text += "\nTo call tools, answer with JSON alone: {\"tool_calls\": [{\"name\": NAME, \"arguments\": {...}}]}";
        }
        match messages.first_mut().filter(|first| first.role == "system") {
            Some(system) => system.content = format!("{}\n\n{text}", system.text()).into(),
            None => messages.insert(0, Message::new("system", &text)),
        }
        messages
    }
}

/// The messages with empty strings as content instead of null; `None` if no content is null.
fn without_nulls(messages: &[Message]) -> Option<Vec<Message>> {
    let mut messages = messages.to_vec();
    let nulls: Vec<&mut Message> = messages.iter_mut().filter(|m| m.content.is_null()).collect();
    if nulls.is_empty() {
        return None;
    }
    nulls.into_iter().for_each(|message| message.content = "".into());
    Some(messages)
}

fn messages(list: Vec<Value>) -> Result<Vec<Message>> {
    if list.is_empty() || list.len() > MAX_MESSAGES {
        let problem = format!("has {} entries, expected 1 to {MAX_MESSAGES}", list.len());
        return Err(ApiError::field(FIELD, problem));
    }
    let each = list.into_iter().enumerate();
    each.map(|(i, value)| message(value, &format!("{FIELD}[{i}]"))).collect()
}

fn message(value: Value, at: &str) -> Result<Message> {
    let Value::Object(mut more) = value else {
        return Err(ApiError::field(at, "must be an object"));
    };
    let role = more.shift_remove("role");
    let Some(role) = role.as_ref().and_then(Value::as_str).filter(|role| !role.is_empty()) else {
        return Err(ApiError::field(&format!("{at}.role"), "must be a string"));
    };
    // OpenAI's newer name of the system role.
    let role = if role == "developer" { "system" } else { role };
    let content = more.shift_remove("content").unwrap_or_default();
    let content = if role == "assistant" && content.is_null() {
        if more.contains_key("tool_calls") { Value::Null } else { "".into() }
    } else {
        text(content, &format!("{at}.content"))?.into()
    };
    if let Some(calls) = more.get_mut("tool_calls") {
        parse_arguments(calls);
    }
    more.retain(|_, value| !value.is_null());
    Ok(Message { role: role.to_owned(), content, more })
}

/// Parses the arguments of tool calls: OpenAI's clients send them as strings, but templates expect
/// JSON values.
fn parse_arguments(calls: &mut Value) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let Some(parsed) = parsed.filter(Value::is_object) {
            *arguments = parsed;
        }
    }
}

/// The text of a message's content: a string, or text parts joined by line breaks, as in
/// llama-server.
///
/// # Errors
/// 400 for another type. For images, audio and files, the error names the type.
pub(crate) fn text(content: Value, at: &str) -> Result<String> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(_) => join(&content, at, "\n"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err(ApiError::field(at, "must be a string or a list of parts"))
        }
    }
}

fn join(parts: &Value, at: &str, separator: &str) -> Result<String> {
    let texts = parts.as_array().into_iter().flatten().map(|part| text_part(part, at));
    Ok(texts.collect::<Result<Vec<&str>>>()?.join(separator))
}

fn text_part<'a>(part: &'a Value, at: &str) -> Result<&'a str> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let input = match kind {
        "text" | "input_text" | "output_text" | "refusal" | "thinking" => {
            let name = match kind {
                "refusal" | "thinking" => kind,
                _ => "text",
            };
            let text = part.get(name).and_then(Value::as_str);
            return text.ok_or_else(|| ApiError::field(at, format!("has a part without `{name}`")));
        }
        "image_url" | "image" | "input_image" => "image input",
        "input_audio" | "audio" => "audio input",
        "file" | "input_file" | "document" => "file input",
        "video_url" | "video" => "video input",
        other => {
            return Err(ApiError::field(at, format!("has a part of unknown type \"{other}\"")));
        }
    };
    Err(ApiError::field(at, format!("has a part of type \"{kind}\": {input} is not supported")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<ChatRequest> {
        let mut fields = Fields::parse(value.to_string().as_bytes()).unwrap();
        ChatRequest::read(&mut fields, CallFormat::Hermes)
    }

    #[test]
    fn content_is_a_string_or_text_parts() {
        let chat = read(json!({ "messages": [
            { "role": "developer", "content": "Be brief." },
            { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
        ] }));
        let chat = chat.unwrap();
        assert_eq!(chat.messages[0], Message::new("system", "Be brief."));
        assert_eq!(chat.messages[1], Message::new("user", "a\nb"));
        assert!(chat.add_generation_prompt && chat.prefill.is_none());
    }

    #[test]
    fn invalid_messages_are_named() {
        for (messages, param) in [
            (json!(null), "messages"),
            (json!("x"), "messages"),
            (json!([]), "messages"),
            (json!([1]), "messages[0]"),
            (json!([{}]), "messages[0].role"),
            (json!([{ "role": 1 }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (json!([{ "role": "user", "content": 1 }]), "messages[0].content"),
            (json!([{ "role": "user", "content": [{ "type": "x" }] }]), "messages[0].content"),
        ] {
            let error = read(json!({ "messages": messages })).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)));
        }
        let image = json!([{ "type": "image_url", "image_url": { "url": "data:" } }]);
        let image = read(json!({ "messages": [{ "role": "user", "content": image }] }));
        assert!(image.unwrap_err().message.contains("image input is not supported"));
    }

    #[test]
    fn an_assistant_message_at_the_end_is_continued() {
        let user = json!({ "role": "user", "content": "x" });
        let answer = json!({ "role": "assistant", "content": "Wh" });
        let chat = read(json!({ "messages": [user, answer] })).unwrap();
        assert_eq!((chat.prefill.as_deref(), chat.messages.len()), (Some("Wh"), 1));
        assert!(read(json!({ "messages": [user, answer, answer] })).is_err());
        let part = |text: &str| json!({ "type": "text", "text": text });
        let parts = json!({ "role": "assistant", "content": [part("Wh"), part("ill")] });
        let chat = read(json!({ "messages": [user, parts] })).unwrap();
        assert_eq!(chat.prefill.as_deref(), Some("Wh\n\nill"));
        let both = json!({ "messages": [user, answer], "continue_final_message": true,
            "add_generation_prompt": true });
        assert!(read(both).is_err());
        let closed = json!({ "messages": [user, answer], "add_generation_prompt": false });
        assert_eq!(read(closed).unwrap().prefill, None);
    }

    #[test]
    fn arguments_of_calls_become_values() {
        let call = json!({ "id": "1", "type": "function",
            "function": { "name": "f", "arguments": "{\"a\": 1}" } });
        let chat = read(json!({ "messages": [
            { "role": "user", "content": "x" },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "1", "content": "2" },
        ] }));
        let chat = chat.unwrap();
        assert_eq!(chat.messages[1].more["tool_calls"][0]["function"]["arguments"]["a"], 1);
        assert_eq!(chat.messages[2].more["tool_call_id"], "1");
    }

    #[test]
    fn a_template_without_tools_gets_them_as_text() {
        let tool = json!({ "type": "function", "function": { "name": "add" } });
        let call = json!({ "id": "1", "type": "function",
            "function": { "name": "add", "arguments": "{\"a\": 1}" } });
        let chat = read(json!({ "tools": [tool], "messages": [
            { "role": "user", "content": "x" },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "1", "content": "2" },
        ] }));
        let chat = chat.unwrap();
        let plain = chat.adapt("{{ messages }}");
        assert_eq!(plain[0].role, "system");
        assert!(plain[0].text().contains("\"name\":\"add\""), "{}", plain[0].text());
        let text = r#"{"tool_calls":[{"name":"add","arguments":{"a":1}}]}"#;
        assert_eq!((plain[2].text(), plain[2].more.contains_key("tool_calls")), (text, false));
        assert_eq!(chat.adapt("tools tool_calls"), chat.messages);
        assert_eq!(without_nulls(&chat.messages).unwrap()[1].text(), "");
        assert_eq!(without_nulls(&plain), None);
    }

    #[test]
    fn tools_are_described_and_checked() {
        let user = json!({ "role": "user", "content": "x" });
        let tool = json!({ "type": "function", "function": { "name": "f" } });
        let read_tools = |tools: Value, choice: Value| {
            read(json!({ "messages": [user], "tools": tools, "tool_choice": choice }))
        };
        let chat = read_tools(json!([tool]), json!("auto")).unwrap();
        let descriptions = chat.tools.unwrap().descriptions;
        assert_eq!(descriptions[0]["function"]["parameters"]["type"], "object");
        assert!(read_tools(json!([tool]), json!("none")).unwrap().tools.is_none());
        assert!(read_tools(json!([]), json!("auto")).unwrap().tools.is_none());
        let named = json!({ "type": "function", "function": { "name": "f" } });
        assert!(read_tools(json!([tool]), named).unwrap().tools.is_some());
        for (tools, choice, param) in [
            (json!([{ "type": "web_search" }]), json!(null), "tools[0]"),
            (json!([{ "type": "function", "function": {} }]), json!(null), "tools[0]"),
            (json!([]), json!("required"), "tool_choice"),
            (json!([tool]), json!("maybe"), "tool_choice"),
            (json!([tool]), json!({ "function": { "name": "g" } }), "tool_choice"),
        ] {
            assert_eq!(read_tools(tools, choice).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
