//! A layer as ops, generic over the operand. Over tensors the ops are recorded; over shapes a
//! device is asked whether it supports them.
//!
//! Tensors are allocated in `load/`, programs are recorded in `record/`.

pub(crate) mod embed;
pub(crate) mod ffn;
pub(crate) mod layer;
pub(crate) mod mixer;
pub(crate) mod predict;
mod recurrent;
pub(crate) mod scratch;
