//! Messages of a conversation.

use serde::Serialize;
use serde_json::{Map, Value};

/// One message, as passed to templates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Message {
    /// The role: `system`, `user`, `assistant`, `tool`, or another role that a template supports.
    pub role: String,
    /// The content: text, null if the assistant only calls tools, or a list for multi-part content.
    pub content: Value,
    /// Other fields for the template: `tool_calls`, `tool_call_id`, `name`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Message {
    /// A message with only text.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Message {
        Message { role: role.into(), content: content.into(), more: Map::new() }
    }

    /// The text; empty if the content is not text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.content.as_str().unwrap_or_default()
    }
}

/// A conversation: a system message, then user and assistant in turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The system message.
    pub system: Option<String>,
    turns: Vec<Message>,
}

impl Conversation {
    /// An empty conversation.
    #[must_use]
    pub fn new(system: Option<String>) -> Conversation {
        Conversation { system, turns: Vec::new() }
    }

    /// Adds a user message.
    pub fn ask(&mut self, text: &str) {
        self.turns.push(Message::new("user", text));
    }

    /// Adds an answer of the assistant, without its reasoning, which later prompts omit.
    pub fn answer(&mut self, text: &str) {
        self.turns.push(Message::new("assistant", text));
    }

    /// Removes the last answer, to regenerate it. False if the last message is not an answer.
    pub fn remove_last_answer(&mut self) -> bool {
        self.turns.pop_if(|message| message.role == "assistant").is_some()
    }

    /// Removes all turns; the system message stays.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// Removes the oldest user message and its answer. False if only one user message is left.
    pub fn remove_oldest_turn(&mut self) -> bool {
        let next = self.turns.iter().skip(1).position(|message| message.role == "user");
        match next {
            Some(at) => {
                self.turns.drain(..=at);
                true
            }
            None => false,
        }
    }

    /// Number of user messages.
    #[must_use]
    pub fn n_questions(&self) -> usize {
        self.turns.iter().filter(|message| message.role == "user").count()
    }

    /// All messages in order.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        let system = self.system.as_deref().map(|text| Message::new("system", text));
        system.into_iter().chain(self.turns.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_turns() -> Conversation {
        let mut talk = Conversation::new(Some("Be brief.".into()));
        for (question, answer) in [("a", "b"), ("c", "d")] {
            talk.ask(question);
            talk.answer(answer);
        }
        talk.ask("e");
        talk
    }

    fn texts(messages: &[Message]) -> Vec<&str> {
        messages.iter().map(Message::text).collect()
    }

    #[test]
    fn messages_come_in_order() {
        let talk = three_turns();
        assert_eq!(texts(&talk.messages()), ["Be brief.", "a", "b", "c", "d", "e"]);
        assert_eq!(talk.messages()[0].role, "system");
    }

    #[test]
    fn the_oldest_turns_are_removed_up_to_the_last_user_message() {
        let mut talk = three_turns();
        assert!(talk.remove_oldest_turn());
        assert_eq!(texts(&talk.messages()), ["Be brief.", "c", "d", "e"]);
        assert!(talk.remove_oldest_turn());
        assert!(!talk.remove_oldest_turn());
        assert_eq!(texts(&talk.messages()), ["Be brief.", "e"]);
    }

    #[test]
    fn the_last_answer_can_be_removed() {
        let mut talk = three_turns();
        assert!(!talk.remove_last_answer());
        talk.answer("f");
        assert!(talk.remove_last_answer());
        assert_eq!(texts(&talk.messages()), ["Be brief.", "a", "b", "c", "d", "e"]);
        talk.clear();
        assert_eq!((talk.n_questions(), talk.messages().len()), (0, 1));
    }

    #[test]
    fn other_fields_are_serialised_with_the_text() {
        let mut message = Message::new("tool", "12");
        message.more.insert("name".into(), "add".into());
        let json = serde_json::to_string(&message).unwrap();
        assert_eq!(json, r#"{"role":"tool","content":"12","name":"add"}"#);
    }
}
