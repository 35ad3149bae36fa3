//! Checkpoint formats: safetensors and PyTorch's zipped pickles, whole or in shards.
//!
//! All input is treated as hostile: after [`Checkpoint::open`], each tensor's bytes are known to
//! lie inside their file and to match its shape. Nothing in a pickle is executed.

mod checkpoint;
mod packed;
pub(super) mod pickle;
mod quantised;
pub(super) mod safetensors;
mod torch;
mod vector;
pub(super) mod zip;

pub(super) use checkpoint::Checkpoint;
pub(super) use packed::Packing;
pub(super) use quantised::whole_numbers;
pub(super) use torch::read as read_torch;
pub use vector::vector;

use std::path::Path;
use std::sync::Arc;

use hal::format::Format;

use super::Error;
use gguf::Bytes;

const MAX_AXES: usize = 8;

/// Format of a tensor's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// A format that the engine can dequantise: floats in a checkpoint, any format in a GGUF file.
    Plain(Format),
    /// 64-bit floats.
    F64,
    /// Bytes, such as packed 4-bit weights and their scales.
    U8,
    /// Any other type, by name; not usable as a weight.
    Other(&'static str),
}

impl Encoding {
    pub(super) fn name(self) -> &'static str {
        match self {
            Encoding::Plain(format) => format.name(),
            Encoding::F64 => "F64",
            Encoding::U8 => "U8",
            Encoding::Other(name) => name,
        }
    }
}

/// The number types of checkpoints: name in a safetensors header, storage class in a pickle,
/// encoding, bytes per value.
const DTYPES: &[(&str, &str, Encoding, u64)] = &[
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

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) encoding: Encoding,
    /// Values along each axis, slowest first, as in PyTorch.
    pub(super) shape: Vec<u64>,
    /// The tensor's values in row-major order.
    pub(super) bytes: Bytes,
    /// Whether the bytes hold the columns of a matrix instead of its rows.
    pub(super) transposed: bool,
    /// The meaning of the bytes of a quantised weight; `shape` is then that of its numbers.
    pub(super) packing: Option<Arc<Packing>>,
}

/// Names and shapes (slowest axis first) of the tensors in a checkpoint file: safetensors if `file`
/// ends in `.safetensors`, otherwise PyTorch's.
///
/// # Errors
/// Errors in the file.
pub fn tensors(file: &str, bytes: Vec<u8>) -> Result<Vec<(String, Vec<u64>)>, Error> {
    let found = checkpoint::parse(Path::new(file), &Bytes::from(bytes))?;
    Ok(found.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect())
}

/// Bytes of a tensor of `shape` with `unit` bytes per value; `None` on overflow.
fn n_bytes(shape: &[u64], unit: u64) -> Option<u64> {
    shape.iter().try_fold(unit, |product, &n| product.checked_mul(n))
}
