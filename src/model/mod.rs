//! Reads a GGUF file as a model: architecture as data, sizes, and the location of each weight. No
//! devices here.

pub mod arch;
pub mod chooser;
mod error;
mod hyper;
mod joined;
mod layer;
mod layers;
mod mixer;
mod reader;
mod rope;
mod spec;
mod weights;

pub use error::Error;
pub use hyper::{Experts, Hyper};
pub use joined::{beside, bundle};
pub use layer::{Affine, Ffn, Frame, LayerWeights, Part, Predictor, Shared};
pub use layers::LayerReader;
pub use mixer::{
    Attention, AttentionSizes, GatedDelta, GatedDeltaSizes, Kv, Latent, Mixer, ShortConv,
};
pub use rope::RopeTable;
pub use spec::{
    ArchSpec, BlockKind, GlobalLayers, KvKind, Positions, PredictorInput, RouterInput, Routing,
};
pub use weights::{Model, ModelOptions, PositionTable};
