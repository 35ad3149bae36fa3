//! Activation functions.

use super::vector::*;

super::super::activation::activation_kernels!(#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]);
