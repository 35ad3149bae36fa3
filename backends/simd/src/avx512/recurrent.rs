//! Recurrent layers.

use super::vector::*;

super::super::recurrent::recurrent_kernels!(#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]);
