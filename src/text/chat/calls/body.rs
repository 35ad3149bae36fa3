//! Parses a call after its opening marker: the parts that all formats share.

use serde_json::Value;

use super::Tool;
use super::envelope::Envelope;
use super::format::{
    CALL_BEGIN, CALLS_BEGIN, FUNCTION, PYTHON_TAG, TOOL_CALL, TOOL_CALLS, TOOL_CODE,
};
use super::named::Named;
use super::python::CodeBlock;
use super::xml::Xml;

/// An event of the parser of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A call of this tool begins.
    Begin(String),
    /// The next characters of the call's JSON arguments.
    Arguments(String),
    /// The call is complete.
    End,
    /// This marker opens another call.
    Next(&'static str),
}

/// The result of parsing one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The body continues.
    More,
    /// The last call is complete.
    Done {
        /// Text after the call.
        rest: String,
    },
    /// The text is not a call. The character was not consumed.
    Failed,
}

/// Collects the events of a parser, and checks the names of tools.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    pub(super) events: Vec<Event>,
    tools: &'a [Tool],
}

impl<'a> Sink<'a> {
    pub(super) fn new(tools: &'a [Tool]) -> Sink<'a> {
        Sink { events: Vec::new(), tools }
    }

    /// Whether a tool has this name. Without a list of tools, every name is valid.
    pub(super) fn knows(&self, name: &str) -> bool {
        !name.is_empty()
            && (self.tools.is_empty() || self.tools.iter().any(|tool| tool.name == name))
    }

    /// Converts an argument without quotes: to its JSON value, or to a string if the schema allows
    /// one or the text is not JSON.
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

    /// Adds the events of a complete call.
    pub(super) fn call(&mut self, name: String, arguments: String) {
        self.events.extend([Event::Begin(name), Event::Arguments(arguments), Event::End]);
    }
}

/// The kind of text that follows a marker after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// More markers.
    Marks,
    /// The next call.
    Call,
    /// Content.
    Content,
}

/// Markers that may follow the arguments. White space before them is not part of the content.
#[derive(Debug)]
pub(super) struct Tail {
    marks: &'static [(&'static str, After)],
    text: String,
}

/// The result of parsing one character of the tail.
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

/// The body of one or several calls.
#[derive(Debug)]
pub(super) enum Body {
    /// The first character after this marker decides the format.
    Undecided(&'static str),
    Envelope(Envelope),
    Named(Named),
    Xml(Xml),
    Code(CodeBlock),
}

impl Body {
    /// The body after the marker `mark`. `{` and `<function=` are also part of the call itself.
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

    /// Ends the text. Returns the text after the last call; `None` if the call is incomplete.
    pub(super) fn finish(&mut self) -> Option<String> {
        match self {
            Body::Undecided(_) | Body::Code(_) => None,
            Body::Envelope(body) => body.finish(),
            Body::Named(body) => body.finish(),
            Body::Xml(body) => body.finish(),
        }
    }
}
