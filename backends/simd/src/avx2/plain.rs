//! Kernels of formats without blocks, and the sum of squares.

super::super::plain::plain_kernels!("avx2,fma,f16c");
