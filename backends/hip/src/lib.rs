//! AMD's cards, through HIP of any ROCm from 5 on: nothing is linked, the library is looked for when devices are asked
//! for. ROCm is there for Linux on x86-64, so this is empty elsewhere.
//!
//! Kernels are part of the program as text; ROCm's own compiler makes code of them at first use, which is kept in a
//! folder. A build can be given code for some architectures (`build.rs`), which is then used there. `hip-sys` has types and constants. Its functions are not called: they would be linked, they return Rust enums,
//! in which a code of a newer ROCm has no meaning, and `hipDeviceProp_t` is the one of ROCm 5.

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
