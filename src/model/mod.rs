//! What a file means as a model: architecture as data, sizes, and where each weight is. No device here.

pub mod arch;
mod error;
mod hyper;
mod layer;
mod reader;
mod rope;
mod spec;
mod weights;

pub use error::Error;
pub use hyper::Hyper;
pub use layer::{Affine, Ffn, Frame, Kv, Latent, LayerWeights, Part, Predictor};
pub use rope::RopeTable;
pub use spec::{ArchSpec, BlockKind, GlobalLayers, KvKind, Positions, PredictorInput};
pub use weights::{Model, ModelOptions, PositionTable};
