//! Reads a GGUF file as a [`Model`]: the architecture as data, the sizes, and the role of each
//! tensor. This crate does not use devices.

pub mod arch;
pub mod chooser;
mod error;
mod heads;
mod hyper;
mod join;
mod layer;
mod layers;
mod lora;
mod mixer;
mod per_layer;
mod rank;
mod reader;
mod rope;
mod rope_scaling;
mod spec;
mod weights;

pub use error::Error;
pub use hyper::{Experts, Hyper, Scales};
pub use join::{bundle, stacked_to_columns};
pub use layer::{
    Affine, Ffn, FfnMatrix, Frame, LayerWeights, MapOperand, Predictor, SharedExpert, SharedNorms,
};
pub use layers::LayerReader;
pub use lora::{Adapter, AdapterError, AdapterMerge};
pub use mixer::{
    Attention, AttentionSizes, GatedDelta, GatedDeltaSizes, Kv, Latent, Mamba2, Mamba2Sizes, Mixer,
    ShortConv,
};
pub use per_layer::{PerLayer, PerLayerEmbedding};
pub use rank::RankHead;
pub use rope::RopeTable;
pub use rope_scaling::{RopeOverrides, RopeScaling};
pub use spec::{
    ArchSpec, BlockKind, GlobalLayers, KvKind, Positions, PredictorInput, RouterInput, Routing,
};
pub use weights::{Model, ModelOptions, PositionTable};
