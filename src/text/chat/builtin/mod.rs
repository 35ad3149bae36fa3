//! Built-in templates under llama.cpp's names, for models whose file has none.
//!
//! A file's own template takes precedence. Each template was written from the documented format of
//! its models. Most print what llama.cpp prints. Comments name those that follow the models' authors
//! where llama.cpp differs; `scripts/check_templates --builtin` compares all. The authors' default
//! system messages are left out, as in llama.cpp, except for gpt-oss.

/// A template with one form for all messages.
macro_rules! each {
    ($name:literal, $start:literal, $message:literal, $answer:literal) => {
        (
            $name,
            concat!(
                $start,
                "{% for m in messages %}",
                $message,
                "{% endfor %}{% if add_generation_prompt %}",
                $answer,
                "{% endif %}"
            ),
        )
    };
}

/// A template with a form for each role.
macro_rules! roles {
    (
        $name:literal,
        $start:literal,
        $system:literal,
        $user:literal,
        $assistant:literal,
        $answer:literal
    ) => {
        (
            $name,
            concat!(
                $start,
                "{% for m in messages %}{% if m.role == 'system' %}",
                $system,
                "{% elif m.role == 'user' %}",
                $user,
                "{% else %}",
                $assistant,
                "{% endif %}{% endfor %}{% if add_generation_prompt %}",
                $answer,
                "{% endif %}"
            ),
        )
    };
}

/// A template whose user message contains the system message before it, as `ns.system`.
macro_rules! merged {
    (
        $name:literal,
        $start:literal,
        $system:literal,
        $user:literal,
        $assistant:literal,
        $answer:literal
    ) => {
        (
            $name,
            concat!(
                "{% set ns = namespace(system='') %}",
                $start,
                "{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = ns.system + ",
                $system,
                " %}{% elif m.role == 'user' %}",
                $user,
                "{% set ns.system = '' %}{% else %}",
                $assistant,
                "{% endif %}{% endfor %}{% if add_generation_prompt %}",
                $answer,
                "{% endif %}"
            ),
        )
    };
}

mod sources;

use sources::TEMPLATES;

/// The source of the built-in template called `name`; `None` if no built-in template has this name.
#[must_use]
pub fn builtin(name: &str) -> Option<&'static str> {
    TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// All names, sorted.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use serde_json::Map;

    use super::*;
    use crate::chat::{Input, Message, Template};

    fn render(name: &str, messages: &[Message], add_generation_prompt: bool) -> String {
        let template = Template::compile(builtin(name).unwrap()).unwrap();
        let input = Input {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt,
            bos_token: "<s>",
            eos_token: "</s>",
            variables: &Map::new(),
            now: UNIX_EPOCH,
        };
        template.render(&input).unwrap()
    }

    /// Each line of the file has a name and the prompt of a conversation with a system message and
    /// two turns. Templates with a default for the system message have a second text: a turn and
    /// its answer alone, without a generation prompt.
    #[test]
    fn prompts_match_the_models_formats() {
        let one = Message::new;
        let talk =
            [one("system", " s "), one("user", " a\n"), one("assistant", " b "), one("user", "c ")];
        let mut names = builtin_names();
        for line in include_str!("prompts.jsonl").lines() {
            let row: Vec<String> = serde_json::from_str(line).unwrap();
            let name = &*row[0];
            assert_eq!(names.next(), Some(name));
            assert_eq!(render(name, &talk, true), row[1], "{name}");
            if let Some(answered) = row.get(2) {
                assert_eq!(render(name, &talk[1..3], false), *answered, "{name}");
            }
        }
        assert_eq!(names.next(), None, "no prompts in the file");
        assert!(builtin_names().is_sorted());
        assert_eq!(builtin("no such"), None);
    }
}
