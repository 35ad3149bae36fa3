//! Errors that the shim and the fake drivers detect, and correct code that they accept.

#![allow(unsafe_code, reason = "calls functions of a C library")]
#![allow(
    clippy::disallowed_methods,
    reason = "CI sets THERMOCLINE_REQUIRE_GPU, and the fakes read settings from the environment"
)]

mod device;
mod drivers;
mod memory;
mod products;
mod shim;
