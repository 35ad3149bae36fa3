//! A layer as ops, generic over the operand: over tensors to record the ops, over shapes to ask a
//! device whether it supports them.
//!
//! Tensors are allocated in `load/`, programs are recorded in `record/`.

mod altup;
pub(crate) mod embed;
pub(crate) mod ffn;
pub(crate) mod layer;
pub(crate) mod memory;
pub(crate) mod mixer;
pub(crate) mod predict;
mod recurrent;
mod rwkv6;
mod rwkv7;
pub(crate) mod scratch;
