//! The backend for AMD's GPUs, for ROCm 5 and newer. It loads HIP at run time instead of linking
//! it. On platforms other than Linux on x86-64, this crate is empty.
//!
//! Kernels are embedded as source. ROCm's own compiler compiles them on first use, and the result
//! is cached in a folder. A build can also embed compiled kernels for some architectures
//! (`build.rs`). Constants of HIP's headers are in `abi`, which a test compares with `hip-sys`. Its
//! functions are not called: they would be linked, and they return Rust enums, which have undefined
//! behaviour for codes of a newer ROCm.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod abi;
mod code_cache;
mod compiler;
mod devices;
mod embedded;
mod helper;
mod library;
mod sources;
#[cfg(test)]
mod stored;
#[cfg(test)]
mod tests;
mod vendor;

pub use devices::{devices, open, open_with};
pub use helper::{Compilation, CompilationWatch, serve_compilation};
pub use vendor::Hip;
