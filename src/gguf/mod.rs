//! The GGUF container: named values and named tensors in one memory-mapped file.
//!
//! Here: reading ([`File`]) of GGUF v2 and v3, split files, and PowerInfer's
//! `PWRI` variant of the same layout. Not here: what a key or a tensor means (`model`, `tokenizer`),
//! arithmetic on tensor values (`hal::format`), any device.
//!
//! Everything read is hostile until checked. [`File::open`] proves once that each count, length and
//! offset lies inside the file; after it, nothing in this module can fail on the file's contents
//! except a tensor whose type has no known size.
//!
//! Source: the GGUF specification in the ggml repository; `PWRI` as PowerInfer's converters write it.

mod bytes;
mod error;
mod file;
mod header;
mod magic;
mod map;
mod metadata;
mod split;
mod tensor;
mod types;
mod value;

pub use bytes::Bytes;
pub use error::{Error, Problem};
pub use file::File;
pub use magic::Container;
pub use metadata::Metadata;
pub use tensor::TensorInfo;
pub use types::{Block, TensorType};
pub use value::{Array, Strings, Value};
