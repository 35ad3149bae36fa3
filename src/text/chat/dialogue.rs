//! Formats a conversation as a prompt, and finds the end of an answer.

use std::time::SystemTime;

use serde_json::{Map, Value};

use super::template::{self, Input, Template, TemplateError};
use super::{Conversation, Message};

/// The format of a model's turns.
#[derive(Clone, Debug)]
pub struct Dialogue {
    form: Form,
    /// Text of the BOS token, as templates write it.
    pub bos_token: String,
    /// Text of the EOS token.
    pub eos_token: String,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

#[derive(Clone, Debug)]
enum Form {
    Template(Template),
    /// `User: ...`, `Assistant: ...`.
    Plain,
}

/// A conversation with everything that a template may use.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'a> {
    /// The messages in order.
    pub messages: &'a [Message],
    /// Descriptions of tools, as a list.
    pub tools: Option<&'a Value>,
    /// Texts to answer from, as a list.
    pub documents: Option<&'a Value>,
    /// Whether to end with the beginning of the assistant's message.
    pub add_generation_prompt: bool,
    /// Variables of the template; they override those of the dialogue.
    pub variables: &'a Map<String, Value>,
}

/// A formatted conversation. The model continues it with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The text, including names of special tokens.
    pub text: String,
    /// Whether the system message was merged into the first user message, because the template
    /// does not support system messages.
    pub system_was_merged: bool,
}

impl Dialogue {
    /// A dialogue formatted by a template.
    #[must_use]
    pub fn with_template(template: Template) -> Dialogue {
        Dialogue::new(Form::Template(template))
    }

    /// A plain-text dialogue, for a model without a template.
    #[must_use]
    pub fn plain() -> Dialogue {
        Dialogue::new(Form::Plain)
    }

    fn new(form: Form) -> Dialogue {
        let (bos_token, eos_token) = (String::new(), String::new());
        Dialogue { form, bos_token, eos_token, variables: Map::new() }
    }

    /// The source of the template; `None` for plain turns.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        match &self.form {
            Form::Template(template) => Some(template.source()),
            Form::Plain => None,
        }
    }

    /// The prompt for the next answer.
    ///
    /// # Errors
    /// [`TemplateError`], with the template's line.
    pub fn prompt(&self, talk: &Conversation) -> Result<Prompt, TemplateError> {
        self.format(&Turns {
            messages: &talk.messages(),
            tools: None,
            documents: None,
            add_generation_prompt: true,
            variables: &Map::new(),
        })
    }

    /// Formats any messages as a prompt. A system message at the start is merged into the next
    /// message if the template rejects it.
    ///
    /// # Errors
    /// [`TemplateError`], with the template's line.
    pub fn format(&self, turns: &Turns<'_>) -> Result<Prompt, TemplateError> {
        let Form::Template(template) = &self.form else {
            let text = plain(turns.messages, turns.add_generation_prompt);
            return Ok(Prompt { text, system_was_merged: false });
        };
        match self.render(template, turns) {
            Ok(text) => Ok(Prompt { text, system_was_merged: false }),
            // Some templates reject the system role, by an exception or by a type error. A
            // template that exceeds a limit would exceed it again.
            Err(error @ (TemplateError::Raised { .. } | TemplateError::Failed { .. })) => {
                let Some(messages) = without_system(turns.messages) else { return Err(error) };
                let merged = self.render(template, &Turns { messages: &messages, ..*turns });
                let text = merged.map_err(|_| error)?;
                Ok(Prompt { text, system_was_merged: true })
            }
            Err(error) => Err(error),
        }
    }

    fn render(&self, template: &Template, turns: &Turns<'_>) -> Result<String, TemplateError> {
        let now = SystemTime::now();
        // Variables that llama.cpp sets; `enable_thinking` switches reasoning on in some templates.
        let mut variables = Map::new();
        variables.insert("enable_thinking".to_owned(), true.into());
        variables.insert("date_string".to_owned(), template::date(now, "%d %b %Y").into());
        variables.insert("datetime".to_owned(), template::date(now, "%b %d %Y").into());
        // The tools as text, which firefunction's template appends to its system message.
        let functions = turns.tools.map_or(Ok(String::new()), serde_json::to_string_pretty);
        variables.insert("functions".to_owned(), functions.unwrap_or_default().into());
        variables.extend(self.variables.clone());
        variables.extend(turns.variables.clone());
        template.render(&Input {
            messages: turns.messages,
            tools: turns.tools,
            documents: turns.documents,
            add_generation_prompt: turns.add_generation_prompt,
            bos_token: &self.bos_token,
            eos_token: &self.eos_token,
            variables: &variables,
            now,
        })
    }

    /// The text that the template writes after an answer, such as `<|im_end|>`. If the vocabulary
    /// has no such token, the text is a stop string. `None` if it cannot be determined.
    #[must_use]
    pub fn end_of_turn(&self) -> Option<String> {
        let Form::Template(template) = &self.form else {
            return None;
        };
        const ANSWER: &str = "The answer is forty-two.";
        let mut talk = Conversation::default();
        talk.ask("What?");
        talk.answer(ANSWER);
        let turns = Turns {
            messages: &talk.messages(),
            tools: None,
            documents: None,
            add_generation_prompt: false,
            variables: &Map::new(),
        };
        let text = self.render(template, &turns).ok()?;
        let (_, after) = text.rsplit_once(ANSWER)?;
        let end = after.trim();
        (!end.is_empty() && end.len() <= 64).then(|| end.to_owned())
    }

    /// Stop strings that end an answer.
    #[must_use]
    pub fn stops(&self) -> Vec<String> {
        match &self.form {
            Form::Template(_) => Vec::new(),
            Form::Plain => vec!["\nUser:".into(), "\nAssistant:".into()],
        }
    }
}

