//! The tools of a request: their description for the template, and the constraint on calls.

use constrain::{Grammar, ToolCalls, ToolChoice};
use serde_json::{Map, Value, json};
use text::chat::{CallFormat, Tool};

use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::structure::Structure;

const MAX_TOOLS: usize = 512;

#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) list: Vec<Tool>,
    /// The tools in OpenAI's format, which templates expect.
    pub(crate) descriptions: Value,
    pub(crate) format: CallFormat,
    choice: ToolChoice,
    parallel: bool,
}

impl Tools {
    /// Reads the fields of OpenAI's chat completions: `tools`, `tool_choice`,
    /// `parallel_tool_calls`.
    ///
    /// # Errors
    /// 400 for an invalid tool or choice, also in the functions below.
    pub(crate) fn openai(fields: &mut Fields, format: CallFormat) -> Result<Option<Tools>> {
        let list = fields.list("tools")?.unwrap_or_default();
        let functions = list.into_iter().enumerate().map(|(i, tool)| {
            let at = format!("tools[{i}]");
            if tool.get("type").and_then(Value::as_str) != Some("function") {
                return Err(ApiError::field(&at, "must have the type function"));
            }
            match tool.get("function").cloned() {
                Some(Value::Object(function)) => Ok((at, function)),
                _ => Err(ApiError::field(&at, "needs `function` as an object")),
            }
        });
        let functions = functions.collect::<Result<Vec<_>>>()?;
        let choice = fields.take("tool_choice");
        let named = |choice: &Value| choice.pointer("/function/name").cloned();
        let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        fields.ignore(&["parse_tool_calls"]);
        let empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        fields.refuse("functions", "use `tools`", empty)?;
        let unused = |value: &Value| matches!(value.as_str(), Some("none" | "auto"));
        fields.refuse("function_call", "use `tool_choice`", unused)?;
        Tools::new(functions, "parameters", openai_choice(choice, named)?, parallel, format)
    }

    /// Reads the fields of OpenAI's Responses API, where a tool is itself the function.
    pub(crate) fn responses(fields: &mut Fields, format: CallFormat) -> Result<Option<Tools>> {
        let list = fields.list("tools")?.unwrap_or_default();
        let functions = list.into_iter().enumerate().map(|(i, tool)| {
            let at = format!("tools[{i}]");
            let Value::Object(mut tool) = tool else {
                return Err(ApiError::field(&at, "must be an object"));
            };
            match tool.shift_remove("type") {
                Some(kind) if kind == "function" => Ok((at, tool)),
                kind => {
                    let kind = kind.unwrap_or_default();
                    Err(ApiError::field("tools", format!("has the unsupported type {kind}")))
                }
            }
        });
        let functions = functions.collect::<Result<Vec<_>>>()?;
        let choice = fields.take("tool_choice");
        let named = |choice: &Value| choice.get("name").cloned();
        let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        Tools::new(functions, "parameters", openai_choice(choice, named)?, parallel, format)
    }

    /// Reads the fields of Anthropic's messages API.
    pub(crate) fn anthropic(fields: &mut Fields, format: CallFormat) -> Result<Option<Tools>> {
        let list = fields.list("tools")?.unwrap_or_default();
        let functions = list.into_iter().enumerate().map(|(i, tool)| {
            let at = format!("tools[{i}]");
            let Value::Object(tool) = tool else {
                return Err(ApiError::field(&at, "must be an object"));
            };
            match tool.get("type").and_then(Value::as_str) {
                None | Some("custom") => Ok((at, tool)),
                Some(kind) => {
                    Err(ApiError::field("tools", format!("has the unsupported type {kind}")))
                }
            }
        });
        let functions = functions.collect::<Result<Vec<_>>>()?;
        let mut choice = Fields::from_map(fields.object("tool_choice")?.unwrap_or_default());
        let parallel = !choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
        let name = choice.string("name")?;
        let choice = match (choice.string("type")?.as_deref(), name) {
            (None | Some("auto"), _) => Some(ToolChoice::Auto),
            (Some("none"), _) => None,
            (Some("any"), _) => Some(ToolChoice::Required),
            (Some("tool"), Some(name)) => Some(ToolChoice::Named(name)),
            _ => {
                let problem = "must have the type auto, any, none, or tool with a name";
                return Err(ApiError::field("tool_choice", problem));
            }
        };
        Tools::new(functions, "input_schema", choice, parallel, format)
    }

