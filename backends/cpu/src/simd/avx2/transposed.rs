//! Weighted sums of transposed (row per neuron) rows.

super::super::transposed::transposed_kernels!("avx2,fma,f16c");
