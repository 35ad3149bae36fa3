//! The backend for NVIDIA's GPUs. It loads the CUDA driver at run time instead of linking it.
//!
//! Kernels are embedded as PTX, which the driver compiles, so the CUDA toolkit is not needed.
//! Types and constants come from `cudarc`. This crate loads the driver itself, because `cudarc`
//! would prefer the toolkit's stub library to the driver, and it calls the driver itself, because
//! `cudarc`'s functions panic on a missing symbol and return Rust enums, which have undefined
//! behaviour for codes of a newer driver.

mod archive;
mod devices;
mod library;
mod vendor;

pub use devices::{devices, open, open_with};
pub use vendor::Cuda;
