//! What the shim and the fake drivers find, and that what is right passes.

mod device;
mod drivers;
mod memory;
mod shim;
