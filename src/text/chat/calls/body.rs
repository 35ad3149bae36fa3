//! The text of a call after its mark: what all formats share.

use serde_json::Value;

use super::Tool;
use super::envelope::Envelope;
use super::format::{
    CALL_BEGIN, CALLS_BEGIN, FUNCTION, PYTHON_TAG, TOOL_CALL, TOOL_CALLS, TOOL_CODE,
};
use super::named::Named;
use super::python::CodeBlock;
use super::xml::Xml;

/// What a body found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A call of this tool.
    Begin(String),
    /// The next characters of its arguments, which are JSON.
    Arguments(String),
    /// The call is complete.
    End,
    /// This mark opens another call.
    Next(&'static str),
}

/// The result of one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The body continues.
    More,
    /// The last call is complete. `rest` is not part of it.
    Done {
        /// Text after it.
        rest: String,
    },
    /// This is not a call. The character was not consumed.
    Failed,
}

/// Collects events, and knows which tools exist.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    pub(super) events: Vec<Event>,
    tools: &'a [Tool],
}

impl<'a> Sink<'a> {
    pub(super) fn new(tools: &'a [Tool]) -> Sink<'a> {
        Sink { events: Vec::new(), tools }
    }

    /// Whether there is a tool of this name; any, if no tools are known.
    pub(super) fn knows(&self, name: &str) -> bool {
        !name.is_empty()
            && (self.tools.is_empty() || self.tools.iter().any(|tool| tool.name == name))
    }

    /// An argument that was written without quotes: a string where the schema allows one,
    /// otherwise the JSON that it is.
    pub(super) fn argument(&self, tool: &str, key: &str, text: &str) -> Value {
        let tool = self.tools.iter().find(|known| known.name == tool);
        let schema = tool.and_then(|tool| tool.parameters.get("properties")?.get(key));
        let kind = schema.and_then(|schema| schema.get("type"));
        let is_string = match kind {
            Some(Value::String(kind)) => kind == "string",
            Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
            _ => false,
        };
        if is_string {
            return text.into();
        }
        serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into())
    }

    /// A complete call.
    pub(super) fn call(&mut self, name: String, arguments: String) {
        self.events.extend([Event::Begin(name), Event::Arguments(arguments), Event::End]);
    }
}

/// What follows a mark after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// More marks.
    Marks,
    /// The next call.
    Call,
    /// Content.
    Content,
}

/// Marks that may follow the arguments. White space before them is not content.
#[derive(Debug)]
pub(super) struct Tail {
    marks: &'static [(&'static str, After)],
    text: String,
}

/// What the tail decided.
#[derive(Debug)]
pub(super) enum TailStep {
    More,
    NextCall { mark: &'static str },
    Done { rest: String },
}

impl Tail {
    pub(super) fn new(marks: &'static [(&'static str, After)]) -> Tail {
        Tail { marks, text: String::new() }
    }

    pub(super) fn step(&mut self, c: char) -> TailStep {
        self.text.push(c);
        let text = self.text.trim_start();
        if let Some((mark, after)) = self.marks.iter().find(|(mark, _)| *mark == text) {
            self.text.clear();
            return match after {
                After::Marks => TailStep::More,
                After::Call => TailStep::NextCall { mark },
                After::Content => TailStep::Done { rest: String::new() },
            };
        }
        if self.marks.iter().any(|(mark, _)| mark.starts_with(text)) {
            return TailStep::More;
        }
        TailStep::Done { rest: std::mem::take(&mut self.text) }
    }

    /// The text that was held back.
    pub(super) fn rest(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

/// The body of a call, or of several.
#[derive(Debug)]
pub(super) enum Body {
    /// The first character decides.
    Undecided(&'static str),
    Envelope(Envelope),
    Named(Named),
    Xml(Xml),
    Code(CodeBlock),
}

impl Body {
    /// After `mark`. A mark that is the call's own beginning is taken again as its text.
    pub(super) fn after(mark: &'static str) -> Body {
        match mark {
            "{" => {
                let mut envelope = Envelope::bare();
                // The first character of an object never fails.
                let _ = envelope.step('{', &mut Sink::new(&[]));
                Body::Envelope(envelope)
            }
            TOOL_CALL | TOOL_CALLS | PYTHON_TAG => Body::Undecided(mark),
            FUNCTION => Body::Xml(Xml::after_function()),
            CALLS_BEGIN => Body::Named(Named::deepseek(true)),
            CALL_BEGIN => Body::Named(Named::deepseek(false)),
            TOOL_CODE => Body::Code(CodeBlock::default()),
            _ => Body::Named(Named::harmony()),
        }
    }

    pub(super) fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        if let Body::Undecided(mark) = *self {
            if c.is_whitespace() {
                return Step::More;
            }
            *self = match (mark, c) {
                (TOOL_CALL, '{') => Body::Envelope(Envelope::marked()),
                (TOOL_CALL, '<') => Body::Xml(Xml::new()),
                (TOOL_CALLS, '[') => {
                    *self = Body::Envelope(Envelope::list());
                    return Step::More;
                }
                (TOOL_CALLS | PYTHON_TAG, '{') => Body::Envelope(Envelope::bare()),
                (TOOL_CALLS, _) => Body::Named(Named::mistral()),
                _ => return Step::Failed,
            };
        }
        match self {
            Body::Undecided(_) => Step::Failed,
            Body::Envelope(body) => body.step(c, sink),
            Body::Named(body) => body.step(c, sink),
            Body::Xml(body) => body.step(c, sink),
            Body::Code(body) => body.step(c, sink),
        }
    }

    /// Ends the output: the text after the last call if that is complete, otherwise `None`.
    pub(super) fn finish(&mut self) -> Option<String> {
        match self {
            Body::Undecided(_) | Body::Code(_) => None,
            Body::Envelope(body) => body.finish(),
            Body::Named(body) => body.finish(),
            Body::Xml(body) => body.finish(),
        }
    }
}
