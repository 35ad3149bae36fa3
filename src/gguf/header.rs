//! Reads the header of one file: magic, metadata, tensor table. Memory is allocated for a count
//! only after checking that the file has enough bytes for it.

use std::sync::Arc;

use super::{
    Array, Container, Metadata, Problem, Strings, TensorInfo, TensorType, Value, magic,
    tensor::{self, MAX_DIMENSIONS},
    value::ValueKind,
};

/// Longest key or tensor name, in bytes: the specification's limit for keys.
pub(super) const MAX_NAME: u64 = 65_535;
/// Deepest nesting of arrays; files in use have one level.
pub(super) const MAX_DEPTH: usize = 4;
/// Longest header, in bytes: ten times the largest known one. A sparse file could claim terabytes.
pub(super) const MAX_HEADER: usize = 256 << 20;
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// Minimum bytes of a metadata entry: a key's length, its value's type and the smallest value.
const MIN_ENTRY: usize = 8 + 4 + 1;
/// Minimum bytes of a tensor entry: a name's length, the number of dimensions, one dimension, type
/// and offset.
const MIN_TENSOR: usize = 8 + 4 + 8 + 4 + 8;

/// The content of a file before the tensor data.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) container: Container,
    pub(super) version: u32,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
}

impl Header {
    /// Reads and checks the header of the file `name` that holds `bytes`.
    pub(super) fn parse(name: &Arc<str>, bytes: &[u8]) -> Result<Header, Problem> {
        if bytes.is_empty() {
            return Err(Problem::Empty);
        }
        let Some(container) = Container::detect(bytes) else {
            return Err(Problem::Magic { found: magic::describe(bytes) });
        };
        let mut cursor = Cursor::new(bytes);
        let version = cursor.u32()?;
        if version != 0 && version.trailing_zeros() >= 16 {
            return Err(Problem::BigEndian);
        }
        if !(2..=3).contains(&version) {
            return Err(Problem::Version { found: version });
        }
        let n_tensors = cursor.count("the tensor table", MIN_TENSOR)?;
        let n_entries = cursor.count("the metadata", MIN_ENTRY)?;
        let metadata = Metadata::new(Arc::clone(name), read_entries(&mut cursor, n_entries)?)?;
        let mut tensors = read_tensors(&mut cursor, n_tensors, container)?;
        let alignment = alignment(&metadata)?;
        let data_start = (cursor.at as u128).next_multiple_of(u128::from(alignment));
        tensor::locate_in_file(&mut tensors, data_start, alignment, bytes.len() as u64)?;
        Ok(Header { container, version, metadata, tensors })
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, Problem> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(value) => check_alignment(value),
    }
}

pub(super) fn check_alignment(value: &Value) -> Result<u64, Problem> {
    let Some(found) = value.as_integer().and_then(|number| u64::try_from(number).ok()) else {
        return Err(Problem::Key {
            key: ALIGNMENT_KEY.to_owned(),
            expected: "a whole number that is not negative",
            found: value.describe(),
        });
    };
    if !found.is_power_of_two() || found > 1 << 31 {
        return Err(Problem::Alignment { found });
    }
    Ok(found)
}

fn read_entries(cursor: &mut Cursor<'_>, n: usize) -> Result<Vec<(String, Value)>, Problem> {
    let mut entries = Vec::new();
    for number in 0..n {
        let key = cursor.name(format!("key number {number}"))?;
        cursor.place = format!("key `{key}`");
        let kind = cursor.kind()?;
        entries.push((key, cursor.value(kind)?));
    }
    Ok(entries)
}

fn read_tensors(
    cursor: &mut Cursor<'_>,
    n: usize,
    container: Container,
) -> Result<Vec<TensorInfo>, Problem> {
    let mut tensors = Vec::new();
    for number in 0..n {
        let name = cursor.name(format!("tensor number {number}"))?;
        cursor.place = format!("tensor `{name}`");
        let n_dimensions = cursor.u32()?;
        if n_dimensions == 0 || n_dimensions as usize > MAX_DIMENSIONS {
            return Err(Problem::Dimensions { tensor: name, found: n_dimensions.into() });
        }
        let shape = (0..n_dimensions).map(|_| cursor.u64()).collect::<Result<Vec<u64>, _>>()?;
        let ty = TensorType::from_id(cursor.u32()?, container);
        let offset = cursor.u64()?;
        tensors.push(TensorInfo::new(name, shape, ty, offset)?);
    }
    Ok(tensors)
}

/// Reads the header from start to end, and returns an error instead of reading past the end of the
/// file.
struct Cursor<'a> {
    /// The file, or its first [`MAX_HEADER`] bytes.
    bytes: &'a [u8],
    at: usize,
    file_len: usize,
    /// Description of the current item, for error messages.
    place: String,
}

impl<'a> Cursor<'a> {
    /// Starts after the magic.
    fn new(file: &'a [u8]) -> Cursor<'a> {
        let bytes = &file[..file.len().min(MAX_HEADER)];
        Cursor { bytes, at: 4, file_len: file.len(), place: "the version".to_owned() }
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn too_long(&self) -> Problem {
        Problem::HeaderTooLong { place: self.place.clone(), limit: MAX_HEADER as u64 }
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8], Problem> {
        if n > self.remaining() as u64 {
            let expected = n.saturating_add(self.at as u64);
            if expected <= self.file_len as u64 {
                return Err(self.too_long());
            }
            let (place, found) = (self.place.clone(), self.file_len as u64);
            return Err(Problem::Truncated { place, expected, found });
        }
        let bytes = &self.bytes[self.at..self.at + n as usize];
        self.at += n as usize;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("the slice has 4 bytes")))
    }

