//! Reads a GGUF file as a [`Model`]: the architecture as data, the sizes, and the role of each
//! tensor. This crate does not use devices.

mod altup;
pub mod arch;
mod attention;
mod attention_reader;
pub mod chooser;
mod error;
mod experts;
mod ffn_reader;
mod heads;
mod hyper;
mod join;
mod layer;
mod layers;
mod linear;
mod lora;
mod mixer;
mod per_layer;
mod rank;
mod reader;
mod rope;
mod rope_scaling;
mod rwkv6;
mod rwkv7;
mod spec;
mod weights;
mod xielu;

pub use altup::{AltUp, AltUpConstants, Laurel};
pub use attention::{
    Attention, AttentionSizes, HeadNorm, Kv, Latent, LowRank, OutputGate, Temperature,
};
pub use error::Error;
pub use experts::Experts;
pub use hyper::{Hyper, Scales};
pub use join::{bundle, stacked_to_columns};
pub use layer::{
    Affine, Ffn, FfnMatrix, Frame, InputScale, LayerWeights, MapOperand, Predictor, SharedExpert,
    SharedNorms,
};
pub use layers::LayerReader;
pub use linear::Linear;
pub use lora::{Adapter, AdapterError, AdapterMerge};
pub use mixer::{
    GatedDelta, GatedDeltaSizes, Mamba1, Mamba1Sizes, Mamba2, Mamba2Sizes, Mixer, ScanNorms,
    ShortConv,
};
pub use per_layer::{PerLayer, PerLayerEmbedding};
pub use rank::{RankHead, RankState};
pub use rope::RopeTable;
pub use rope_scaling::{RopeOverrides, RopeScaling};
pub use rwkv6::{ChannelMix, GroupNorm, Mixed, Rwkv6};
pub use rwkv7::{Gate, Rwkv7, Shifted};
pub use spec::{
    Alibi, ArchSpec, BlockKind, Clamp, DenseBeside, EmbeddingNorm, Factor, GateKind, GaussianCut,
    GlobalLayers, KvKind, LocalRope, NormSpan, Positions, PredictorInput, QkNorm, RankActivation,
    RotaryLayers, RouterInput, Routing, RoutingKeys, ScaleKeys, ScaleRules, ScoreScale,
    TemperatureKeys, YarnLog,
};
pub use weights::{Model, ModelOptions, PositionTable};
