//! Formats without blocks, and vectors.

super::super::plain::plain_kernels!("avx512bw,avx512vl,avx512vnni");
