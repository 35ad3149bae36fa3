//! Grammars of tool calls: a model's call format, with the JSON schemas of the tools as arguments.

use std::fmt::Write;

use serde_json::{Value, json};
use text::chat::{CallFormat, Tool};
use text::sample::Constraint;
use text::tokenizer::{TokenType, Tokenizer};

use crate::vocabulary::{checked_schema, keyword, quoted, too_complex};
use crate::{Error, Grammar, Limits, TriggeredConstraint, Triggers, Vocabulary, patterns};

/// White space allowed within the JSON of a call.
const SPACE: &str = r"[ \t\n]{0,8}";

/// The tool calls that an answer may or must contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any text. After the marker that opens a call, only calls are allowed.
    Auto,
    /// At least one call, of any tool.
    Required,
    /// At least one call, all of this tool.
    Named(String),
}

/// Tool calls in a model's format.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCalls {
    /// The model's call format.
    pub format: CallFormat,
    /// The tools.
    pub tools: Vec<Tool>,
    /// The calls that the text must have.
    pub choice: ToolChoice,
    /// Whether there may be several calls.
    pub parallel: bool,
}

/// Compiles the grammar of the calls to a constraint.
///
/// # Errors
/// [`Error::Tool`] with the tool whose schema is not supported, [`Error::NoTool`],
/// [`Error::ToolName`], [`Error::TooLarge`], [`Error::TooComplex`].
pub(crate) fn compile(
    vocabulary: &Vocabulary,
    wanted: &ToolCalls,
    limits: &Limits,
) -> Result<Box<dyn Constraint>, Error> {
    let tools: Vec<&Tool> = match &wanted.choice {
        ToolChoice::Auto | ToolChoice::Required => wanted.tools.iter().collect(),
        ToolChoice::Named(name) => {
            let found: Vec<_> = wanted.tools.iter().filter(|tool| tool.name == *name).collect();
            if found.is_empty() {
                return Err(Error::NoTool { reason: format!("no tool has the name '{name}'") });
            }
            found
        }
    };
    if tools.is_empty() {
        return Err(Error::NoTool {
            reason: "a tool call is required, but no tools are given".into(),
        });
    }
    if tools.len() > limits.n_rules / 4 {
        let (found, limit) = (tools.len(), limits.n_rules / 4);
        return Err(Error::TooLarge { what: "list of tools", found, limit, unit: "tools" });
    }
    let tokenizer = vocabulary.tokenizer();
    let mut writer = Writer { lark: String::new(), tokenizer, limits, n_terminals: 0 };
    let auto = wanted.choice == ToolChoice::Auto;
    let start = writer.start(wanted, &tools, auto)?;
    let lark = format!("start: {start}\n{}", writer.lark);
    if lark.len() > 4 * limits.n_bytes {
        let (found, limit) = (lark.len(), 4 * limits.n_bytes);
        return Err(Error::TooLarge { what: "list of tools", found, limit, unit: "bytes" });
    }
    let compiled = vocabulary.compile_lark(lark, limits);
    let calls =
        compiled.map_err(|reason| find_failing_tool(vocabulary, &tools, &reason, limits))?;
    for tool in &tools {
        patterns::check(vocabulary, &tool.parameters, limits)
            .map_err(|source| Error::Tool { name: tool.name.clone(), source: Box::new(source) })?;
    }
    if !auto {
        return Ok(Box::new(calls));
    }
    Ok(Box::new(TriggeredConstraint::new(vocabulary, &triggers(wanted.format), Box::new(calls))))
}

/// The error with the name of the tool whose schema causes it. Compiles each schema alone to find
/// the tool.
fn find_failing_tool(
    vocabulary: &Vocabulary,
    tools: &[&Tool],
    reason: &str,
    limits: &Limits,
) -> Error {
    for tool in tools {
        let grammar = Grammar::JsonSchema(parameters(tool));
        if let Err(source) = vocabulary.compile(&grammar, limits) {
            return Error::Tool { name: tool.name.clone(), source: Box::new(source) };
        }
    }
    Error::TooComplex { reason: too_complex(reason).unwrap_or_else(|| keyword(reason)) }
}

/// The schema of a tool's arguments, which must be an object.
fn parameters(tool: &Tool) -> Value {
    if tool.parameters.is_null() {
        return json!({"type": "object"});
    }
    let mut schema = tool.parameters.clone();
    if let Value::Object(keys) = &mut schema
        && (keys.is_empty() || !keys.contains_key("type") && keys.contains_key("properties"))
    {
        keys.insert("type".into(), "object".into());
    }
    schema
}

