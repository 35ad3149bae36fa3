//! A layer as ops, generic over the operand: over tensors to record the ops, over shapes to ask a
//! device whether it supports them.
//!
//! Tensors are allocated in `load/`, programs are recorded in `record/`.

mod altup;
mod chunk_experts;
mod compressed;
pub(crate) mod embed;
pub(crate) mod ffn;
mod hyper_connections;
mod indexer;
pub(crate) mod latent;
pub(crate) mod layer;
pub(crate) mod low_rank_hyper;
pub(crate) mod memory;
pub(crate) mod mixer;
mod ngrams;
mod per_layer;
pub(crate) mod predict;
mod recurrent;
mod residual_mix;
pub(crate) mod route;
mod rwkv6;
mod rwkv7;
pub(crate) mod scratch;
mod stacks;
