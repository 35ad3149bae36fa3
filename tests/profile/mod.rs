//! What is found out about a model by looking at its neurons at work.

mod calibration;
mod command;
mod files;
mod observe;
