//! Weighted sums of rows of transposed matrices (one row per neuron).

super::super::transposed::transposed_kernels!("avx2,fma,f16c");