/// The terminal of a string that is written without quotes, with the length and pattern of its
/// schema. A `format` is an annotation, as in drafts 2019-09 and later.
fn plain_text(schema: &Value) -> Result<String, Error> {
    let bound = |key| schema.get(key).and_then(Value::as_u64);
    let (least, most) = (bound("minLength"), bound("maxLength"));
    let most = most.map_or(String::new(), |most| most.to_string());
    let length = match (least, most.as_str()) {
        (None, "") => "*".to_owned(),
        (least, most) => format!("{{{},{most}}}", least.unwrap_or(0)),
    };
    let length = format!("/(?s:.){length}/");
    let Some(pattern) = schema.get("pattern").and_then(Value::as_str) else { return Ok(length) };
    let (mut inner, mut before, mut after) = (pattern, "(?s:.*)", "(?s:.*)");
    if let Some(rest) = inner.strip_prefix('^') {
        (inner, before) = (rest, "");
    }
    if let Some(rest) = inner.strip_suffix('$').filter(|rest| !rest.ends_with('\\')) {
        (inner, after) = (rest, "");
    }
    let is_anchored = inner.len() < pattern.len();
    if inner.contains('$')
        || inner.replace("[^", "").contains('^')
        || is_anchored && inner.contains('|')
    {
        let reason = format!(
            "the keyword 'pattern' with the value '{pattern}' is not supported in this format of tool calls: use '^' only at the start, '$' only at the end, and '|' with neither"
        );
        return Err(Error::Schema { reason });
    }
    let inner = inner.replace('/', r"\/").replace('\n', r"\n");
    Ok(format!("{length} & /{before}({inner}){after}/"))
}

/// The markers that open a call in free text. The grammar of [`Writer::start`] continues after the
/// marker.
fn triggers(format: CallFormat) -> Triggers {
    let anywhere: &[&str] = match format {
        CallFormat::Hermes | CallFormat::QwenXml => &["<tool_call>"],
        CallFormat::Mistral | CallFormat::MistralArgs => &["[TOOL_CALLS]"],
        CallFormat::Harmony => &["to=functions."],
        CallFormat::DeepSeek | CallFormat::DeepSeekPlain => &["<｜tool▁calls▁begin｜>"],
        CallFormat::Gemma => &["```tool_code"],
        CallFormat::Llama3 | CallFormat::Generic => &[],
    };
    let is_bare = matches!(format, CallFormat::Llama3 | CallFormat::Generic);
    let key = if format == CallFormat::Generic { "\"tool_calls\"" } else { "\"name\"" };
    let opens = ["{", "{ ", "{\n", "{\n  ", "{\n    "].iter().filter(|_| is_bare);
    let leading = opens.map(|open| format!("{open}{key}")).collect();
    let anywhere = anywhere.iter().map(|mark| (*mark).to_owned()).collect();
    Triggers { anywhere, leading, may_end: true }
}

struct Writer<'a> {
    lark: String,
    tokenizer: &'a Tokenizer,
    limits: &'a Limits,
    n_terminals: usize,
}

