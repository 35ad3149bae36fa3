//! How the CPU's threads and memory are used.

use crate::cli::parse;
use clap::{Args, ValueEnum};

/// Names and meanings are llama.cpp's.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Processor")]
pub(crate) struct ProcessorArgs {
    /// CPUs for the threads, as a hexadecimal mask
    #[arg(short = 'C', long, value_name = "MASK", env = "THERMOCLINE_ARG_CPU_MASK")]
    #[arg(value_parser = parse::cpu_mask)]
    pub(crate) cpu_mask: Option<parse::Cpus>,
    /// CPUs for the threads, in addition to --cpu-mask (-Cr)
    #[arg(long, value_name = "LO-HI", env = "THERMOCLINE_ARG_CPU_RANGE")]
    #[arg(value_parser = parse::cpu_range)]
    pub(crate) cpu_range: Option<parse::Cpus>,
    /// 1 pins each thread to one CPU
    #[arg(long, value_name = "0|1", env = "THERMOCLINE_ARG_CPU_STRICT", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) cpu_strict: u8,
    /// Thread priority: -1 low, 0 normal, 1 medium, 2 high, 3 highest
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_PRIO", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(i8).range(-1..=3))]
    pub(crate) prio: i8,
    /// How long idle threads poll: 0 sleeps immediately, 100 polls longest
    #[arg(long, value_name = "0..100", env = "THERMOCLINE_ARG_POLL", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) poll: u8,
    /// Spread threads and weights over NUMA nodes
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_NUMA")]
    pub(crate) numa: Option<NumaName>,
}

/// `--numa`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NumaName {
    /// Over all nodes
    Distribute,
    /// On the node where the program started
    Isolate,
    /// As configured by numactl
    Numactl,
}
