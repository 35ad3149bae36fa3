//! The fields of a request. Each field is removed by name and checked; remaining fields are
//! unknown.

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};

/// The members of a request's JSON object that have not been read yet. A null counts as absent.
/// A typed getter removes its field, and fails with 400 for another type or a value out of range.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Parses a request body.
    ///
    /// # Errors
    /// 400 for anything but a JSON object.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|e| ApiError::invalid(format!("the body is not valid JSON: {e}")))?;
        match value {
            Value::Object(map) => Ok(Fields(map)),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(ApiError::invalid("the body must be a JSON object")),
        }
    }

    /// The fields of an object inside a request.
    pub(crate) fn from_map(map: Map<String, Value>) -> Fields {
        Fields(map)
    }

    /// Adds members; existing members of the same name are replaced.
    pub(crate) fn merge(&mut self, more: Map<String, Value>) {
        self.0.extend(more);
    }

    /// Removes a field and returns its value, of any type.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Names of the fields that were not read.
    pub(crate) fn unknown(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(_) => Err(ApiError::field(name, "must be true or false")),
        }
    }

    /// Removes a field with a finite number in `range`, converted to single precision.
    pub(crate) fn number(&mut self, name: &str, range: [f32; 2]) -> Result<Option<f32>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let [least, most] = range;
        #[allow(clippy::cast_possible_truncation)] // sampling is in single precision
        let number = value.as_f64().map(|number| number as f32).filter(|n| n.is_finite());
        match number {
            None => Err(ApiError::field(name, "must be a number")),
            Some(number) if number < least || number > most => {
                let limits = match (least > f32::MIN, most < f32::MAX) {
                    (true, true) => format!("from {least} to {most}"),
                    (true, false) => format!("at least {least}"),
                    (false, _) => format!("at most {most}"),
                };
                Err(ApiError::field(name, format!("is {number}, expected {limits}")))
            }
            number => Ok(number),
        }
    }

    /// Removes a field with an integer in `range`, bounds included. `2.0` counts as an integer.
    pub(crate) fn integer(&mut self, name: &str, range: [i64; 2]) -> Result<Option<i64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let [least, most] = range;
        match integer(&value) {
            None => Err(ApiError::field(name, "must be an integer")),
            Some(n) if n < least || n > most => {
                let limits = match (least > i64::MIN, most < i64::MAX) {
                    (true, true) => format!("from {least} to {most}"),
                    (true, false) => format!("at least {least}"),
                    (false, _) => format!("at most {most}"),
                };
                Err(ApiError::field(name, format!("is {n}, expected {limits}")))
            }
            n => Ok(n),
        }
    }

    /// Removes a field with a count from 0 to `most`.
    pub(crate) fn count(&mut self, name: &str, most: usize) -> Result<Option<usize>> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let n = self.integer(name, [0, most])?;
        Ok(n.and_then(|n| usize::try_from(n).ok()))
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::field(name, "must be a string")),
        }
    }

    /// Removes a field with a string or a list of strings.
    pub(crate) fn strings(&mut self, name: &str) -> Result<Option<Vec<String>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(vec![text])),
            Some(Value::Array(items)) => {
                let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
                let wrong = || ApiError::field(name, "must be a string or a list of strings");
                texts.collect::<Option<_>>().ok_or_else(wrong).map(Some)
            }
            Some(_) => Err(ApiError::field(name, "must be a string or a list of strings")),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(ApiError::field(name, "must be an object")),
        }
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(ApiError::field(name, "must be a list")),
        }
    }

    /// Removes fields that have no effect on the response, whatever their value.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.take(name);
        }
    }

    /// Rejects a field if it is present and `is_neutral` is false for its value.
    ///
    /// # Errors
    /// 400 that names the field and the reason.
    pub(crate) fn refuse(
        &mut self,
        name: &str,
        reason: &str,
        is_neutral: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        match self.take(name) {
            Some(value) if !is_neutral(&value) => Err(ApiError::unsupported_field(name, reason)),
            _ => Ok(()),
        }
    }
}

/// The value as an integer, if it is one.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    #[allow(clippy::cast_possible_truncation)] // checked to be whole and within 53 bits
    let whole = |f: f64| (f.fract() == 0.0 && f.abs() < 9e15).then_some(f as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}

/// Whether a value has no effect: null, false, 0, an empty string, list or object.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn types_are_checked_by_name() {
        let mut fields =
            fields(r#"{"a": true, "b": 1.5, "c": 2.0, "d": "x", "e": ["y"], "f": null}"#);
        assert_eq!(fields.bool("a"), Ok(Some(true)));
        assert_eq!(fields.number("b", [0.0, 2.0]), Ok(Some(1.5)));
        assert_eq!(fields.integer("c", [0, 9]), Ok(Some(2)));
        assert_eq!(fields.strings("d"), Ok(Some(vec!["x".to_owned()])));
        assert_eq!(fields.strings("e"), Ok(Some(vec!["y".to_owned()])));
        assert_eq!(fields.bool("f"), Ok(None));
        assert_eq!(fields.unknown(), Vec::<&str>::new());
    }

    #[test]
    fn errors_name_the_field_and_the_limits() {
        let message = |error: ApiError| error.message;
        let mut fields = fields(r#"{"a": 1, "b": 3, "c": 1.5, "d": [1]}"#);
        assert_eq!(message(fields.bool("a").unwrap_err()), "`a` must be true or false");
        let outside = fields.number("b", [0.0, 2.0]).unwrap_err();
        assert_eq!(message(outside), "`b` is 3, expected from 0 to 2");
        assert_eq!(message(fields.integer("c", [0, 9]).unwrap_err()), "`c` must be an integer");
        assert!(message(fields.strings("d").unwrap_err()).contains("list of strings"));
    }

    #[test]
    fn only_an_object_is_a_request() {
        for bad in ["[]", "1", "\"x\"", "{", "", "null"] {
            assert_eq!(Fields::parse(bad.as_bytes()).unwrap_err().status, 400, "{bad}");
        }
    }

    #[test]
    fn neutral_values_pass() {
        let mut fields = fields(r#"{"lora": [], "store": 0, "n_indent": 4}"#);
        assert!(fields.refuse("lora", "no adapters", is_empty).is_ok());
        assert!(fields.refuse("store", "not stored", is_empty).is_ok());
        let refused = fields.refuse("n_indent", "not built", is_empty).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("n_indent"));
    }
}
