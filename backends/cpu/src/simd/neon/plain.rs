//! Kernels of formats without blocks, and of vectors of floats.

super::super::plain::plain_kernels!("neon");