impl Writer<'_> {
    /// The start rule. `opened` says whether the text already contains a marker of [`triggers`].
    fn start(
        &mut self,
        wanted: &ToolCalls,
        tools: &[&Tool],
        opened: bool,
    ) -> Result<String, Error> {
        let format = wanted.format;
        let mut calls = Vec::new();
        for (index, tool) in tools.iter().enumerate() {
            calls.push(self.call(format, index, tool)?);
        }
        let _ = writeln!(self.lark, "call: {}", calls.join(" | "));
        let many = wanted.parallel;
        let open =
            |writer: &Self, mark: &str| if opened { String::new() } else { writer.marker(mark) };
        Ok(match format {
            CallFormat::Hermes | CallFormat::QwenXml => {
                let (first, next) = (open(self, "<tool_call>"), self.marker("<tool_call>"));
                let (space, close) = (self.add_terminal(SPACE), self.marker("</tool_call>"));
                let body = format!("{space} call {space} {close}");
                let more = format!("({space} {next} {body})*");
                format!("{first} {body} {}", if many { &more } else { "" })
            }
            CallFormat::Llama3 => {
                let first = self.envelope_open("name", opened);
                let more = format!(
                    "({} {} call)*",
                    self.add_terminal(r"[ \n]?;[ \n]?"),
                    self.envelope_open("name", false)
                );
                format!("{first} call {}", if many { &more } else { "" })
            }
            CallFormat::Mistral => {
                let (first, space) = (open(self, "[TOOL_CALLS]"), self.add_terminal(SPACE));
                let more = format!("({} call)*", self.add_terminal(r",[ \t\n]{0,8}"));
                let more = if many { &more } else { "" };
                format!("{first} {space} \"[\" {space} call {more} {space} \"]\"")
            }
            CallFormat::MistralArgs => {
                let (first, next) = (open(self, "[TOOL_CALLS]"), self.marker("[TOOL_CALLS]"));
                let more = format!("({next} call)*");
                format!("{first} call {}", if many { &more } else { "" })
            }
            // gpt-oss makes one call per message, and the end of the message ends the text.
            CallFormat::Harmony if opened => "call".into(),
            CallFormat::Harmony => self.harmony(),
            CallFormat::DeepSeek | CallFormat::DeepSeekPlain => {
                let (first, begin) =
                    (open(self, "<｜tool▁calls▁begin｜>"), self.marker("<｜tool▁call▁begin｜>"));
                let (end, close) =
                    (self.marker("<｜tool▁call▁end｜>"), self.marker("<｜tool▁calls▁end｜>"));
                let one = format!("{begin} call {end}");
                let more = format!("({} {one})*", self.add_terminal(r"\n?"));
                format!("{first} {one} {} {close}", if many { &more } else { "" })
            }
            CallFormat::Gemma => {
                let first = open(self, "```tool_code");
                let (begin, end) = (self.add_terminal(r"[ \t]{0,2}\n"), self.add_terminal("\n```"));
                let more = format!("({begin} \"```tool_code\" {begin} call {end})*");
                format!("{first} {begin} call {end} {}", if many { &more } else { "" })
            }
            CallFormat::Generic => {
                let open = self.envelope_open("tool_calls", opened);
                let begin = self.add_terminal(&format!(r"{SPACE}:{SPACE}\[{SPACE}"));
                let more = format!("({} call)*", self.add_terminal(&format!(r"{SPACE},{SPACE}")));
                let end = self.add_terminal(&format!(r"{SPACE}\]{SPACE}\}}"));
                format!("{open} {begin} call {} {end}", if many { &more } else { "" })
            }
        })
    }

    /// `{"KEY"`; empty if `opened` is set, because the text then already contains it.
    fn envelope_open(&mut self, key: &str, opened: bool) -> String {
        if opened { String::new() } else { self.add_terminal(&format!(r#"\{{{SPACE}"{key}""#)) }
    }

    /// A gpt-oss message: optional reasoning in the analysis channel, then a call.
    fn harmony(&mut self) -> String {
        let [start, channel, message, end] =
            ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"].map(|mark| self.marker(mark));
        let thought = self.add_terminal(r"([^<]|<[^|])*");
        let reasoning =
            format!("({channel} \"analysis\" {message} {thought} {end} {start} \"assistant\")?");
        format!("{reasoning} {channel} \"commentary to=functions.\" call")
    }

    /// A call of one tool, without the markers around it.
    fn call(&mut self, format: CallFormat, index: usize, tool: &Tool) -> Result<String, Error> {
        let name = checked_name(&tool.name)?;
        let wrapped = |source| Error::Tool { name: name.to_owned(), source: Box::new(source) };
        if format == CallFormat::QwenXml {
            return self.xml(index, tool).map_err(wrapped);
        }
        let schema = checked_schema(&parameters(tool), self.limits).map_err(wrapped)?;
        let _ = writeln!(self.lark, "args{index}: %json {schema}");
        let args = format!("args{index}");
        Ok(match format {
            CallFormat::Hermes | CallFormat::Mistral | CallFormat::Gemma | CallFormat::Generic => {
                self.envelope(name, "arguments", &args, true)
            }
            CallFormat::Llama3 => self.envelope(name, "parameters", &args, false),
            CallFormat::MistralArgs => format!("{} {} {args}", quoted(name), self.marker("[ARGS]")),
            CallFormat::Harmony => {
                let [constrain, message] =
                    ["<|constrain|>", "<|message|>"].map(|mark| self.marker(mark));
                format!("{} ({constrain} \"json\")? {message} {args}", quoted(&format!("{name} ")))
            }
            CallFormat::DeepSeek => {
                let sep = self.marker("<｜tool▁sep｜>");
                let before = quoted(&format!("{name}\n```json\n"));
                format!("\"function\" {sep} {before} {args} \"\\n```\"")
            }
            CallFormat::DeepSeekPlain => {
                format!("{} {} {args}", quoted(name), self.marker("<｜tool▁sep｜>"))
            }
            CallFormat::QwenXml => String::new(),
        })
    }

    /// `{"name": "NAME", "KEY": args}`; without `{"name"` unless `whole` is set.
    fn envelope(&mut self, name: &str, key: &str, args: &str, whole: bool) -> String {
        let open = if whole { format!(r#"\{{{SPACE}"name""#) } else { String::new() };
        let name = name.replace('.', r"\.").replace('-', r"\-");
        let head = format!(r#"{open}{SPACE}:{SPACE}"{name}"{SPACE},{SPACE}"{key}"{SPACE}:{SPACE}"#);
        let (head, tail) = (self.add_terminal(&head), self.add_terminal(&format!(r"{SPACE}\}}")));
        format!("{head} {args} {tail}")
    }

    /// A call with one element for each parameter, in the order of the schema.
    fn xml(&mut self, index: usize, tool: &Tool) -> Result<String, Error> {
        let schema = parameters(tool);
        let required =
            schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        let none = serde_json::Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        // The schema of a parameter is compiled alone, so it needs the definitions that it refers
        // to.
        let definitions = ["$defs", "definitions"].map(|key| (key, schema.get(key)));
        let mut body = quoted(&format!("<function={}>\n", tool.name));
        for (number, (key, schema)) in properties.iter().enumerate() {
            if key.is_empty() || key.len() > 128 || key.contains(['<', '>', '\n']) {
                let reason = format!("the property name {key:?} cannot be written in XML");
                return Err(Error::Schema { reason });
            }
            let open = quoted(&format!("<parameter={key}>\n"));
            let rule = format!("value{index}x{number}");
            let kind = schema.get("type").and_then(Value::as_str);
            let choices = schema.get("enum").and_then(Value::as_array);
            let value = match (kind, choices) {
                (Some("string"), Some(choices)) => {
                    let texts: Vec<String> =
                        choices.iter().filter_map(Value::as_str).map(quoted).collect();
                    if texts.is_empty() {
                        return Err(Error::Schema {
                            reason: "the keyword 'enum' of a string has no strings".into(),
                        });
                    }
                    format!("{rule}: ({}) \"\\n</parameter>\\n\"", texts.join(" | "))
                }
                (Some("string"), None) => {
                    let text = plain_text(schema)?;
                    let name = format!("V{index}X{number}");
                    format!("{rule}[suffix=\"\\n</parameter>\\n\"]: {name}\n{name}: {text}")
                }
                _ => {
                    let mut schema = schema.as_object().cloned().unwrap_or_default();
                    for (key, value) in definitions {
                        if let Some(value) = value {
                            schema.insert(key.into(), value.clone());
                        }
                    }
                    let schema = checked_schema(&Value::Object(schema), self.limits)?;
                    let _ = writeln!(self.lark, "{rule}j: %json {schema}");
                    format!("{rule}: {rule}j \"\\n</parameter>\\n\"")
                }
            };
            let _ = writeln!(self.lark, "{value}");
            let is_required = required.iter().any(|name| name == key);
            let _ = write!(body, " ({open} {rule}){}", if is_required { "" } else { "?" });
        }
        Ok(format!("{body} \"</function>\""))
    }

    /// A terminal for a regular expression without `/`.
    fn add_terminal(&mut self, regex: &str) -> String {
        let name = format!("X{}", self.n_terminals);
        self.n_terminals += 1;
        let _ = writeln!(self.lark, "{name}: /{}/", regex.replace('\n', "\\n"));
        name
    }

    /// A marker: its token if the vocabulary has a control token for it, otherwise its text.
    fn marker(&self, text: &str) -> String {
        let is_control = |id: &u32| matches!(self.tokenizer.kind(*id), Ok(TokenType::Control));
        match self.tokenizer.id_of(text).filter(is_control) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    }
}

/// The name, if every call format can express it.
fn checked_name(name: &str) -> Result<&str, Error> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(is_word) {
        return Err(Error::ToolName { name: name.into() });
    }
    Ok(name)
}
