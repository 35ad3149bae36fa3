//! `thermocline plan`, `devices` and `doctor`.

use super::{CommonArgs, ModelArgs, boolish};
use crate::cli::parse;
use clap::Args;
use std::path::PathBuf;

/// Show where each layer and its neurons would be, what that takes and how fast it would be. Nothing is loaded.
/// With --assume, for devices that are not there.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Plan")]
pub(crate) struct PlanArgs {
    /// Plan for a device that is not there: NAME,memory=8GiB,bandwidth=1000GB/s,rows=700GB/s,hand-off=20us,op=2us,tflops=40,upload=12GB/s;
    /// all but memory can be left away, a repeated flag is one more device, and the name cpu sets the speed of the CPU. tflops is
    /// what it reaches in prompts, by two operations for each weight; upload is how fast neurons can be packed for it and brought
    /// there
    #[arg(long, value_name = "DEVICE", env = "THERMOCLINE_ARG_ASSUME", value_parser = parse::assumed)]
    pub(crate) assume: Vec<parse::Assumed>,
    /// Share of the neurons that a token uses, where the model skips neurons and no profile tells
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_PLAN_DENSITY", value_parser = parse::share)]
    pub(crate) density: Option<f64>,
    /// Draw the layers, with the parts of each on its device, into this file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_SVG")]
    pub(crate) svg: Option<PathBuf>,
    /// The plan as one JSON object on standard output
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// List the devices that can be used, and their memory.
#[derive(Args, Clone, Debug)]
pub(crate) struct DevicesArgs {
    /// One JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Say what was found, what is missing and how to get it; measure memory bandwidth and hand-offs.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// CPU threads; -1 chooses
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_THREADS", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i32).range(..=4096))]
    pub(crate) threads: i32,
    /// One JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
