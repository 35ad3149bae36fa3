//! Reads a GGUF file as a model: architecture as data, sizes, and the location of each weight. No
//! devices here.

pub mod arch;
pub mod chooser;
mod error;
mod heads;
mod hyper;
mod joined;
mod layer;
mod layers;
mod mixer;
mod per_layer;
mod reader;
mod rope;
mod spec;
mod weights;

pub use error::Error;
pub use hyper::{Experts, Hyper, Scales};
pub use joined::{beside, bundle};
pub use layer::{
    Affine, Ffn, FfnMatrix, Frame, LayerWeights, MapOperand, Predictor, Shared, SharedNorms,
};
pub use layers::LayerReader;
pub use mixer::{
    Attention, AttentionSizes, GatedDelta, GatedDeltaSizes, Kv, Latent, Mamba2, Mamba2Sizes, Mixer,
    ShortConv,
};
pub use per_layer::{PerLayer, PerLayerEmbedding};
pub use rope::RopeTable;
pub use spec::{
    ArchSpec, BlockKind, GlobalLayers, KvKind, Positions, PredictorInput, RouterInput, Routing,
};
pub use weights::{Model, ModelOptions, PositionTable};