fn plain(messages: &[Message], add_generation_prompt: bool) -> String {
    let mut text = String::new();
    for message in messages {
        let (name, end) = match message.role.as_str() {
            "system" | "developer" => ("", "\n\n"),
            "user" | "tool" => ("User: ", "\n"),
            _ => ("Assistant: ", "\n"),
        };
        text.extend([name, message.text().trim(), end]);
    }
    if add_generation_prompt { text + "Assistant:" } else { text }
}

/// The messages with a system message at the start merged into the next one; `None` if there is no
/// system message or nothing after it.
fn without_system(messages: &[Message]) -> Option<Vec<Message>> {
    let (system, rest) = messages.split_first().filter(|(first, _)| first.role == "system")?;
    let mut rest = rest.to_vec();
    let first = rest.first_mut()?;
    first.content = format!("{}\n\n{}", system.text(), first.text()).into();
    Some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk() -> Conversation {
        let mut talk = Conversation::new(Some("Be brief.".into()));
        talk.ask("Hi");
        talk.answer("Hello.");
        talk.ask("Bye");
        talk
    }

    #[test]
    fn plain_turns_are_labelled() {
        let prompt = Dialogue::plain().prompt(&talk()).unwrap();
        assert_eq!(prompt.text, "Be brief.\n\nUser: Hi\nAssistant: Hello.\nUser: Bye\nAssistant:");
        assert_eq!(Dialogue::plain().end_of_turn(), None);
    }

    #[test]
    fn the_end_of_a_turn_is_found_in_the_template() {
        let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
        let dialogue = Dialogue::with_template(Template::compile(source).unwrap());
        assert_eq!(dialogue.end_of_turn().as_deref(), Some("</s>"));
        let prompt = dialogue.prompt(&talk()).unwrap();
        assert!(prompt.text.ends_with("<user>Bye</s>\n<assistant>"), "{}", prompt.text);
    }

    #[test]
    fn variables_have_llama_cpps_defaults() {
        let source = "{{ enable_thinking }} {{ date_string | length }} {{ datetime | length }}";
        let mut dialogue = Dialogue::with_template(Template::compile(source).unwrap());
        assert_eq!(dialogue.prompt(&talk()).unwrap().text, "True 11 11");
        dialogue.variables.insert("enable_thinking".to_owned(), false.into());
        dialogue.variables.insert("datetime".to_owned(), "now".into());
        assert_eq!(dialogue.prompt(&talk()).unwrap().text, "False 11 3");
    }

    #[test]
    fn tools_are_passed_as_text_too() {
        let dialogue = Dialogue::with_template(Template::compile("<{{ functions }}>").unwrap());
        assert_eq!(dialogue.prompt(&talk()).unwrap().text, "<>");
        let tools = serde_json::json!([{ "name": "f" }]);
        let variables = Map::new();
        let turns = Turns {
            messages: &talk().messages(),
            tools: Some(&tools),
            documents: None,
            add_generation_prompt: true,
            variables: &variables,
        };
        let text = dialogue.format(&turns).unwrap().text;
        assert_eq!(text, "<[\n  {\n    \"name\": \"f\"\n  }\n]>");
    }

    #[test]
    fn a_rejected_system_message_goes_before_the_first_user_message() {
        let source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.content }}]{% endfor %}";
        let dialogue = Dialogue::with_template(Template::compile(source).unwrap());
        let prompt = dialogue.prompt(&talk()).unwrap();
        assert!(prompt.system_was_merged);
        assert_eq!(prompt.text, "[Be brief.\n\nHi][Hello.][Bye]");
        let mut alone = talk();
        alone.system = None;
        assert!(!dialogue.prompt(&alone).unwrap().system_was_merged);
    }

    #[test]
    fn an_exceeded_limit_does_not_merge_the_system_message() {
        let prompt = |body: &str| {
            let source = format!(
                "{{% for m in messages %}}{{% if m.role == 'system' %}}{body}{{% endif %}}{{% endfor %}}"
            );
            Dialogue::with_template(Template::compile(&source).unwrap()).prompt(&talk())
        };
        let grown = prompt("{{ 'a' | indent(10**9) }}").unwrap_err();
        assert!(matches!(grown, TemplateError::TooMuch { .. }), "{grown:?}");
        let loops = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
        let endless = prompt(loops).unwrap_err();
        assert!(matches!(endless, TemplateError::Endless { .. }), "{endless:?}");
        assert!(prompt("{{ 1 + 'a' }}").unwrap().system_was_merged, "the role may be the cause");
    }
}
