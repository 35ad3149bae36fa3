//! Chat templates: Jinja as in Python's `transformers`, with limits.
//!
//! This file compiles and renders templates, and reports errors with the template's line.
//! `values.rs` formats values as Python does, `methods.rs` has Python's methods, `meter.rs` the
//! limits, `clock.rs` the date. Templates are untrusted: a template that would run forever or
//! exhaust memory ends in an error.

mod clock;
mod meter;
mod methods;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use minijinja::machinery::{self, CodeGenerator, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use regex::Regex;
use serde_json::{Map, json};

use super::Message;
use clock::Clock;

/// Maximum size of a template in bytes. Real templates have up to tens of thousands of bytes.
pub const MAX_TEMPLATE: usize = 1 << 18;
/// Time limit of one rendering, enforced by the meter.
const DEADLINE: Duration = Duration::from_millis(900);
/// Extra time after the deadline to reach the next counted step. The caller does not wait for a
/// longer step of minijinja.
const GRACE: Duration = Duration::from_millis(100);
/// Stack size in bytes, for nested values and expressions. Unused pages take no memory.
const STACK: usize = 64 << 20;

/// A template that compiles.
#[derive(Clone, Debug)]
pub struct Template {
    source: Arc<str>,
    /// `source` without marks for training, changed to prevent constant folding.
    compiled: Arc<str>,
}

/// The variables of a rendering.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Descriptions of tools; `None` becomes Python's `None`.
    pub tools: Option<&'a serde_json::Value>,
    /// Documents for the answer; `None` becomes Python's `None`.
    pub documents: Option<&'a serde_json::Value>,
    /// Whether to end with the beginning of the assistant's message.
    pub add_generation_prompt: bool,
    /// Text of the BOS token.
    pub bos_token: &'a str,
    /// Text of the EOS token.
    pub eos_token: &'a str,
    /// Further variables.
    pub variables: &'a Map<String, serde_json::Value>,
    /// Current time, for templates that include the date (in UTC).
    pub now: SystemTime,
}

/// An error of a template, or of a conversation that the template rejects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template exceeds the length limit.
    #[error("the template has {bytes} bytes, expected at most {limit}")]
    TooLong {
        /// Size of the template in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The template is not valid Jinja.
    #[error("{}{what}", prefix(*line))]
    Syntax {
        /// Line of the template, from 1.
        line: usize,
        /// Description of the error.
        what: String,
    },
    /// The template rejected the conversation.
    #[error("{}{message}", prefix(*line))]
    Raised {
        /// Line of the template, from 1.
        line: usize,
        /// The template's message.
        message: String,
    },
    /// The template failed at run time.
    #[error("{}{what}", prefix(*line))]
    Failed {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
        /// Description of the error.
        what: String,
    },
    /// The template creates more text or values than a conversation of this size can need.
    #[error("{}the template produces too much text or too many values", prefix(*line))]
    TooMuch {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
    },
    /// The template takes more steps than a conversation of this size can need.
    #[error("{}the template takes too many steps", prefix(*line))]
    Endless {
        /// Line of the template, from 1; 0 if unknown.
        line: usize,
    },
    /// The template exceeds the time limit.
    #[error("{}the template takes too long", prefix(*line))]
    TooSlow {
        /// The line that ran at the time, from 1; 0 if unknown.
        line: usize,
    },
}

/// The start of a message: the line of the template; empty if `line` is 0 (unknown).
fn prefix(line: usize) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}

/// Marks an error that the template raised itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl Template {
    /// Checks that `source` can be compiled.
    ///
    /// # Errors
    /// [`TemplateError::TooLong`], [`TemplateError::Syntax`], [`TemplateError::TooSlow`].
    pub fn compile(source: &str) -> Result<Template, TemplateError> {
        if source.len() > MAX_TEMPLATE {
            return Err(TemplateError::TooLong { bytes: source.len(), limit: MAX_TEMPLATE });
        }
        let given = Arc::from(source);
        let source = without_generation(source);
        on_thread(move |_| {
            let source = meter::prevent_constant_folding(&source, syntax()?)
                .map_err(|e| to_template_error(&e))?;
            compile_program(&source)?;
            Ok(Template { source: given, compiled: source.into() })
        })
    }

    /// The source, as given.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Formats a conversation.
    ///
    /// # Errors
    /// An error that the template raises or causes, or an exceeded limit, with the template's line.
    pub fn render(&self, input: &Input<'_>) -> Result<String, TemplateError> {
        let mut context = json!({
            "messages": input.messages,
            "tools": input.tools,
            "documents": input.documents,
            "add_generation_prompt": input.add_generation_prompt,
            "bos_token": input.bos_token,
            "eos_token": input.eos_token,
        });
        if let Some(context) = context.as_object_mut() {
            context.extend(input.variables.clone());
        }
        let source = Arc::clone(&self.compiled);
        let clock = Clock::new(input.now);
        let n_messages = input.messages.len();
        on_thread(move |deadline| render_program(&source, &context, n_messages, clock, deadline))
    }
}

/// A date (UTC) in the format of `strftime`.
pub(super) fn date(now: SystemTime, format: &str) -> String {
    Clock::new(now).strftime(format)
}

