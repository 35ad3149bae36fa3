//! What `plan` shall do.

use super::model::ModelOptions;
use crate::cli::args::PlanArgs;
use crate::cli::failure::Failure;
use crate::cli::parse::Assumed;
use std::path::PathBuf;

/// `thermocline plan`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanOptions {
    /// The model.
    pub(crate) model: ModelOptions,
    /// Devices that are not there; none for those that are.
    pub(crate) assumed: Vec<Assumed>,
    /// The share of the neurons that a token uses.
    pub(crate) density: Option<f64>,
    /// Where the picture goes.
    pub(crate) svg: Option<PathBuf>,
    /// JSON instead of tables.
    pub(crate) json: bool,
}

impl PlanOptions {
    /// # Errors
    /// What cannot be meant or is not built.
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
