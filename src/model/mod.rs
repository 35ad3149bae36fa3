//! Reads a GGUF file as a [`Model`]: the architecture as data, the sizes, and the role of each
//! tensor. This crate does not use devices.

mod altup;
pub mod arch;
mod attention;
mod attention_reader;
pub mod chooser;
mod chunk_experts;
mod error;
mod experts;
mod ffn_reader;
mod hash_routing;
mod heads;
mod hyper;
mod hyper_connections;
mod indexer;
mod join;
mod layer;
mod layer_scales;
mod layers;
mod linear;
mod lora;
mod low_rank_hyper;
mod mixer;
mod ngrams;
mod per_layer;
mod pooled_keys;
mod rank;
mod reader;
mod residual_mix;
mod rope;
mod rope_scaling;
mod rwkv6;
mod rwkv7;
mod scale_rules;
mod single_kv;
mod situ;
mod spec;
mod stacks;
mod weights;
mod xielu;

pub use altup::{AltUp, AltUpConstants, Laurel};
pub use attention::{
    Attention, AttentionSizes, HeadNorm, Kv, Latent, LowRank, OutputGate, Temperature,
};
pub use chunk_experts::ChunkExperts;
pub use error::Error;
pub use experts::Experts;
pub use hyper::{Hyper, Scales};
pub use hyper_connections::{HyperConnections, StreamEnd, StreamWeights};
pub use indexer::{BlockKeys, Indexer, KeyPool, Sparse};
pub use join::{bundle, stacked_to_columns};
pub use layer::{
    Affine, Ffn, FfnMatrix, Frame, InputScale, LatentExperts, LayerWeights, MapOperand, Predictor,
    SharedExpert, SharedNorms,
};
pub use layers::LayerReader;
pub use linear::Linear;
pub use lora::{Adapter, AdapterError, AdapterMerge};
pub use low_rank_hyper::{LowRankHyper, StreamMix};
pub use mixer::{
    GatedDelta, GatedDeltaSizes, Mamba1, Mamba1Sizes, Mamba2, Mamba2Sizes, Mixer, ScanNorms,
    ShortConv,
};
pub use ngrams::{NgramHead, NgramLayer, Ngrams};
pub use per_layer::{PerLayer, PerLayerEmbedding};
pub use pooled_keys::PooledKeys;
pub use rank::{RankHead, RankState};
pub use residual_mix::{MixWeights, ResidualMix};
pub use rope::RopeTable;
pub use rope_scaling::{RopeOverrides, RopeScaling};
pub use rwkv6::{ChannelMix, GroupNorm, Mixed, Rwkv6};
pub use rwkv7::{Gate, Rwkv7, Shifted};
pub use scale_rules::{Factor, ScaleKeys, ScaleRules};
pub use single_kv::{BlockIndexer, CompressedBlocks, Compressor, SingleKv};
pub use spec::{
    Alibi, ArchSpec, BlockKind, Clamp, DenseBeside, EmbeddingNorm, GateKind, GaussianCut,
    GlobalLayers, KvKind, LocalRope, NormSpan, Positions, PredictorInput, QkNorm, RankActivation,
    RotaryLayers, RouterInput, Routing, RoutingKeys, ScoreScale, StreamEndKind, TemperatureKeys,
    YarnLog,
};
pub use stacks::{StackRun, StackState};
pub use weights::{Model, ModelOptions, PositionTable};
