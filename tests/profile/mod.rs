//! Activation profiles: counted, stored, resumed, imported.

mod calibration;
mod command;
mod files;
mod observe;
