//! The key-value section of a container, with typed getters.

use std::{borrow::Cow, sync::Arc};

use super::{Array, Error, Problem, Strings, Value};

/// Keys and values in file order.
///
/// The typed getters return `Ok(None)` for a missing key, and an error with file, key, expected
/// and actual value for a value that does not fit. Integers of any width are accepted if the value
/// is in range.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: Arc<str>,
    entries: Vec<(String, Value)>,
    /// Indices of the entries, sorted by key.
    sorted: Vec<usize>,
}

impl Metadata {
    pub(super) fn new(file: Arc<str>, entries: Vec<(String, Value)>) -> Result<Metadata, Problem> {
        let sorted = sort_by_name(&entries, |(key, _)| key)
            .map_err(|key| Problem::DuplicateKey { key: key.to_owned() })?;
        Ok(Metadata { file, entries, sorted })
    }

    /// The value of `key`; `None` if the key is missing.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = self.sorted.binary_search_by(|&n| self.entries[n].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.sorted[at]].1)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The unsigned 32-bit integer at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an integer or out of range.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.integer(key, "a whole number from 0 to 4294967295")
    }

    /// The signed 32-bit integer at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an integer or out of range.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.integer(key, "a whole number from -2147483648 to 2147483647")
    }

    /// The unsigned 64-bit integer at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an integer or negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.integer(key, "a whole number that is not negative")
    }

    /// The floating-point number at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not a floating-point number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.get_typed(key, "a floating-point number", |value| {
            if let Value::F32(number) = value {
                Some(*number)
            } else if let Value::F64(number) = value {
                Some(*number as f32)
            } else {
                None
            }
        })
    }

    /// The bool at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not a bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.get_typed(key, "a bool", |value| {
            if let Value::Bool(flag) = value { Some(*flag) } else { None }
        })
    }

    /// The string at `key`. Use [`Metadata::get`] and [`Value::as_str`] if invalid UTF-8 may be shown.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not a string, or not UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.get_typed(key, "a UTF-8 string", |value| {
            if let Value::String(text) = value { std::str::from_utf8(text).ok() } else { None }
        })
    }

    /// The array of unsigned 32-bit integers at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an array of integers or one is out of range.
    pub fn u32_array(&self, key: &str) -> Result<Option<Cow<'_, [u32]>>, Error> {
        if let Some(Value::Array(Array::U32(numbers))) = self.get(key) {
            return Ok(Some(numbers.into()));
        }
        self.integers(key, "an array of whole numbers from 0 to 4294967295")
    }

    /// The array of unsigned 64-bit integers at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an array of integers or one is negative.
    pub fn u64_array(&self, key: &str) -> Result<Option<Cow<'_, [u64]>>, Error> {
        if let Some(Value::Array(Array::U64(numbers))) = self.get(key) {
            return Ok(Some(numbers.into()));
        }
        self.integers(key, "an array of whole numbers that are not negative")
    }

    /// The array of signed 32-bit integers at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an array of integers or one is out of range.
    pub fn i32_array(&self, key: &str) -> Result<Option<Cow<'_, [i32]>>, Error> {
        if let Some(Value::Array(Array::I32(numbers))) = self.get(key) {
            return Ok(Some(numbers.into()));
        }
        self.integers(key, "an array of whole numbers from -2147483648 to 2147483647")
    }

    /// The array of floating-point numbers at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an array of floating-point numbers.
    pub fn f32_array(&self, key: &str) -> Result<Option<Cow<'_, [f32]>>, Error> {
        self.get_typed(key, "an array of floating-point numbers", |value| {
            if let Value::Array(Array::F32(numbers)) = value {
                Some(numbers.into())
            } else if let Value::Array(Array::F64(numbers)) = value {
                Some(numbers.iter().map(|&number| number as f32).collect())
            } else {
                None
            }
        })
    }

    /// The array of bools at `key`.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an array of bools.
    pub fn bool_array(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        self.get_typed(key, "an array of bools", |value| {
            if let Value::Array(Array::Bool(bools)) = value { Some(bools.as_slice()) } else { None }
        })
    }

    /// The array of strings at `key`, which need not be UTF-8.
    ///
    /// # Errors
    /// [`Problem::Key`] if the value is not an array of strings.
    pub fn str_array(&self, key: &str) -> Result<Option<&Strings>, Error> {
        self.get_typed(key, "an array of strings", |value| {
            if let Value::Array(Array::String(strings)) = value { Some(strings) } else { None }
        })
    }

    fn get_typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(self.type_error(key, expected, value.describe())),
        }
    }

    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<T>, Error> {
        self.get_typed(key, expected, |value| T::try_from(value.as_integer()?).ok())
    }

    fn integers<T: TryFrom<i128> + Clone>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<Cow<'_, [T]>>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_array().and_then(Array::integers) {
            Some(Ok(numbers)) => Ok(Some(Cow::Owned(numbers))),
            Some(Err(number)) => {
                Err(self.type_error(key, expected, format!("{value} with the element {number}")))
            }
            None => Err(self.type_error(key, expected, value.describe())),
        }
    }

    fn type_error(&self, key: &str, expected: &'static str, found: String) -> Error {
        Error::new(&self.file, Problem::Key { key: key.to_owned(), expected, found })
    }
}

/// The indices of `items` in the order of their names; `Err` is a name that occurs twice.
pub(super) fn sort_by_name<T>(items: &[T], name: impl Fn(&T) -> &str) -> Result<Vec<usize>, &str> {
    let mut sorted: Vec<usize> = (0..items.len()).collect();
    sorted.sort_unstable_by(|&a, &b| name(&items[a]).cmp(name(&items[b])));
    match sorted.windows(2).find(|pair| name(&items[pair[0]]) == name(&items[pair[1]])) {
        Some(pair) => Err(name(&items[pair[0]])),
        None => Ok(sorted),
    }
}
