//! Weighted sums of rows of transposed matrices.

super::super::transposed::transposed_kernels!("avx2,fma,f16c");
