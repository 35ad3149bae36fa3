//! NVIDIA's GPUs through the CUDA driver, which is not linked but loaded at run time.
//!
//! Kernels are embedded as PTX, which the driver compiles; the CUDA toolkit is not needed. The
//! types and constants come from `cudarc`. It does not load the library, because it would use the
//! toolkit's stub instead of the driver if both are found. Its functions are not called either:
//! they return Rust enums, which are undefined for codes of a newer driver, and they panic on a
//! missing symbol.

mod archive;
mod devices;
mod library;
mod vendor;

pub use devices::{devices, open, open_with};
pub use vendor::Cuda;
