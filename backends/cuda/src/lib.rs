//! NVIDIA's cards, through CUDA's driver: nothing is linked, the library is looked for when devices are asked for.
//!
//! Kernels are part of the program as PTX, which the driver compiles; CUDA itself is not needed. `cudarc` has the
//! library's types and constants. It does not open it: it would take the toolkit's stub for the driver where both are found.
//! Nor are its functions called: they return Rust enums, in which a code of a newer driver has no meaning, and panic where a
//! symbol is missing.

mod devices;
mod library;
mod vendor;

pub use devices::{devices, open, open_with};
pub use vendor::Cuda;
