//! A layer as ops, generic over operands: over tensors they are recorded, over shapes a device is
//! asked whether it supports them.
//!
//! Not here: memory and programs of a device.

pub(crate) mod embed;
pub(crate) mod ffn;
pub(crate) mod layer;
pub(crate) mod mixer;
pub(crate) mod predict;
mod recurrent;
pub(crate) mod scratch;
