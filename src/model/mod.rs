//! What a file means as a model: architecture as data, sizes, and where each weight is. No device here.

pub mod arch;
mod error;
mod hyper;
mod rope;
mod spec;
mod weights;

pub use error::Error;
pub use hyper::Hyper;
pub use rope::RopeTable;
pub use spec::{ArchSpec, PredictorInput};
pub use weights::{Ffn, LayerWeights, Model, ModelOptions, Norms, Predictor};
