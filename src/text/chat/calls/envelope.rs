//! Calls as JSON objects: `{"name": .., "arguments": {..}}`, alone, between markers, or in a list.

use serde_json::{Map, Value};

use super::body::{After, Event, Sink, Step, Tail, TailStep};
use super::format::TOOL_CALL_END;
use super::json::{JsonScan, State};

/// Keys of the arguments.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Possible first keys of a call that has no marker. An object with another first key is ordinary
/// content.
const FIRST_KEYS: [&str; 8] =
    ["name", "type", "function", "id", "tool_call", "tool_calls", "arguments", "parameters"];

/// One call, or several in a list.
#[derive(Debug)]
pub(super) struct Envelope {
    object: Object,
    enclosure: Enclosure,
    /// The parser of the text after the object; `None` within the object.
    tail: Option<Tail>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enclosure {
    /// `<tool_call>` and `</tool_call>`.
    Marks,
    /// `[` and `]`.
    List,
    Nothing,
}

/// The JSON object, complete or still arriving.
#[derive(Debug)]
struct Object {
    scan: JsonScan,
    text: String,
    /// Start of the current top-level key or value in `text`.
    start: usize,
    key: String,
    name: Option<String>,
    arguments: Arguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments {
    /// The arguments have not begun, or cannot be passed on before the call is complete.
    Missing,
    Begun,
    Complete,
}

impl Envelope {
    pub(super) fn marked() -> Envelope {
        Envelope::new(Enclosure::Marks)
    }

    /// A list of calls, after its `[`.
    pub(super) fn list() -> Envelope {
        Envelope::new(Enclosure::List)
    }

    pub(super) fn bare() -> Envelope {
        Envelope::new(Enclosure::Nothing)
    }

    fn new(enclosure: Enclosure) -> Envelope {
        Envelope { object: Object::new(), enclosure, tail: None }
    }

    fn marks(&self) -> &'static [(&'static str, After)] {
        match self.enclosure {
            Enclosure::Marks => &[(TOOL_CALL_END, After::Content)],
            Enclosure::List => &[(",", After::Call), ("]", After::Content)],
            Enclosure::Nothing => &[],
        }
    }

    pub(super) fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        if let Some(tail) = &mut self.tail {
            return match tail.step(c) {
                TailStep::More => Step::More,
                TailStep::NextCall { mark } => {
                    sink.events.push(Event::Next(mark));
                    (self.object, self.tail) = (Object::new(), None);
                    Step::More
                }
                TailStep::Done { rest } => Step::Done { rest },
            };
        }
        let is_bare = self.enclosure == Enclosure::Nothing;
        if self.object.step(c, is_bare, sink).is_none() {
            return Step::Failed;
        }
        if self.object.scan.is_done() {
            if is_bare {
                return Step::Done { rest: String::new() };
            }
            self.tail = Some(Tail::new(self.marks()));
        }
        Step::More
    }

    pub(super) fn finish(&mut self) -> Option<String> {
        self.tail.as_mut().map(Tail::rest)
    }
}

impl Object {
    fn new() -> Object {
        Object {
            scan: JsonScan::new(),
            text: String::new(),
            start: 0,
            key: String::new(),
            name: None,
            arguments: Arguments::Missing,
        }
    }

    /// Parses the next character; `None` if the text is not a call.
    fn step(&mut self, c: char, is_bare: bool, sink: &mut Sink<'_>) -> Option<()> {
        if self.text.is_empty() {
            if c.is_whitespace() {
                return Some(());
            }
            if c != '{' {
                return None;
            }
        }
        let before = (self.scan.depth(), self.scan.state());
        if self.scan.step(c).is_err() {
            return None;
        }
        let at = self.text.len();
        self.text.push(c);
        let after = (self.scan.depth(), self.scan.state());
        match (before, after) {
            ((1, State::FirstKey | State::Key), (1, State::String { key: true }))
            | ((1, State::Value), (1, State::String { key: false })) => self.start = at,
            ((1, State::String { key: true }), (1, State::Colon)) => {
                let is_first = self.key.is_empty();
                self.key = serde_json::from_str(&self.text[self.start..]).ok()?;
                if is_bare && is_first && !FIRST_KEYS.contains(&self.key.as_str()) {
                    return None;
                }
            }
            ((1, State::String { key: false }), (1, State::After)) if self.key == "name" => {
                let name: String = serde_json::from_str(&self.text[self.start..]).ok()?;
                if !sink.knows(&name) {
                    return None;
                }
                self.name = Some(name);
            }
            ((1, State::Value), (2, _)) if self.begins_arguments(c) => {
                self.arguments = Arguments::Begun;
                sink.events.push(Event::Begin(self.name.clone()?));
            }
            _ => {}
        }
        if self.arguments == Arguments::Begun {
            sink.events.push(Event::Arguments(c.into()));
            if after.0 == 1 {
                self.arguments = Arguments::Complete;
                sink.events.push(Event::End);
            }
        }
        if self.scan.is_done() && self.arguments == Arguments::Missing {
            let object = serde_json::from_str(&self.text).ok()?;
            for (name, arguments) in calls(&object, is_bare)? {
                if !sink.knows(&name) {
                    return None;
                }
                sink.call(name, arguments);
            }
        }
        Some(())
    }

    /// Whether this character begins the arguments.
    fn begins_arguments(&self, c: char) -> bool {
        c == '{'
            && self.name.is_some()
            && self.arguments == Arguments::Missing
            && ARGUMENTS.contains(&self.key.as_str())
    }
}

/// Names and arguments of the calls in a complete JSON value. With `strict`, a call must have
/// arguments.
pub(super) fn calls(value: &Value, strict: bool) -> Option<Vec<(String, String)>> {
    if let Value::Array(items) = value {
        let lists: Option<Vec<_>> = items.iter().map(|item| calls(item, strict)).collect();
        let flat = lists.map(|lists| lists.into_iter().flatten().collect());
        return flat.filter(|flat: &Vec<_>| !flat.is_empty());
    }
    let object = value.as_object()?;
    if let Some(list @ Value::Array(_)) = object.get("tool_calls") {
        return calls(list, strict);
    }
    if let Some(inner @ Value::Object(_)) = object.get("tool_call") {
        return calls(inner, strict);
    }
    if let Some(inner @ Value::Object(_)) = object.get("function") {
        return calls(inner, strict);
    }
    let name = object.get("name").or_else(|| object.get("function"))?.as_str()?;
    Some(vec![(name.to_owned(), arguments(object, strict)?)])
}

/// The arguments as JSON text. Some models write them as a string that contains JSON.
fn arguments(object: &Map<String, Value>, strict: bool) -> Option<String> {
    match ARGUMENTS.iter().find_map(|key| object.get(*key)) {
        Some(arguments @ Value::Object(_)) => Some(arguments.to_string()),
        Some(Value::String(text)) => {
            let parsed: Value = serde_json::from_str(text).ok()?;
            parsed.is_object().then(|| text.trim().to_owned())
        }
        None | Some(Value::Null) if !strict => Some("{}".into()),
        _ => None,
    }
}
