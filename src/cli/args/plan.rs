//! `thermocline plan`, `devices` and `doctor`.

use super::{CommonArgs, ModelArgs, Threads, boolish, threads};
use crate::cli::parse;
use clap::Args;
use std::path::PathBuf;

/// Show where each layer and its neurons would be placed, the memory this takes and the expected
/// speed, without loading the model.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Plan")]
pub(crate) struct PlanArgs {
    /// Plan for a device that this machine does not have
    #[arg(long, value_name = "DEVICE", env = "THERMOCLINE_ARG_ASSUME", value_parser = parse::assumed)]
    #[arg(long_help = assume_help())]
    pub(crate) assume: Vec<runtime::AssumedDevice>,
    /// Fraction of active neurons to assume for a model without a profile
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_PLAN_DENSITY", value_parser = parse::share)]
    pub(crate) density: Option<f64>,
    /// Draw the plan as an SVG file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_SVG")]
    pub(crate) svg: Option<PathBuf>,
    /// Print the plan as one JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

fn assume_help() -> String {
    let cards: Vec<&str> = runtime::known_cards().collect();
    format!(
        "Plan for a device that this machine does not have\n\n\
         NAME,memory=8GiB,bandwidth=1000GB/s,rows=700GB/s,hand-off=20us,op=2us,tflops=40,upload=12GB/s; \
         everything but memory is optional. Repeat the flag for several devices; the name cpu sets \
         the speed of the CPU. rows is the bandwidth of scattered rows, tflops the speed in prefill, \
         at two operations per weight, and upload the speed of packing and copying neurons.\n\n\
         Memory and bandwidth (nine tenths of the data sheet's) of these cards are known: {}.",
        cards.join(", ")
    )
}

/// List the available devices and their memory.
#[derive(Args, Clone, Debug)]
pub(crate) struct DevicesArgs {
    /// Print one JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Measure memory bandwidth and hand-offs; report missing drivers and how to install them.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// CPU threads; -1 for the default
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_THREADS", default_value = "-1")]
    #[arg(value_parser = threads())]
    pub(crate) threads: Threads,
    /// Print one JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
