//! Data measured by running a model: activation profiles ([`profile`]), predictors and thresholds
//! ([`predictor`]), and the side file that stores them ([`learned`]).
//!
//! The only crate that uses faer. Not here: placing and skipping neurons.

pub mod learned;
pub mod predictor;
pub mod profile;
