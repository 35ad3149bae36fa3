//! AMD's GPUs through HIP of any ROCm from version 5 on, which is not linked but loaded at run
//! time. ROCm exists for Linux on x86-64, so this crate is empty on other platforms.
//!
//! Kernels are embedded as source; ROCm's own compiler compiles them on first use, and the result
//! is cached in a folder. A build can embed code for some architectures (`build.rs`), which is
//! then used on them. Types and constants come from `hip-sys`. Its functions are not called: they
//! would be linked, they return Rust enums, which are undefined for codes of a newer ROCm, and its
//! `hipDeviceProp_t` is that of ROCm 5.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod compiler;
mod devices;
mod embedded;
mod kept;
mod library;
mod sources;
#[cfg(test)]
mod stored;
#[cfg(test)]
mod tests;
mod vendor;

pub use devices::{devices, open, open_with};
pub use vendor::Hip;
