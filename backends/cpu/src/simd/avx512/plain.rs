//! Kernels of formats without blocks, and of vectors of floats.

super::super::plain::plain_kernels!("avx512bw,avx512vl,avx512vnni");
