//! Attention over the KV cache.

use super::vector::*;

super::super::attention::attention_kernels!(#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]);
