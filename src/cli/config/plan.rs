//! Options of `plan`.

use super::model::ModelOptions;
use crate::cli::args::PlanArgs;
use crate::cli::failure::Failure;
use runtime::Assumed;
use std::path::PathBuf;

/// `thermocline plan`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanOptions {
    /// The model.
    pub(crate) model: ModelOptions,
    /// Devices to assume; empty to use the real ones.
    pub(crate) assumed: Vec<Assumed>,
    /// Share of the neurons that a token uses.
    pub(crate) density: Option<f64>,
    /// Path of the plot.
    pub(crate) svg: Option<PathBuf>,
    /// Print JSON.
    pub(crate) json: bool,
}

impl PlanOptions {
    /// # Errors
    /// Invalid or unsupported values.
    pub(crate) fn resolve(args: &PlanArgs) -> Result<Self, Failure> {
        Ok(Self {
            model: ModelOptions::resolve(&args.model)?,
            assumed: args.assume.clone(),
            density: args.density,
            svg: args.svg.clone(),
            json: args.json,
        })
    }
}