    /// The tools and the choice; `None` if there are no tools, or if no calls are allowed.
    fn new(
        functions: Vec<(String, Map<String, Value>)>,
        schema: &str,
        choice: Option<ToolChoice>,
        parallel: bool,
        format: CallFormat,
    ) -> Result<Option<Tools>> {
        if functions.len() > MAX_TOOLS {
            let problem = format!("has {} tools, expected at most {MAX_TOOLS}", functions.len());
            return Err(ApiError::field("tools", problem));
        }
        let mut list = Vec::new();
        let mut descriptions = Vec::new();
        for (at, mut function) in functions {
            let name = function.get("name").and_then(Value::as_str).map(str::to_owned);
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                return Err(ApiError::field(&at, "needs a `name`"));
            };
            let parameters = function.shift_remove(schema).unwrap_or_default();
            if !(parameters.is_null() || parameters.is_object()) {
                return Err(ApiError::field(&at, format!("needs `{schema}` as an object")));
            }
            let shown = if parameters.is_null() {
                json!({ "type": "object", "properties": {} })
            } else {
                parameters.clone()
            };
            descriptions.push(json!({ "type": "function", "function": {
                "name": name,
                "description": function.get("description").cloned().unwrap_or_else(|| "".into()),
                "parameters": shown,
            } }));
            list.push(Tool { name, parameters });
        }
        let Some(choice) = choice else { return Ok(None) };
        if list.is_empty() {
            return match choice {
                ToolChoice::Auto => Ok(None),
                ToolChoice::Required | ToolChoice::Named(_) => {
                    Err(ApiError::field("tool_choice", "needs `tools`"))
                }
            };
        }
        if let ToolChoice::Named(name) = &choice
            && !list.iter().any(|tool| tool.name == *name)
        {
            return Err(ApiError::field("tool_choice", format!("names the unknown tool '{name}'")));
        }
        Ok(Some(Tools { list, descriptions: descriptions.into(), format, choice, parallel }))
    }

    /// Whether the constraint on calls must be delayed until after the reasoning. This is not
    /// necessary if calls are optional, or in the format of gpt-oss, whose grammar includes the
    /// reasoning.
    pub(crate) fn starts_after_reasoning(&self) -> bool {
        self.choice != ToolChoice::Auto && self.format != CallFormat::Harmony
    }

    pub(crate) fn structure(&self) -> Structure {
        let calls = ToolCalls {
            format: self.format,
            tools: self.list.clone(),
            choice: self.choice.clone(),
            parallel: self.parallel,
        };
        Structure { grammar: Grammar::ToolCalls(calls), field: "tools" }
    }
}

/// OpenAI's `tool_choice`; `None` for no calls.
fn openai_choice(
    choice: Option<Value>,
    named: impl Fn(&Value) -> Option<Value>,
) -> Result<Option<ToolChoice>> {
    let Some(choice) = choice else { return Ok(Some(ToolChoice::Auto)) };
    let name = named(&choice);
    match (choice.as_str(), name.as_ref().and_then(Value::as_str)) {
        (Some("auto"), _) => Ok(Some(ToolChoice::Auto)),
        (Some("none"), _) => Ok(None),
        (Some("required" | "any"), _) => Ok(Some(ToolChoice::Required)),
        (None, Some(name)) => Ok(Some(ToolChoice::Named(name.to_owned()))),
        _ => {
            let problem = "must be auto, none or required, or name a function";
            Err(ApiError::field("tool_choice", problem))
        }
    }
}
