//! Converts models: from a Hugging Face folder to GGUF or PowerInfer's container, from one number
//! type to another, from one file to several and back.
//!
//! At most a few megabytes of rows are in memory: checkpoints are mapped, converted row by row on
//! all threads, and streamed into a file that is renamed when it is complete. The converter runs
//! neither Python nor code from a checkpoint.
//!
//! Running models, parsing flags and printing belong to other crates.

mod change;
mod complete;
mod computed;
mod config;
mod dense;
mod error;
mod family;
mod importance;
mod job;
mod mxfp4;
mod out_type;
mod output;
mod plan;
mod predictor;
mod quantize;
mod read;
mod shape;
mod source;
mod split;
mod vocab;
mod write;
mod xielu;

pub use error::Error;
pub use family::{classes, families};
pub use importance::{ImportanceMatrix, InputSums};
pub use job::{Conversion, Summary};
pub use predictor::{Predictors, predictors};
pub use quantize::{
    BeforeAfter, ImportanceFile, KeyOverride, Quantization, QuantizeSummary, Target, TensorTypeRule,
};
pub use shape::{shape_types, shapes};
pub use source::pickle::Problem as PickleProblem;
pub use source::safetensors::Problem as SafetensorsProblem;
pub use source::zip::Problem as ZipProblem;
pub use source::{tensors, vector};
pub use split::{Limit, PartSize, Split, merge, split};
pub use write::Progress;

/// The type of most weights of a converted model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16: the upper half of 32-bit floats.
    Bf16,
    /// 8 bits per value, and one scale per 32 values.
    Q8_0,
    /// BF16 for weights that are BF16 in the checkpoint, otherwise F16.
    Auto,
}
