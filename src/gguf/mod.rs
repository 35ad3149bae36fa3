//! The GGUF container: metadata and tensors in one memory-mapped file.
//!
//! This crate reads ([`File`]) and writes ([`Writer`]) GGUF v2 and v3, split files, and
//! PowerInfer's `PWRI` variant of the same layout. It leaves the meaning of keys and tensors to
//! `model` and `text`, arithmetic on tensor values to `hal::format`, and devices to the backends.
//!
//! All input is treated as hostile. [`File::open`] checks once that each count, length and offset
//! lies inside the file. Later errors concern only values of an unexpected type, and tensors whose
//! type has no known size.
//!
//! ```
//! use thermocline_gguf::{Container, File, TensorType, Value, Writer};
//!
//! let mut writer = Writer::new(Container::Gguf);
//! writer.set("general.architecture", Value::from("llama"))?;
//! writer.declare("w", &[4], TensorType::F32)?; // [n_embd]
//! let mut data = writer.in_memory()?;
//! data.write("w", &[0; 16])?;
//!
//! let file = File::from_vec(data.finish()?, "example")?;
//! assert_eq!(file.metadata().str("general.architecture")?, Some("llama"));
//! assert_eq!(file.bytes(file.tensor("w").expect("just written"))?.len(), 16);
//! # Ok::<(), thermocline_gguf::Error>(())
//! ```
//!
//! Source: the GGUF specification in the ggml repository; `PWRI` as PowerInfer's converters write
//! it.

mod bytes;
mod chunked;
mod error;
mod facts;
pub mod fault;
mod file;
mod header;
mod magic;
mod map;
mod metadata;
mod output;
mod part_file;
mod split;
mod sum;
mod tensor;
mod types;
mod value;
mod write;

pub use bytes::Bytes;
pub use error::{Error, Problem};
pub use facts::FileFacts;
pub use file::File;
pub use magic::{Container, known_kind};
pub use metadata::Metadata;
pub use output::{folder_of_others, is_same_file};
pub use own_file::free_bytes;
pub use part_file::{CompleteFile, PartFile, drop_leftovers, writer_of};
pub use split::parts_by_name;
pub use sum::Hash;
pub use tensor::TensorInfo;
pub use types::{Block, TensorType};
pub use value::{Array, Strings, Value};
pub use write::{DataWriter, Writer};
