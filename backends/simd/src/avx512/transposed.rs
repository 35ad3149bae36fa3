//! Weighted sums of rows of transposed matrices.

super::super::transposed::transposed_kernels!("avx512bw,avx512vl,avx512vnni");
