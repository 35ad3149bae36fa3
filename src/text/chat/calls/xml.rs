//! Qwen3-Coder's calls: `<function=NAME>` with a `<parameter=KEY>` for each argument.

use serde_json::Value;

use super::body::{After, Event, Sink, Step, Tail, TailStep};
use super::format::{FUNCTION, TOOL_CALL_END};

const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const FUNCTION_END: &str = "</function>";
/// Maximum length of the name of a function or parameter, in bytes.
const MAX_NAME: usize = 256;

#[derive(Debug)]
pub(super) struct Xml {
    stage: Stage,
    name: String,
    n_parameters: usize,
}

#[derive(Debug)]
enum Stage {
    /// Within `<function=`; holds the text so far.
    Opening(String),
    Name(String),
    /// Between parameters.
    Between(String),
    Key(String),
    Value {
        key: String,
        text: String,
    },
    Tail(Tail),
}

impl Xml {
    pub(super) fn new() -> Xml {
        Xml { stage: Stage::Opening(String::new()), name: String::new(), n_parameters: 0 }
    }

    /// A parser for the text after `<function=`.
    pub(super) fn after_function() -> Xml {
        Xml { stage: Stage::Name(String::new()), ..Xml::new() }
    }

    pub(super) fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.stage {
            Stage::Opening(text) => {
                text.push(c);
                if text == FUNCTION {
                    self.stage = Stage::Name(String::new());
                } else if !FUNCTION.starts_with(text.as_str()) {
                    return Step::Failed;
                }
            }
            Stage::Name(name) if c == '>' => {
                let name = name.trim().to_owned();
                if !sink.knows(&name) {
                    return Step::Failed;
                }
                sink.events.extend([Event::Begin(name.clone()), Event::Arguments("{".into())]);
                (self.name, self.stage) = (name, Stage::Between(String::new()));
            }
            Stage::Name(text) | Stage::Key(text) if c != '>' => {
                if c == '\n' || text.len() > MAX_NAME {
                    return Step::Failed;
                }
                text.push(c);
            }
            Stage::Key(key) => {
                let key = key.trim().to_owned();
                self.stage = Stage::Value { key, text: String::new() };
            }
            Stage::Between(text) => {
                text.push(c);
                let trimmed = text.trim_start();
                if trimmed == PARAMETER {
                    self.stage = Stage::Key(String::new());
                } else if trimmed == FUNCTION_END {
                    sink.events.extend([Event::Arguments("}".into()), Event::End]);
                    self.stage = Stage::Tail(Tail::new(&[(TOOL_CALL_END, After::Content)]));
                } else if !PARAMETER.starts_with(trimmed) && !FUNCTION_END.starts_with(trimmed) {
                    return Step::Failed;
                }
            }
            Stage::Value { key, text } => {
                text.push(c);
                if let Some(value) = text.strip_suffix(PARAMETER_END) {
                    let comma = if self.n_parameters > 0 { ", " } else { "" };
                    let value = sink.argument(&self.name, key, strip_line_breaks(value));
                    let member = format!("{comma}{}: {value}", Value::from(key.as_str()));
                    sink.events.push(Event::Arguments(member));
                    self.n_parameters += 1;
                    self.stage = Stage::Between(String::new());
                }
            }
            Stage::Tail(tail) => match tail.step(c) {
                TailStep::More | TailStep::NextCall { .. } => {}
                TailStep::Done { rest } => return Step::Done { rest },
            },
            // Unreachable: the arms above cover every character of a name.
            Stage::Name(_) => return Step::Failed,
        }
        Step::More
    }

    pub(super) fn finish(&mut self) -> Option<String> {
        match &mut self.stage {
            Stage::Tail(tail) => Some(tail.rest()),
            Stage::Opening(_)
            | Stage::Name(_)
            | Stage::Between(_)
            | Stage::Key(_)
            | Stage::Value { .. } => None,
        }
    }
}

/// Removes one line break before and after a value, because models write values on separate lines.
fn strip_line_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
