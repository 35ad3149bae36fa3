//! `thermocline plan`, `devices` and `doctor`.

use super::{CommonArgs, ModelArgs, SwitchArgs, Threads, boolish, threads};
use crate::cli::failure::Failure;
use crate::cli::parse;
use crate::convert::{self, Target};
use crate::synthetic::Spec;
use clap::Args;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Show where each layer and its neurons would be placed, the memory this takes and the expected
/// speed, without loading the model.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Plan")]
pub(crate) struct PlanArgs {
    /// Plan for a device that this machine does not have
    #[arg(long, value_name = "DEVICE", env = "THERMOCLINE_ARG_ASSUME", value_parser = parse::assumed)]
    #[arg(long_help = assume_help())]
    pub(crate) assume: Vec<runtime::AssumedDevice>,
    /// Plan from shapes alone: a config.json, or EMBDxLAYERSxFFxHEADS/KV:TYPE:silu
    ///
    /// No weights are needed. FILE is the config.json of a model on Hugging Face, or a folder with
    /// one; otherwise a model as in `bench --synthetic`, such as 7b:Q4_0:relu or
    /// 2048x48x768x32/4*128/8:Q4_0:silu.
    #[arg(long, value_name = "FILE|SPEC", env = "THERMOCLINE_ARG_SHAPE", conflicts_with = "model")]
    pub(crate) shape: Option<Shape>,
    /// Type of the weights of a config.json, as in `quantize` [default: Q4_K_M]
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_SHAPE_TYPE", requires = "shape")]
    pub(crate) shape_type: Option<Target>,
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

/// The value of `--shape`.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A `config.json`, or a folder with one.
    Config(PathBuf),
    /// A synthetic model.
    Spec(Spec),
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        match text.parse() {
            Ok(spec) => Ok(Shape::Spec(spec)),
            Err(_) if Path::new(text).exists() => Ok(Shape::Config(text.into())),
            Err(error) => Err(format!("no file has this name, and {error}")),
        }
    }
}

impl Shape {
    /// The file with these shapes, in the types of `target`.
    ///
    /// # Errors
    /// Errors of the settings; a type for a model whose type is part of its name.
    pub(crate) fn file(&self, target: Option<Target>) -> Result<gguf::File, Failure> {
        match (self, target) {
            (Shape::Config(path), target) => {
                let usual = || "Q4_K_M".parse::<Target>();
                Ok(convert::shapes(path, target.map_or_else(usual, Ok)?)?)
            }
            (Shape::Spec(spec), None) => spec.shapes().map_err(|error| {
                Failure::usage("--shape: the model cannot be made").caused_by(&error)
            }),
            (Shape::Spec(spec), Some(_)) => Err(Failure::usage("--shape-type has no effect")
                .help(format!("the type is part of {spec}"))),
        }
    }
}

fn assume_help() -> String {
    let cards: Vec<&str> = runtime::known_cards().collect();
    format!(
        "Plan for a device that this machine does not have\n\n\
         NAME,memory=8GiB,bandwidth=1000GB/s,rows=700GB/s,hand-off=20us,op=2us,tflops=40,upload=12GB/s; \
         everything but memory is optional. Repeat the flag for several devices; the name cpu sets \
         the speed of the CPU, its memory, and with disk=3GB/s the speed of the disk. rows is the bandwidth of scattered rows, tflops the speed in prefill, \
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
    pub(crate) switches: SwitchArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Measure memory bandwidth and hand-offs; report missing drivers and how to install them.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// CPU threads; -1: one per physical core
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_THREADS", default_value = "-1")]
    #[arg(value_parser = threads())]
    pub(crate) threads: Threads,
    /// Print one JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    /// Write a JSON report to send with a bug report
    ///
    /// Besides what `doctor` prints, it has the version of the program and the system, and the
    /// self-test of software drivers. It names no user, file or model.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_REPORT")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) switches: SwitchArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
