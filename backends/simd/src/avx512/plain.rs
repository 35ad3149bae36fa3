//! Kernels of formats without blocks, and the sum of squares.

super::super::plain::plain_kernels!("avx512bw,avx512vl,avx512vnni");
