//! Activation functions.

use super::vector::*;

super::super::activation::activation_kernels!(#[target_feature(enable = "avx2,fma,f16c")]);
