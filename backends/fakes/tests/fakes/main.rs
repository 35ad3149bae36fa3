//! Errors that the shim and the fake drivers detect, and correct code that they accept.

#![allow(unsafe_code, reason = "functions of a C library")]
#![allow(
    clippy::disallowed_methods,
    reason = "CI requests failures, and processes get settings, through the environment"
)]

mod device;
mod drivers;
mod memory;
mod products;
mod shim;
