//! Metadata values: thirteen types, with arrays stored compactly.

use std::{borrow::Cow, fmt};

/// Many byte strings in one buffer, so that a vocabulary of 150,000 tokens takes two allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// End of each string in `bytes`, which is the start of the next string.
    ends: Vec<usize>,
}

impl Strings {
    pub(super) fn with_capacity(n: usize) -> Strings {
        Strings { bytes: Vec::new(), ends: Vec::with_capacity(n) }
    }

    /// Appends one string.
    pub fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`, which may be invalid UTF-8; `None` if the index is out of range.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        (index < self.len()).then(|| self.at(index))
    }

    fn at(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.at(index))
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Strings {
        let mut list = Strings::default();
        for string in strings {
            list.push(string.as_ref());
        }
        list
    }
}

/// Ids of the types that are not numbers.
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Number(Number),
    Bool,
    String,
    Array,
}

impl ValueKind {
    pub(super) fn from_id(id: u32) -> Option<ValueKind> {
        match id {
            BOOL => Some(ValueKind::Bool),
            STRING => Some(ValueKind::String),
            ARRAY => Some(ValueKind::Array),
            _ => Number::from_id(id).map(ValueKind::Number),
        }
    }

    /// Minimum size of an array element of this type.
    pub(super) fn min_bytes(self) -> usize {
        match self {
            ValueKind::Number(number) => number.bytes(),
            ValueKind::Bool => 1,
            ValueKind::String => 8,
            ValueKind::Array => 12,
        }
    }
}

macro_rules! numbers {
    (
        integers { $($int:ident($int_rust:ty) = $int_id:literal;)* }
        floats { $($float:ident($float_rust:ty) = $float_id:literal;)* }
    ) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Number { $($int,)* $($float,)* }

        impl Number {
            fn from_id(id: u32) -> Option<Number> {
                match id {
                    $($int_id => Some(Number::$int),)*
                    $($float_id => Some(Number::$float),)*
                    _ => None,
                }
            }

            fn bytes(self) -> usize {
                match self {
                    $(Number::$int => size_of::<$int_rust>(),)*
                    $(Number::$float => size_of::<$float_rust>(),)*
                }
            }

            /// Reads one number from exactly [`ValueKind::min_bytes`] bytes.
            pub(super) fn value(self, bytes: &[u8]) -> Value {
                const EXACT: &str = "the caller took exactly the number's bytes";
                match self {
                    $(Number::$int => Value::$int(<$int_rust>::from_le_bytes(bytes.try_into().expect(EXACT))),)*
                    $(Number::$float => Value::$float(<$float_rust>::from_le_bytes(bytes.try_into().expect(EXACT))),)*
                }
            }

            pub(super) fn array(self, bytes: &[u8]) -> Array {
                match self {
                    $(Number::$int => Array::$int(
                        bytes.as_chunks().0.iter().map(|b| <$int_rust>::from_le_bytes(*b)).collect(),
                    ),)*
                    $(Number::$float => Array::$float(
                        bytes.as_chunks().0.iter().map(|b| <$float_rust>::from_le_bytes(*b)).collect(),
                    ),)*
                }
            }
        }

        /// One metadata value.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Value {
            $(#[doc = concat!("A `", stringify!($int_rust), "`.")] $int($int_rust),)*
            $(#[doc = concat!("A `", stringify!($float_rust), "`.")] $float($float_rust),)*
            /// A bool.
            Bool(bool),
            /// Text, normally UTF-8, which is not checked.
            String(Vec<u8>),
            /// Values of one type.
            Array(Array),
        }

        /// A metadata array: values of one type.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Array {
            $(#[doc = concat!("`", stringify!($int_rust), "` values.")] $int(Vec<$int_rust>),)*
            $(#[doc = concat!("`", stringify!($float_rust), "` values.")] $float(Vec<$float_rust>),)*
            /// Bools.
            Bool(Vec<bool>),
            /// Strings.
            String(Strings),
            /// Arrays, each of its own type and length.
            Array(Vec<Array>),
        }

        impl Value {
            /// The id of this type in a file.
            pub(super) fn type_id(&self) -> u32 {
                match self {
                    $(Value::$int(_) => $int_id,)*
                    $(Value::$float(_) => $float_id,)*
                    Value::Bool(_) => BOOL,
                    Value::String(_) => STRING,
                    Value::Array(_) => ARRAY,
                }
            }

            /// The type's name: `u32`, `string`, `array`...
            pub fn type_name(&self) -> &'static str {
                match self {
                    $(Value::$int(_) => stringify!($int_rust),)*
                    $(Value::$float(_) => stringify!($float_rust),)*
                    Value::Bool(_) => "bool",
                    Value::String(_) => "string",
                    Value::Array(_) => "array",
                }
            }

            /// The value as an integer; `None` if it is not of an integer type.
            pub fn as_integer(&self) -> Option<i128> {
                match self {
                    $(Value::$int(number) => Some((*number).into()),)*
                    $(Value::$float(_) => None,)*
                    Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
                }
            }

            /// Appends the value in the file's encoding, without its type id.
            pub(super) fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Value::$int(number) => out.extend(number.to_le_bytes()),)*
                    $(Value::$float(number) => out.extend(number.to_le_bytes()),)*
                    Value::Bool(flag) => out.push(u8::from(*flag)),
                    Value::String(text) => encode_string(text, out),
                    Value::Array(array) => array.encode(out),
                }
            }
        }

        impl Array {
            /// The id of the elements' type in a file.
            fn type_id(&self) -> u32 {
                match self {
                    $(Array::$int(_) => $int_id,)*
                    $(Array::$float(_) => $float_id,)*
                    Array::Bool(_) => BOOL,
                    Array::String(_) => STRING,
                    Array::Array(_) => ARRAY,
                }
            }

            /// The name of the elements' type.
            pub fn type_name(&self) -> &'static str {
                match self {
                    $(Array::$int(_) => stringify!($int_rust),)*
                    $(Array::$float(_) => stringify!($float_rust),)*
                    Array::Bool(_) => "bool",
                    Array::String(_) => "string",
                    Array::Array(_) => "array",
                }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$int(values) => values.len(),)*
                    $(Array::$float(values) => values.len(),)*
                    Array::Bool(values) => values.len(),
                    Array::String(strings) => strings.len(),
                    Array::Array(arrays) => arrays.len(),
                }
            }

            /// The elements as integers of another width; `Err` is the first element that does not
            /// fit. `None` if they are not of an integer type.
            pub(super) fn integers<T: TryFrom<i128>>(&self) -> Option<Result<Vec<T>, i128>> {
                fn convert_all<S: Copy + Into<i128>, T: TryFrom<i128>>(values: &[S]) -> Result<Vec<T>, i128> {
                    values.iter().map(|&v| T::try_from(v.into()).map_err(|_| v.into())).collect()
                }
                match self {
                    $(Array::$int(values) => Some(convert_all(values)),)*
                    $(Array::$float(_) => None,)*
                    Array::Bool(_) | Array::String(_) | Array::Array(_) => None,
                }
            }

            /// Appends element type, length and elements in the file's encoding.
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend(self.type_id().to_le_bytes());
                out.extend((self.len() as u64).to_le_bytes());
                match self {
                    $(Array::$int(values) => values.iter().for_each(|v| out.extend(v.to_le_bytes())),)*
                    $(Array::$float(values) => values.iter().for_each(|v| out.extend(v.to_le_bytes())),)*
                    Array::Bool(values) => out.extend(values.iter().map(|&flag| u8::from(flag))),
                    Array::String(strings) => strings.iter().for_each(|s| encode_string(s, out)),
                    Array::Array(arrays) => arrays.iter().for_each(|array| array.encode(out)),
                }
            }
        }

        $(impl From<$int_rust> for Value {
            fn from(number: $int_rust) -> Value { Value::$int(number) }
        })*
        $(impl From<$float_rust> for Value {
            fn from(number: $float_rust) -> Value { Value::$float(number) }
        })*
    };
}

numbers! {
    integers {
        U8(u8) = 0;
        I8(i8) = 1;
        U16(u16) = 2;
        I16(i16) = 3;
        U32(u32) = 4;
        I32(i32) = 5;
        U64(u64) = 10;
        I64(i64) = 11;
    }
    floats {
        F32(f32) = 6;
        F64(f64) = 12;
    }
}

impl Array {
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Levels of nested arrays: 1 if the elements are not arrays.
    pub(super) fn depth(&self) -> usize {
        match self.as_arrays() {
            None => 1,
            Some(arrays) => 1 + arrays.iter().map(Array::depth).max().unwrap_or(0),
        }
    }

    fn as_arrays(&self) -> Option<&[Array]> {
        if let Array::Array(arrays) = self { Some(arrays) } else { None }
    }
}

impl Value {
    /// The text of a string, with replacement characters where it is not UTF-8; `None` for other
    /// values.
    pub fn as_str(&self) -> Option<Cow<'_, str>> {
        if let Value::String(text) = self { Some(String::from_utf8_lossy(text)) } else { None }
    }

    /// The array; `None` for other values.
    pub fn as_array(&self) -> Option<&Array> {
        if let Value::Array(array) = self { Some(array) } else { None }
    }

    /// Type and value in a few words, for messages.
    pub(super) fn describe(&self) -> String {
        if let Value::Array(_) = self {
            return format!("{self}");
        }
        let text = self.to_string();
        match text.char_indices().nth(40) {
            Some((end, _)) => format!("the {} `{}...`", self.type_name(), &text[..end]),
            None => format!("the {} `{text}`", self.type_name()),
        }
    }
}

/// Appends the length and the bytes.
pub(super) fn encode_string(text: &[u8], out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

impl From<bool> for Value {
    fn from(flag: bool) -> Value {
        Value::Bool(flag)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text.into_bytes())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

/// Formats the value without its type, or an array as its length and element type.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(number) => number.fmt(f),
            Value::I8(number) => number.fmt(f),
            Value::U16(number) => number.fmt(f),
            Value::I16(number) => number.fmt(f),
            Value::U32(number) => number.fmt(f),
            Value::I32(number) => number.fmt(f),
            Value::U64(number) => number.fmt(f),
            Value::I64(number) => number.fmt(f),
            Value::F32(number) => number.fmt(f),
            Value::F64(number) => number.fmt(f),
            Value::Bool(flag) => flag.fmt(f),
            Value::String(text) => String::from_utf8_lossy(text).fmt(f),
            Value::Array(array) => write!(f, "an array of {} {}", array.len(), array.type_name()),
        }
    }
}
