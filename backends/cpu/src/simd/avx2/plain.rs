//! Formats without blocks, and vectors.

super::super::plain::plain_kernels!("avx2,fma,f16c");
