//! A validator for the keywords of the test schemas, written from the specification of JSON Schema.

use regex::Regex;
use serde_json::Value;

/// Whether `value` is valid for `schema`, in which references start at `root`.
pub(super) fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keys) = schema else { return schema == &Value::Bool(true) };
    keys.iter().all(|(key, wanted)| keyword(root, schema, key, wanted, value))
}

fn keyword(root: &Value, schema: &Value, key: &str, wanted: &Value, value: &Value) -> bool {
    let valid = |schema: &Value, value: &Value| is_valid(root, schema, value);
    let items = || wanted.as_array().unwrap();
    let number = |compare: fn(f64, f64) -> bool| {
        value.as_f64().is_none_or(|value| compare(value, wanted.as_f64().unwrap()))
    };
    let size = |n: Option<usize>, compare: fn(usize, usize) -> bool| {
        n.is_none_or(|n| compare(n, usize::try_from(wanted.as_u64().unwrap()).unwrap()))
    };
    let n_chars = value.as_str().map(|text| text.chars().count());
    let n_items = value.as_array().map(Vec::len);
    let n_keys = value.as_object().map(serde_json::Map::len);
    match key {
        "type" => {
            let kinds = wanted.as_array().map_or(std::slice::from_ref(wanted), Vec::as_slice);
            kinds.iter().any(|kind| has_type(kind, value))
        }
        "const" => equal(wanted, value),
        "enum" => items().iter().any(|item| equal(item, value)),
        "anyOf" => items().iter().any(|schema| valid(schema, value)),
        "oneOf" => items().iter().filter(|schema| valid(schema, value)).count() == 1,
        "allOf" => items().iter().all(|schema| valid(schema, value)),
        "$ref" => {
            let path = wanted.as_str().unwrap().trim_start_matches('#');
            valid(root.pointer(path).unwrap(), value)
        }
        "minimum" => number(|a, b| a >= b),
        "maximum" => number(|a, b| a <= b),
        "exclusiveMinimum" => number(|a, b| a > b),
        "exclusiveMaximum" => number(|a, b| a < b),
        "multipleOf" => number(|a, b| ((a / b) - (a / b).round()).abs() < 1e-6),
        "minLength" => size(n_chars, |a, b| a >= b),
        "maxLength" => size(n_chars, |a, b| a <= b),
        "pattern" => {
            let regex = Regex::new(wanted.as_str().unwrap()).unwrap();
            value.as_str().is_none_or(|text| regex.is_match(text))
        }
        "format" => value.as_str().is_none_or(|text| has_format(wanted.as_str().unwrap(), text)),
        "minItems" => size(n_items, |a, b| a >= b),
        "maxItems" => size(n_items, |a, b| a <= b),
        "prefixItems" => {
            let pairs = value.as_array().into_iter().flatten().zip(items());
            pairs.into_iter().all(|(item, schema)| valid(schema, item))
        }
        "items" => {
            let first = schema.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
            value.as_array().into_iter().flatten().skip(first).all(|item| valid(wanted, item))
        }
        "minProperties" => size(n_keys, |a, b| a >= b),
        "maxProperties" => size(n_keys, |a, b| a <= b),
        "required" => value
            .as_object()
            .is_none_or(|o| items().iter().all(|k| o.contains_key(k.as_str().unwrap()))),
        "properties" => value.as_object().is_none_or(|object| {
            let wanted = wanted.as_object().unwrap();
            wanted
                .iter()
                .all(|(key, schema)| object.get(key).is_none_or(|value| valid(schema, value)))
        }),
        "patternProperties" => value.as_object().is_none_or(|object| {
            wanted.as_object().unwrap().iter().all(|(pattern, schema)| {
                let regex = Regex::new(pattern).unwrap();
                let mut matching = object.iter().filter(|(key, _)| regex.is_match(key));
                matching.all(|(_, value)| valid(schema, value))
            })
        }),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let named = schema.get("properties").and_then(Value::as_object);
            let patterns = schema.get("patternProperties").and_then(Value::as_object);
            object.iter().all(|(key, value)| {
                let matched = |pattern: &String| Regex::new(pattern).unwrap().is_match(key);
                named.is_some_and(|named| named.contains_key(key))
                    || patterns.is_some_and(|patterns| patterns.keys().any(matched))
                    || valid(wanted, value)
            })
        }),
        "title" | "description" | "default" | "$defs" | "definitions" | "$schema" | "examples" => {
            true
        }
        other => panic!("the validator does not know {other}"),
    }
}

fn has_type(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    }
}

/// Whether two values are equal; 1 equals 1.0.
fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn has_format(format: &str, text: &str) -> bool {
    let regex = match format {
        "date" => r"^\d{4}-\d\d-\d\d$",
        "date-time" => r"(?i)^\d{4}-\d\d-\d\dt\d\d:\d\d:\d\d(\.\d+)?(z|[-+]\d\d:\d\d)$",
        "time" => r"(?i)^\d\d:\d\d:\d\d(\.\d+)?(z|[-+]\d\d:\d\d)$",
        "uuid" => r"(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        "ipv4" => r"^(\d{1,3}\.){3}\d{1,3}$",
        "email" => r"^[^@]+@[^@]+$",
        other => panic!("the validator does not know the format {other}"),
    };
    Regex::new(regex).unwrap().is_match(text)
}
