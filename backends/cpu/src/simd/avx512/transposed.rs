//! Weighted sums of transposed (row per neuron) rows.

super::super::transposed::transposed_kernels!("avx512bw,avx512vl,avx512vnni");
