//! Attention over the KV cache.

use super::vector::*;

super::super::attention::attention_kernels!(#[target_feature(enable = "avx2,fma,f16c")]);
