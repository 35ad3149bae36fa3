//! Reads a file that `torch.save` wrote for a single tensor with one axis.

use std::path::Path;

use super::{Encoding, torch};
use crate::Error;
use gguf::Bytes;

/// The numbers in the PyTorch file `path` with content `bytes`.
///
/// # Errors
/// Errors in the file; more than one tensor or more than one axis.
pub fn vector(path: &Path, bytes: &Bytes) -> Result<Vec<f64>, Error> {
    let name = || path.display().to_string();
    let tensors = torch::read(path, bytes)?;
    let [tensor] = &tensors[..] else {
        let reason = format!("the file has {} tensors, expected 1", tensors.len());
        let reason = std::io::Error::other(reason);
        return Err(Error::Io { file: name(), action: "read", reason });
    };
    if tensor.shape.len() != 1 {
        let (expected, found) = ("one axis".to_owned(), tensor.shape.clone());
        return Err(Error::Shape { tensor: name(), expected, found });
    }
    let bytes = &tensor.bytes[..];
    let values = match tensor.encoding {
        Encoding::Plain(format) => {
            let n = bytes.len() / format.block_bytes() * format.block_values();
            let mut values = vec![0.0f32; n];
            format.dequantize(bytes, &mut values);
            values.into_iter().map(f64::from).collect()
        }
        Encoding::F64 => numbers(bytes, f64::from_le_bytes),
        Encoding::U8 => numbers(bytes, |b: [u8; 1]| f64::from(b[0])),
        Encoding::Other("BOOL") => numbers(bytes, |b: [u8; 1]| f64::from(u8::from(b[0] != 0))),
        Encoding::Other("I8") => numbers(bytes, |b| f64::from(i8::from_le_bytes(b))),
        Encoding::Other("I16") => numbers(bytes, |b| f64::from(i16::from_le_bytes(b))),
        Encoding::Other("I32") => numbers(bytes, |b| f64::from(i32::from_le_bytes(b))),
        Encoding::Other("I64") => numbers(bytes, |b| i64::from_le_bytes(b) as f64),
        Encoding::Other(_) => {
            let (found, expected) = (tensor.encoding.name().to_owned(), "numbers");
            return Err(Error::Encoding { tensor: name(), found, expected });
        }
    };
    Ok(values)
}

fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|&bytes| number(bytes)).collect()
}
