//! Weighted sums of rows of transposed matrices (one row per neuron).

super::super::transposed::transposed_kernels!("neon");