    fn u64(&mut self) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("the slice has 8 bytes")))
    }

    /// Reads a number of items of at least `min_bytes` each, and checks that the file has enough
    /// bytes left for them.
    fn count(&mut self, place: &str, min_bytes: usize) -> Result<usize, Problem> {
        self.place = place.to_owned();
        self.elements(min_bytes)
    }

    fn elements(&mut self, min_bytes: usize) -> Result<usize, Problem> {
        let count = self.u64()?;
        let expected = u128::from(count) * min_bytes as u128;
        if expected > self.remaining() as u128 {
            let left_in_file = self.file_len - self.at;
            if expected <= left_in_file as u128 {
                return Err(self.too_long());
            }
            let (place, found) = (self.place.clone(), left_in_file as u64);
            return Err(Problem::Count { place, count, expected, found });
        }
        Ok(count as usize) // at most `remaining`
    }

    fn string(&mut self) -> Result<&'a [u8], Problem> {
        let len = self.u64()?;
        self.take(len)
    }

    fn name(&mut self, place: String) -> Result<String, Problem> {
        self.place = place;
        let found = self.u64()?;
        if found > MAX_NAME {
            return Err(Problem::NameLength { place: self.place.clone(), found, limit: MAX_NAME });
        }
        let bytes = self.take(found)?;
        // Copied before it is checked: another process may change the file in between.
        String::from_utf8(bytes.to_vec()).map_err(|wrong| Problem::NameText {
            place: self.place.clone(),
            found: String::from_utf8_lossy(wrong.as_bytes()).into_owned(),
        })
    }

    fn kind(&mut self) -> Result<ValueKind, Problem> {
        let found = self.u32()?;
        ValueKind::from_id(found)
            .ok_or_else(|| Problem::ValueType { place: self.place.clone(), found })
    }

    fn value(&mut self, kind: ValueKind) -> Result<Value, Problem> {
        Ok(match kind {
            ValueKind::Number(number) => number.value(self.take(kind.min_bytes() as u64)?),
            ValueKind::Bool => Value::Bool(self.read_bool()?),
            ValueKind::String => Value::String(self.string()?.to_owned()),
            ValueKind::Array => Value::Array(self.array(1)?),
        })
    }

    fn read_bool(&mut self) -> Result<bool, Problem> {
        match self.take(1)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(Problem::Bool { place: self.place.clone(), found }),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Array, Problem> {
        if depth > MAX_DEPTH {
            return Err(Problem::Depth { place: self.place.clone(), limit: MAX_DEPTH });
        }
        let kind = self.kind()?;
        let n = self.elements(kind.min_bytes())?;
        Ok(match kind {
            ValueKind::Number(number) => number.array(self.take((n * kind.min_bytes()) as u64)?),
            ValueKind::Bool => {
                Array::Bool((0..n).map(|_| self.read_bool()).collect::<Result<Vec<bool>, _>>()?)
            }
            ValueKind::String => {
                let mut strings = Strings::with_capacity(n);
                for _ in 0..n {
                    strings.push(self.string()?);
                }
                Array::String(strings)
            }
            ValueKind::Array => {
                let mut arrays = Vec::new();
                for _ in 0..n {
                    arrays.push(self.array(depth + 1)?);
                }
                Array::Array(arrays)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Array, Container, File, Strings, TensorType, Value, Writer};

    fn small_file() -> Vec<u8> {
        let mut strings = Strings::default();
        [&b"a"[..], b"", b"\xff"].iter().for_each(|string| strings.push(string));
        let nested = Array::Array(vec![Array::U8(vec![1, 2]), Array::Bool(vec![true])]);
        let mut writer = Writer::new(Container::Gguf);
        writer.set("u", 7u32).unwrap();
        writer.set("t", "text").unwrap();
        writer.set("s", Array::String(strings)).unwrap();
        writer.set("n", nested).unwrap();
        writer.declare("w", &[32, 2], TensorType::I8).unwrap();
        let mut data = writer.in_memory().unwrap();
        data.write("w", &[3; 64]).unwrap();
        data.finish().unwrap()
    }

    /// Reads everything that `bytes` contain, if they are a file.
    fn reads(bytes: Vec<u8>) -> bool {
        let Ok(file) = File::from_vec(bytes, "x") else { return false };
        let shown: usize = file.metadata().iter().map(|(key, value)| shown(key, value)).sum();
        // The bytes of a tensor of unknown type have no known length.
        let read = file.tensors().iter().filter_map(|tensor| file.bytes(tensor).ok());
        shown > 0 && read.flatten().map(|&byte| u64::from(byte)).sum::<u64>() < u64::MAX
    }

    fn shown(key: &str, value: &Value) -> usize {
        format!("{key} {value:?} {:?}", value.as_str()).len()
    }

    #[test]
    fn damaged_headers_are_refused_or_read_within_their_bytes() {
        let bytes = small_file();
        assert!(reads(bytes.clone()));
        // Miri, which is a thousand times as slow, reads some of them.
        let (step, values): (usize, &[u8]) =
            if cfg!(miri) { (7, &[0xff]) } else { (1, &[0, 1, 0x7f, 0xff]) };
        for n in (0..bytes.len()).step_by(step) {
            assert!(!reads(bytes[..n].to_vec()), "{n} bytes");
        }
        let mut refused = 0;
        let mut n = 0;
        for at in (0..bytes.len() - 64).step_by(step) {
            for &new in values {
                let mut damaged = bytes.clone();
                damaged[at] = new;
                refused += usize::from(!reads(damaged));
                n += 1;
            }
        }
        assert!(refused > n / 4, "{refused} of {n} were refused");
    }
}
