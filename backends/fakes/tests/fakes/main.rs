//! What the shim and the fake drivers find, and that what is right passes.

#![allow(unsafe_code, reason = "functions of a C library")]
#![allow(
    clippy::disallowed_methods,
    reason = "CI asks a test to fail, and processes are told, by the environment"
)]

mod device;
mod drivers;
mod memory;
mod products;
mod shim;
