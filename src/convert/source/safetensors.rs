//! The safetensors header: a length, a JSON object of tensors, their bytes.
//!
//! Source: the format's description in the safetensors repository.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{DTYPES, Encoding, MAX_AXES, Tensor, n_bytes};
use gguf::Bytes;

/// Longest header in bytes, as limited by the format.
const MAX_HEADER: u64 = 100_000_000;

/// A problem with a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file is shorter than its header.
    #[error("its header needs {expected} bytes, but the file has {found}")]
    Truncated {
        /// Size of the header.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// A file of another kind.
    #[error("this is {what}")]
    NotSafetensors {
        /// Kind of the file, and what to do.
        what: &'static str,
    },
    /// A header that is too long.
    #[error("its header claims {found} bytes, expected at most {MAX_HEADER}")]
    HeaderLength {
        /// The length in the file.
        found: u64,
    },
    /// A header that is not a JSON object of tensors.
    #[error("its header cannot be read: {reason}")]
    Header {
        /// The error and its position.
        reason: serde_json::Error,
    },
    /// A tensor that occurs twice.
    #[error("tensor `{tensor}` occurs twice")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// An unknown number type.
    #[error("tensor `{tensor}` has the unknown type `{found}`")]
    Kind {
        /// The tensor.
        tensor: String,
        /// The number type in the header.
        found: String,
    },
    /// A tensor with too many axes.
    #[error("tensor `{tensor}` has {found} axes, expected at most {MAX_AXES}")]
    Axes {
        /// The tensor.
        tensor: String,
        /// Number of axes of the tensor.
        found: usize,
    },
    /// Offsets that do not match the shape.
    #[error(
        "tensor `{tensor}` has bytes {start} to {end}, but its shape and type need {}",
        .expected.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string())
    )]
    Size {
        /// The tensor.
        tensor: String,
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
        /// Bytes by shape and type; `None` on overflow.
        expected: Option<u64>,
    },
    /// A tensor that extends past the end of the file.
    #[error("tensor `{tensor}` ends at byte {end} of the data, which has {found}")]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// Byte after its last.
        end: u64,
        /// Bytes of data in the file.
        found: u64,
    },
    /// A gap between tensors, which the format forbids.
    #[error("bytes {start} to {end} of the data belong to no tensor")]
    Hole {
        /// First byte.
        start: u64,
        /// Byte after the last.
        end: u64,
    },
    /// Two overlapping tensors.
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap {
        /// The tensor with the lower start offset.
        first: String,
        /// The other tensor.
        second: String,
    },
}

/// The header's entries in file order, including duplicate names.
struct Entries(Vec<(String, Entry)>);

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

pub(crate) fn read(bytes: &Bytes) -> Result<Vec<Tensor>, Problem> {
    let found = bytes.len() as u64;
    if let Some(what) = gguf::known_kind(bytes) {
        return Err(Problem::NotSafetensors { what });
    }
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(Problem::Truncated { expected: 8, found });
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(Problem::HeaderLength { found: length });
    }
    let Some(header) = rest.get(..length as usize) else {
        return Err(Problem::Truncated { expected: 8 + length, found });
    };
    let Entries(entries) =
        serde_json::from_slice(header).map_err(|reason| Problem::Header { reason })?;
    let start = 8 + length as usize;
    let data = bytes.slice(start..bytes.len());
    let mut seen = HashSet::new();
    let mut tensors = Vec::new();
    let mut ranges: Vec<(Range<u64>, usize)> = Vec::new();
    let kinds: HashMap<_, _> =
        DTYPES.iter().map(|(name, _, kind, unit)| (*name, (*kind, *unit))).collect();
    for (name, entry) in entries {
        let range = check(&name, &entry, &kinds, data.len() as u64)?;
        if !seen.insert(name.clone()) {
            return Err(Problem::Duplicate { tensor: name });
        }
        let bytes = data.slice(range.start as usize..range.end as usize);
        let encoding = kinds[entry.dtype.as_str()].0;
        if !range.is_empty() {
            ranges.push((range, tensors.len()));
        }
        let (shape, transposed, packing) = (entry.shape, false, None);
        tensors.push(Tensor { name, encoding, shape, bytes, transposed, packing });
    }
    ranges.sort_unstable_by_key(|(range, _)| range.start);
    let mut end = 0;
    for (at, (range, n)) in ranges.iter().enumerate() {
        if range.start < end {
            let name = |n: usize| tensors[n].name.clone();
            return Err(Problem::Overlap { first: name(ranges[at - 1].1), second: name(*n) });
        }
        if range.start > end {
            return Err(Problem::Hole { start: end, end: range.start });
        }
        end = range.end;
    }
    let n_bytes = data.len() as u64;
    if end < n_bytes { Err(Problem::Hole { start: end, end: n_bytes }) } else { Ok(tensors) }
}

/// The byte range of an entry, relative to the data. Returns an error if the range exceeds the data
/// or does not match the shape.
fn check(
    name: &str,
    entry: &Entry,
    kinds: &HashMap<&str, (Encoding, u64)>,
    data: u64,
) -> Result<Range<u64>, Problem> {
    let tensor = name.to_owned();
    let Some(&(_, unit)) = kinds.get(entry.dtype.as_str()) else {
        return Err(Problem::Kind { tensor, found: entry.dtype.clone() });
    };
    if entry.shape.len() > MAX_AXES {
        return Err(Problem::Axes { tensor, found: entry.shape.len() });
    }
    let [start, end] = entry.data_offsets;
    let expected = n_bytes(&entry.shape, unit);
    if expected.is_none() || end.checked_sub(start) != expected {
        return Err(Problem::Size { tensor, start, end, expected });
    }
    if end > data {
        return Err(Problem::BeyondEnd { tensor, end, found: data });
    }
    Ok(start..end)
}
