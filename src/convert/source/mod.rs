//! Checkpoints as people share them: safetensors and PyTorch's zipped pickles, whole or in shards.
//!
//! Everything is hostile until checked: after [`Checkpoint::open`], each tensor's bytes are known to lie inside their
//! file and to be as many as its shape needs. Nothing in a pickle is run.

mod checkpoint;
pub(super) mod pickle;
pub(super) mod safetensors;
mod torch;
mod vector;
pub(super) mod zip;

pub(super) use checkpoint::Checkpoint;
pub(super) use torch::read as read_torch;
pub use vector::vector;

use std::path::Path;

use hal::format::Format;

use super::Error;
use crate::gguf::Bytes;

/// Most axes of a tensor.
const MAX_AXES: usize = 8;

/// How a tensor's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// A format that the engine knows: floats in a checkpoint, anything in a GGUF file.
    Plain(Format),
    /// 64-bit floats.
    F64,
    /// Bytes that are no numbers by themselves (packed 4-bit weights and their scales).
    U8,
    /// Anything else, by its name: never a weight.
    Other(&'static str),
}

impl Encoding {
    /// The name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Encoding::Plain(format) => format.name(),
            Encoding::F64 => "F64",
            Encoding::U8 => "U8",
            Encoding::Other(name) => name,
        }
    }
}

/// The kinds of numbers that checkpoints hold: name in a safetensors header, storage class in a pickle, bytes.
const KINDS: &[(&str, &str, Encoding, u64)] = &[
    ("F32", "FloatStorage", Encoding::Plain(Format::F32), 4),
    ("F16", "HalfStorage", Encoding::Plain(Format::F16), 2),
    ("BF16", "BFloat16Storage", Encoding::Plain(Format::BF16), 2),
    ("F64", "DoubleStorage", Encoding::F64, 8),
    ("U8", "ByteStorage", Encoding::U8, 1),
    ("I8", "CharStorage", Encoding::Other("I8"), 1),
    ("I16", "ShortStorage", Encoding::Other("I16"), 2),
    ("I32", "IntStorage", Encoding::Other("I32"), 4),
    ("I64", "LongStorage", Encoding::Other("I64"), 8),
    ("BOOL", "BoolStorage", Encoding::Other("BOOL"), 1),
    ("U16", "", Encoding::Other("U16"), 2),
    ("U32", "", Encoding::Other("U32"), 4),
    ("U64", "", Encoding::Other("U64"), 8),
    ("F8_E4M3", "", Encoding::Other("F8_E4M3"), 1),
    ("F8_E5M2", "", Encoding::Other("F8_E5M2"), 1),
    ("F8_E8M0", "", Encoding::Other("F8_E8M0"), 1),
];

/// One tensor of a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) encoding: Encoding,
    /// Values along each axis, slowest first, as PyTorch has it.
    pub(super) shape: Vec<u64>,
    /// Its values, rows first.
    pub(super) bytes: Bytes,
    /// The bytes hold the columns of a matrix, not its rows.
    pub(super) transposed: bool,
}

/// Names and shapes (slowest axis first) of the tensors in the checkpoint file that `bytes` are: safetensors by the name
/// `file`, PyTorch's otherwise.
///
/// # Errors
/// Anything wrong in the file.
pub fn tensors(file: &str, bytes: Vec<u8>) -> Result<Vec<(String, Vec<u64>)>, Error> {
    let found = checkpoint::parse(Path::new(file), &Bytes::from(bytes))?;
    Ok(found.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect())
}

/// Bytes of a tensor of `shape`, if 64 bits can count them.
fn n_bytes(shape: &[u64], each: u64) -> Option<u64> {
    shape.iter().try_fold(each, |product, &n| product.checked_mul(n))
}
