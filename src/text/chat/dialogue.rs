//! Formats a conversation as a prompt, and finds the end of an answer.

use std::time::SystemTime;

use serde_json::{Map, Value};

use super::template::{Input, Template, TemplateError};
use super::{Conversation, Message};

/// The format of a model's turns.
#[derive(Clone, Debug)]
pub struct Dialogue {
    form: Form,
    /// Text of the begin-of-text token, as templates write it.
    pub bos_token: String,
    /// Text of the end-of-text token.
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

/// Input for the model to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The text, including names of special tokens.
    pub text: String,
    /// Whether the system message was merged into the first question, because the template does
    /// not support it.
    pub system_was_merged: bool,
}

impl Dialogue {
    /// Turns formatted by a template.
    #[must_use]
    pub fn with_template(template: Template) -> Dialogue {
        Dialogue::new(Form::Template(template))
    }

    /// Turns in plain text, for a model without a template.
    #[must_use]
    pub fn plain() -> Dialogue {
        Dialogue::new(Form::Plain)
    }

    fn new(form: Form) -> Dialogue {
        let (bos_token, eos_token) = (String::new(), String::new());
        Dialogue { form, bos_token, eos_token, variables: Map::new() }
    }

    /// The prompt for the next answer.
    ///
    /// # Errors
    /// [`TemplateError`], with the template's line.
    pub fn prompt(&self, talk: &Conversation) -> Result<Prompt, TemplateError> {
        let Form::Template(template) = &self.form else {
            return Ok(Prompt { text: plain(talk), system_was_merged: false });
        };
        let with_system = self.render(template, &talk.messages(), true);
        match with_system {
            Ok(text) => Ok(Prompt { text, system_was_merged: false }),
            // Some templates reject the system role, by an exception or because they do not expect
            // it. Errors of time or size would occur again.
            Err(error @ (TemplateError::Raised { .. } | TemplateError::Failed { .. }))
                if talk.system.is_some() =>
            {
                let merged = self.render(template, &talk.messages_without_system(), true);
                let text = merged.map_err(|_| error)?;
                Ok(Prompt { text, system_was_merged: true })
            }
            Err(error) => Err(error),
        }
    }

    fn render(
        &self,
        template: &Template,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        template.render(&Input {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt,
            bos_token: &self.bos_token,
            eos_token: &self.eos_token,
            variables: &self.variables,
            now: SystemTime::now(),
        })
    }

    /// The text that the template writes after an answer, such as `<|im_end|>`: in a model without
    /// such a token, it ends an answer as text. `None` if it cannot be determined.
    #[must_use]
    pub fn end_of_turn(&self) -> Option<String> {
        let Form::Template(template) = &self.form else {
            return None;
        };
        const ANSWER: &str = "The answer is forty-two.";
        let mut talk = Conversation::default();
        talk.ask("What?");
        talk.answer(ANSWER);
        let text = self.render(template, &talk.messages(), false).ok()?;
        let (_, after) = text.rsplit_once(ANSWER)?;
        let end = after.trim();
        (!end.is_empty() && end.len() <= 64).then(|| end.to_owned())
    }

    /// Texts that end an answer.
    #[must_use]
    pub fn stops(&self) -> Vec<String> {
        match &self.form {
            Form::Template(_) => Vec::new(),
            Form::Plain => vec!["\nUser:".into(), "\nAssistant:".into()],
        }
    }
}

fn plain(talk: &Conversation) -> String {
    let mut text = String::new();
    for message in talk.messages() {
        let (name, end) = match message.role.as_str() {
            "system" => ("", "\n\n"),
            "user" => ("User: ", "\n"),
            _ => ("Assistant: ", "\n"),
        };
        text.extend([name, message.text().trim(), end]);
    }
    text + "Assistant:"
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
    fn plain_turns() {
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
    fn a_system_message_that_is_refused_goes_before_the_first_question() {
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
    fn a_limit_is_no_refusal_of_the_system_message() {
        let prompt = |does: &str| {
            let source = format!(
                "{{% for m in messages %}}{{% if m.role == 'system' %}}{does}{{% endif %}}{{% endfor %}}"
            );
            Dialogue::with_template(Template::compile(&source).unwrap()).prompt(&talk())
        };
        let grown = prompt("{{ 'a' | indent(10**9) }}").unwrap_err();
        assert!(matches!(grown, TemplateError::TooMuch { .. }), "{grown:?}");
        let rounds = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}";
        let endless = prompt(rounds).unwrap_err();
        assert!(matches!(endless, TemplateError::Endless { .. }), "{endless:?}");
        assert!(prompt("{{ 1 + 'a' }}").unwrap().system_was_merged, "the role may be the cause");
    }
}
