//! The contract between the engine and its compute devices.
pub mod format;
