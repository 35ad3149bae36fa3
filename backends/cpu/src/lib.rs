//! The processor as a device: the reference kernels, the fast ones, and the team that runs them.

pub mod reference;
pub mod simd;
