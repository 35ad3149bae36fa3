//! Formats without blocks, and vectors.

super::super::plain::plain_kernels!("neon");
