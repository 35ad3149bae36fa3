//! What a file means as a model: architecture as data, sizes, and where each weight is. No device here.

pub mod arch;
mod error;
mod hyper;
mod joined;
mod layer;
mod reader;
mod rope;
mod spec;
mod weights;

pub use error::Error;
pub use hyper::{Experts, Hyper};
pub use joined::{beside, bundle};
pub use layer::{Affine, Ffn, Frame, Kv, Latent, LayerWeights, Part, Predictor, Shared};
pub use rope::RopeTable;
pub use spec::{
    ArchSpec, BlockKind, GlobalLayers, KvKind, Positions, PredictorInput, RouterInput, Routing,
};
pub use weights::{Model, ModelOptions, PositionTable};
