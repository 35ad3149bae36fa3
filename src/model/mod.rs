//! Reads a GGUF file as a [`Model`]: the architecture as data, the sizes, and the role of each
//! tensor. This crate does not use devices.

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
mod lora;
mod mixer;
mod per_layer;
mod rank;
mod reader;
mod rope;
mod rope_scaling;
mod rwkv7;
mod spec;
mod weights;
mod xielu;

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
pub use lora::{Adapter, AdapterError, AdapterMerge};
pub use mixer::{
    GatedDelta, GatedDeltaSizes, Mamba1, Mamba1Sizes, Mamba2, Mamba2Sizes, Mixer, ScanNorms,
    ShortConv,
};
pub use per_layer::{PerLayer, PerLayerEmbedding};
pub use rank::RankHead;
pub use rope::RopeTable;
pub use rope_scaling::{RopeOverrides, RopeScaling};
pub use rwkv7::{Gate, Rwkv7, Shifted};
pub use spec::{
    Alibi, ArchSpec, BlockKind, Clamp, DenseBeside, EmbeddingNorm, Factor, GateKind, GlobalLayers,
    KvKind, LocalRope, NormSpan, Positions, PredictorInput, QkNorm, RotaryLayers, RouterInput,
    Routing, RoutingKeys, ScaleKeys, ScaleRules, ScoreScale, TemperatureKeys, YarnLog,
};
pub use weights::{Model, ModelOptions, PositionTable};