/// Calls `task` with its deadline on a thread with a large stack. If `task` does not end within
/// [`GRACE`] after the deadline, returns an error; the thread then ends at its next counted step.
fn on_thread<T: Send + 'static>(
    task: impl FnOnce(Instant) -> Result<T, TemplateError> + Send + 'static,
) -> Result<T, TemplateError> {
    let (sender, receiver) = mpsc::channel();
    let deadline = Instant::now() + DEADLINE;
    let started =
        thread::Builder::new().name("template".into()).stack_size(STACK).spawn(move || {
            let _ = sender.send(task(deadline));
        });
    let failed = |what: &str| TemplateError::Failed { line: 0, what: what.into() };
    let Ok(thread) = started else {
        return Err(failed("cannot start a thread to evaluate the template"));
    };
    match receiver.recv_timeout(DEADLINE + GRACE) {
        Ok(result) => {
            // It has only its own memory left to free; a panic there changes no result.
            let _ = thread.join();
            result
        }
        Err(mpsc::RecvTimeoutError::Timeout) => Err(TemplateError::TooSlow { line: 0 }),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err(failed("the thread that evaluates the template panicked"))
        }
    }
}

/// Replaces `{% generation %}`, which marks the assistant's text for training, with a block that is
/// always rendered.
fn without_generation(source: &str) -> String {
    let tag = |name| Regex::new(&format!(r"\{{%([-+]?)\s*{name}\s*([-+]?)%\}}")).ok();
    match (tag("generation"), tag("endgeneration")) {
        (Some(begin), Some(end)) if source.contains("generation") => {
            let source = begin.replace_all(source, "{%$1 if true $2%}");
            end.replace_all(&source, "{%$1 endif $2%}").into_owned()
        }
        _ => source.to_owned(),
    }
}

type Program<'s> = (Instructions<'s>, BTreeMap<&'s str, Instructions<'s>>);

fn syntax() -> Result<SyntaxConfig, TemplateError> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(|e| to_template_error(&e))
}

fn compile_program(source: &str) -> Result<Program<'_>, TemplateError> {
    let parsed = machinery::parse(source, "chat", syntax()?).map_err(|e| to_template_error(&e))?;
    let mut code = CodeGenerator::new("chat", source);
    code.compile_stmt(&parsed);
    let (instructions, blocks) = code.finish();
    let blocks =
        blocks.iter().map(|(name, block)| (*name, meter::meter_instructions(block))).collect();
    Ok((meter::meter_instructions(&instructions), blocks))
}

fn render_program(
    source: &str,
    context: &serde_json::Value,
    n_messages: usize,
    clock: Clock,
    deadline: Instant,
) -> Result<String, TemplateError> {
    let (instructions, blocks) = compile_program(source)?;
    let mut env = Environment::new();
    env.set_fuel(Some(meter::fuel(n_messages)));
    methods::install(&mut env);
    meter::install(&mut env, size(context), deadline);
    env.add_function("strftime_now", move |format: String| clock.strftime(&format));
    env.add_function("raise_exception", |message: Value| -> Result<Value, minijinja::Error> {
        let message = message.to_string();
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone())
            .with_source(Raised(message)))
    });
    let root = value(context);
    let mut text = String::new();
    let mut out = machinery::make_string_output(&mut text);
    let result =
        machinery::eval(&env, &instructions, root, &blocks, &mut out, AutoEscape::None).map(drop);
    drop(out);
    result.map_err(|e| to_template_error(&e))?;
    Ok(text)
}

fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as V;
    match json {
        V::Null => Value::from(()),
        V::Bool(truth) => Value::from(*truth),
        V::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(n), _) => Value::from(n),
            (None, Some(n)) => Value::from(n),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        V::String(text) => Value::from(text),
        V::Array(items) => Value::from(items.iter().map(value).collect::<Vec<_>>()),
        V::Object(entries) => {
            Value::from_pairs(entries.iter().map(|(key, inner)| (key.as_str(), value(inner))))
        }
    }
}

/// Approximate size of a conversation in bytes and items.
fn size(value: &serde_json::Value) -> usize {
    use serde_json::Value as V;
    match value {
        V::Null | V::Bool(_) | V::Number(_) => 8,
        V::String(text) => 8 + text.len(),
        V::Array(items) => 8 + items.iter().map(size).sum::<usize>(),
        V::Object(entries) => 8 + entries.iter().map(|(k, v)| k.len() + size(v)).sum::<usize>(),
    }
}

fn to_template_error(error: &minijinja::Error) -> TemplateError {
    let line = error.line().unwrap_or(0);
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TemplateError::Raised { line, message: message.clone() };
        }
        if cause.is::<meter::TooMuch>() {
            return TemplateError::TooMuch { line };
        }
        if cause.is::<meter::TooSlow>() {
            return TemplateError::TooSlow { line };
        }
        source = cause.source();
    }
    let what = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    if error.kind() == ErrorKind::OutOfFuel {
        TemplateError::Endless { line }
    } else if error.kind() == ErrorKind::SyntaxError {
        TemplateError::Syntax { line, what }
    } else {
        TemplateError::Failed { line, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn render_within(time: Duration, source: &str) -> Result<String, TemplateError> {
        render_program(source, &json!({}), 1, Clock::new(UNIX_EPOCH), Instant::now() + time)
    }

    #[test]
    fn rendering_stops_at_its_deadline() {
        // These templates stay within the limits of text and steps: only the time limit ends them.
        for source in [
            "\n{% for i in range(9) %}{{ i }}{% endfor %}",
            "\n{{ [1, 2] | join }}",
            "\n{% set x = 1 %}",
        ] {
            assert!(render_within(DEADLINE, source).is_ok(), "{source}");
            let late = render_within(Duration::ZERO, source).unwrap_err();
            assert!(matches!(late, TemplateError::TooSlow { .. }), "{source}: {late:?}");
        }
    }

    #[test]
    fn a_deadline_ends_a_running_loop() {
        let long = "{% for i in range(100000) %}{% set x = i ~ 'a' * 300 %}{% endfor %}";
        let slow = render_within(Duration::from_millis(2), long).unwrap_err();
        assert!(matches!(slow, TemplateError::TooSlow { .. }), "{slow:?}");
    }
}
