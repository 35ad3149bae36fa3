//! Reads the constraint on the output of a request: JSON, a JSON schema, a regular expression or a
//! grammar.

use constrain::Grammar;
use serde_json::Value;

use crate::error::{ApiError, Result};
use crate::fields::{Fields, is_empty};

/// A constraint on the answer, and the field of the request that sets it.
#[derive(Clone, Debug)]
pub(crate) struct Structure {
    pub(crate) grammar: Grammar,
    pub(crate) field: &'static str,
}

type FromText = fn(String) -> Grammar;

/// Reads OpenAI's `response_format`, llama-server's `grammar` and `json_schema`, and vLLM's
/// `guided_json`, `guided_regex`, `guided_choice` and `guided_grammar`.
///
/// # Errors
/// 400 for an invalid value, or if two of these fields are set.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<Structure>> {
    let mut found: Option<Structure> = None;
    let mut add = |field: &'static str, grammar: Option<Grammar>| match (grammar, &found) {
        (None, _) => Ok(()),
        (Some(_), Some(other)) => Err(ApiError::field(
            field,
            format!("and `{}` cannot be combined: send one of them", other.field),
        )),
        (Some(grammar), None) => {
            found = Some(Structure { grammar, field });
            Ok(())
        }
    };
    add("response_format", response_format(fields)?)?;
    for field in ["json_schema", "guided_json"] {
        let value = fields.take(field).filter(|value| *field == *"json_schema" || !is_empty(value));
        add(field, value.map(|value| schema(field, value)).transpose()?)?;
    }
    let texts: [(&'static str, FromText); 3] = [
        ("grammar", Grammar::Gbnf),
        ("guided_grammar", Grammar::Lark),
        ("guided_regex", Grammar::Regex),
    ];
    for (field, grammar) in texts {
        let text = fields.string(field)?.filter(|text| !text.is_empty());
        add(field, text.map(grammar))?;
    }
    let choice = fields.strings("guided_choice")?.filter(|texts| !texts.is_empty());
    add("guided_choice", choice.map(Grammar::Choice))?;
    fields.refuse("grammar_lazy", "a grammar applies from the start of an answer", is_empty)?;
    fields.refuse("grammar_triggers", "a grammar applies from the start of an answer", is_empty)?;
    Ok(found)
}

fn response_format(fields: &mut Fields) -> Result<Option<Grammar>> {
    const FIELD: &str = "response_format";
    let Some(format) = fields.object(FIELD)? else { return Ok(None) };
    let kind = format.get("type").and_then(Value::as_str);
    match kind {
        Some("text") => Ok(None),
        Some("json_object") => match format.get("schema").filter(|schema| !schema.is_null()) {
            Some(schema) => self::schema(FIELD, schema.clone()).map(Some),
            None => Ok(Some(Grammar::JsonObject)),
        },
        Some("json_schema") => {
            let nested = format.get("json_schema").and_then(|nested| nested.get("schema"));
            let schema = nested.or_else(|| format.get("schema")).cloned();
            let missing = || ApiError::field(FIELD, "needs `json_schema.schema`");
            self::schema(FIELD, schema.ok_or_else(missing)?).map(Some)
        }
        _ => Err(ApiError::field(FIELD, "needs the type text, json_object or json_schema")),
    }
}

/// Reads a schema: an object, true, false, or JSON in a string.
fn schema(field: &str, value: Value) -> Result<Grammar> {
    let wrong = |e| ApiError::field(field, format!("has a schema that is not JSON: {e}"));
    let value = match value.as_str() {
        Some(text) => serde_json::from_str(text).map_err(wrong)?,
        None => value,
    };
    if value.is_object() || value.is_boolean() {
        Ok(Grammar::JsonSchema(value))
    } else {
        Err(ApiError::field(field, "has a schema that is not an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<Option<Grammar>> {
        let mut fields = Fields::parse(value.to_string().as_bytes()).unwrap();
        super::read(&mut fields).map(|found| found.map(|structure| structure.grammar))
    }

    #[test]
    fn each_form_is_read() {
        let schema = json!({ "type": "object" });
        let read_format = |format: Value| read(json!({ "response_format": format }));
        let expected = Ok(Some(Grammar::JsonSchema(schema.clone())));
        assert_eq!(read_format(json!({ "type": "text" })), Ok(None));
        assert_eq!(read_format(json!({ "type": "json_object" })), Ok(Some(Grammar::JsonObject)));
        assert_eq!(read_format(json!({ "type": "json_object", "schema": schema })), expected);
        let nested =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        assert_eq!(read_format(nested), expected);
        assert_eq!(read(json!({ "json_schema": schema })), expected);
        assert_eq!(read(json!({ "guided_json": schema.to_string() })), expected);
        let gbnf = Grammar::Gbnf("root ::= \"a\"".to_owned());
        assert_eq!(read(json!({ "grammar": "root ::= \"a\"" })), Ok(Some(gbnf)));
        assert_eq!(read(json!({ "grammar": "" })), Ok(None));
    }

    #[test]
    fn invalid_forms_name_the_field() {
        for (value, param) in [
            (json!({ "response_format": { "type": "sound" } }), "response_format"),
            (json!({ "response_format": { "type": "json_schema" } }), "response_format"),
            (
                json!({ "response_format": { "type": "json_object", "schema": 5 } }),
                "response_format",
            ),
            (json!({ "json_schema": [] }), "json_schema"),
            (json!({ "grammar": 5 }), "grammar"),
            (json!({ "grammar": "x", "json_schema": {} }), "grammar"),
        ] {
            assert_eq!(read(value).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
