//! Recurrent layers.

use super::vector::*;

super::super::recurrent::recurrent_kernels!(#[target_feature(enable = "neon")]);
