//! Activation functions.

use super::vector::*;

super::super::activation::activation_kernels!(#[target_feature(enable = "neon")]);
