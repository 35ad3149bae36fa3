//! JSON settings with getters whose errors name the file and key.

use std::path::Path;
use std::{fs, io};

use serde_json::{Map, Value};

use super::Error;
use super::read::read_limited;

/// Largest accepted file, in bytes: ten times the largest known `tokenizer.json`.
const MAX_BYTES: u64 = 256 << 20;

/// A JSON file that contains an object.
#[derive(Clone, Debug)]
pub(super) struct Json {
    file: String,
    root: Map<String, Value>,
}

impl Json {
    pub(super) fn open(path: &Path) -> Result<Json, Error> {
        let file = path.display().to_string();
        let text = read_limited(path, MAX_BYTES)?;
        let root = serde_json::from_slice(&text)
            .map_err(|reason| Error::Json { file: file.clone(), reason })?;
        Ok(Json { file, root })
    }

    /// As [`Json::open`]; `None` if the file does not exist.
    pub(super) fn open_if_present(path: &Path) -> Result<Option<Json>, Error> {
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Ok(_) | Err(_) => Json::open(path).map(Some),
        }
    }

    /// The entries of a file that contains a list; `None` if the file does not exist.
    pub(super) fn list_if_present(path: &Path) -> Result<Option<Vec<Value>>, Error> {
        if fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let text = read_limited(path, MAX_BYTES)?;
        let file = path.display().to_string();
        serde_json::from_slice(&text).map(Some).map_err(|reason| Error::Json { file, reason })
    }

    /// Copies the nested object `inner` to the top level, where its values take precedence. Models
    /// that also process images nest the settings of their text model.
    pub(super) fn flatten(mut self, inner: &str) -> Json {
        if let Some(Value::Object(object)) = self.root.get(inner).cloned() {
            self.root.extend(object);
        }
        self
    }

    pub(super) fn with_defaults(mut self, defaults: &[(&str, u32)]) -> Json {
        for (key, value) in defaults {
            self.root.entry(*key).or_insert_with(|| (*value).into());
        }
        self
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// The first of `keys` that is present and not null, with its value; `None` if all are missing
    /// or null.
    pub(super) fn get<'a>(&self, keys: &[&'a str]) -> Option<(&'a str, &Value)> {
        keys.iter().find_map(|key| {
            let value = self.root.get(*key).filter(|value| !value.is_null())?;
            Some((*key, value))
        })
    }

    fn get_typed<T>(
        &self,
        keys: &[&str],
        expected: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some((key, value)) = self.get(keys) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.wrong_value(key, expected, value))
    }

    pub(super) fn u32(&self, keys: &[&str]) -> Result<Option<u32>, Error> {
        let whole = |value: &Value| u32::try_from(value.as_u64()?).ok();
        self.get_typed(keys, "a whole number from 0 to 4294967295", whole)
    }

    pub(super) fn f32(&self, keys: &[&str]) -> Result<Option<f32>, Error> {
        let finite = |value: &Value| Some(value.as_f64()? as f32).filter(|value| value.is_finite());
        self.get_typed(keys, "a number", finite)
    }

    pub(super) fn bool(&self, keys: &[&str]) -> Result<Option<bool>, Error> {
        self.get_typed(keys, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, keys: &[&str]) -> Result<Option<String>, Error> {
        self.get_typed(keys, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>, Error> {
        match self.get(&[key]) {
            None => Ok(None),
            Some((_, Value::Object(object))) => Ok(Some(object)),
            Some((_, other)) => Err(self.wrong_value(key, "an object", other)),
        }
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<&Vec<Value>>, Error> {
        match self.get(&[key]) {
            None => Ok(None),
            Some((_, Value::Array(list))) => Ok(Some(list)),
            Some((_, other)) => Err(self.wrong_value(key, "a list", other)),
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.root.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The nested object `key`; empty if it is missing.
    pub(super) fn inner(&self, key: &str) -> Result<Json, Error> {
        let root = self.object(key)?.cloned().unwrap_or_default();
        Ok(Json { file: self.file.clone(), root })
    }

    /// A required count from 1 to 2^24, so that the product of two counts fits in 64 bits.
    pub(super) fn count(&self, keys: &[&str], expected: &'static str) -> Result<u32, Error> {
        match self.u32(keys)? {
            None => Err(self.missing(&keys.join("` or `"), expected)),
            Some(n @ 1..=0x100_0000) => Ok(n),
            Some(n) => Err(self.wrong_value(keys[0], "1 to 16777216", n)),
        }
    }

    pub(super) fn need_f32(&self, keys: &[&str], expected: &'static str) -> Result<f32, Error> {
        self.f32(keys)?.ok_or_else(|| self.missing(&keys.join("` or `"), expected))
    }

    pub(super) fn missing(&self, key: &str, expected: &'static str) -> Error {
        Error::MissingKey { file: self.file.clone(), key: key.to_owned(), expected }
    }

    pub(super) fn wrong_value(
        &self,
        key: &str,
        expected: &str,
        found: impl std::fmt::Display,
    ) -> Error {
        let found: String = found.to_string().chars().take(200).collect();
        Error::Key {
            file: self.file.clone(),
            key: key.to_owned(),
            expected: expected.to_owned(),
            found,
        }
    }
}
