//! Kernels of formats without blocks, and of vectors of floats.

super::super::plain::plain_kernels!("avx2,fma,f16c");
