//! Weighted sums of transposed (row per neuron) rows.

super::super::transposed::transposed_kernels!("neon");
