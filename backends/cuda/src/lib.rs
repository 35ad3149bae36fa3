//! NVIDIA's cards, through CUDA's driver: nothing is linked, the library is looked for when devices are asked for.
//!
//! Kernels are part of the program as PTX, which the driver compiles; CUDA itself is not needed. `cudarc` finds and
//! opens the library and has its types and constants. Its functions are not called: they return Rust enums, in which a
//! code of a newer driver has no meaning, and panic where a symbol is missing.

mod devices;
mod library;
mod vendor;

pub use devices::{devices, open, open_with};
pub use vendor::Cuda;
