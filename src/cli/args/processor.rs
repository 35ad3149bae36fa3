//! Flags for CPU threads, affinity, priority and NUMA.

use super::choice::{Choice, choice, one_of};
use super::whole;
use crate::cli::parse::{self, Cpus};
use crate::devices::{Numa, Priority};
use clap::builder::TypedValueParser;
use clap::{ArgAction, Args};
use runtime::Processor;

/// Thread and NUMA flags, with llama.cpp's names and meanings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Processor")]
pub(crate) struct ProcessorArgs {
    /// CPUs for the threads, as a hexadecimal mask; `bench` takes a list
    #[arg(short = 'C', long, value_name = "MASK", env = "THERMOCLINE_ARG_CPU_MASK")]
    #[arg(value_delimiter = ',', value_parser = parse::cpu_mask)]
    pub(crate) cpu_mask: Vec<Cpus>,
    /// CPUs for the threads, in addition to --cpu-mask (-Cr)
    #[arg(long, value_name = "LO-HI", env = "THERMOCLINE_ARG_CPU_RANGE")]
    #[arg(value_parser = parse::cpu_range)]
    pub(crate) cpu_range: Option<Cpus>,
    /// 1 pins each thread to one CPU
    #[arg(long, value_name = "0|1", env = "THERMOCLINE_ARG_CPU_STRICT", default_value = "0")]
    #[arg(action = ArgAction::Set, value_parser = whole::<u8>(0..=1).map(|n| n == 1))]
    pub(crate) cpu_strict: bool,
    /// Thread priority: -1 low, 0 normal, 1 medium, 2 high, 3 highest
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_PRIO", default_value = "0")]
    #[arg(value_parser = whole::<i8>(-1..=3).map(priority))]
    pub(crate) prio: Priority,
    /// How long idle threads poll: 0 sleeps immediately, 100 polls longest
    #[arg(long, value_name = "0..100", env = "THERMOCLINE_ARG_POLL", default_value_t = 50)]
    #[arg(value_parser = whole::<u8>(0..=100))]
    pub(crate) poll: u8,
    /// Spread threads and weights over NUMA nodes
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_NUMA")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "distribute")]
    #[arg(value_parser = one_of(&NUMA))]
    pub(crate) numa: Option<Numa>,
    /// How far ahead kernels prefetch rows of weights [default: measured once]
    #[arg(long, value_name = "BYTES", env = "THERMOCLINE_ARG_PREFETCH_DISTANCE")]
    #[arg(value_parser = whole::<u32>(0..=MAX_PREFETCH))]
    pub(crate) prefetch_distance: Option<u32>,
}

/// Maximum of `--prefetch-distance`: more wastes reads at the end of a matrix, and gained nothing.
const MAX_PREFETCH: i64 = 32 << 10;

static NUMA: [Choice<Numa>; 3] = [
    choice("distribute", "Over all nodes", Numa::Distribute),
    choice("isolate", "On the node where the program started", Numa::Isolate),
    choice("numactl", "As configured by numactl", Numa::Numactl),
];

fn priority(n: i8) -> Priority {
    match n {
        ..=-1 => Priority::Low,
        0 => Priority::Normal,
        1 => Priority::Medium,
        2 => Priority::High,
        3.. => Priority::Realtime,
    }
}

impl ProcessorArgs {
    /// Thread, affinity, priority and NUMA options of the CPU backend.
    pub(crate) fn options(&self) -> Processor {
        let chosen = self.cpu_mask.last().into_iter().chain(&self.cpu_range);
        let mut cpus: Vec<usize> = chosen.flat_map(|Cpus(cpus)| cpus).copied().collect();
        cpus.sort_unstable();
        cpus.dedup();
        Processor {
            // An empty mask sets no affinity, as in llama.cpp.
            cpus: (!cpus.is_empty()).then_some(cpus),
            strict: self.cpu_strict,
            priority: self.prio,
            poll: self.poll,
            numa: self.numa,
            prefetch: self.prefetch_distance.map(|bytes| bytes as usize),
        }
    }
}

impl ProcessorArgs {
    /// The options with each value of --cpu-mask.
    pub(crate) fn combinations(&self) -> Vec<Processor> {
        let with_mask =
            |mask: &Cpus| Self { cpu_mask: vec![mask.clone()], ..self.clone() }.options();
        match &self.cpu_mask[..] {
            [] => vec![self.options()],
            masks => masks.iter().map(with_mask).collect(),
        }
    }
}

/// The CPU mask in hexadecimal, as llama-bench prints it.
pub(crate) fn mask(processor: &Processor) -> String {
    let cpus = processor.cpus.as_deref().unwrap_or_default();
    let mut digits = vec![0u32; cpus.last().map_or(1, |last| last / 4 + 1)];
    cpus.iter().for_each(|cpu| digits[cpu / 4] |= 1 << (cpu % 4));
    let digits = digits.into_iter().rev().filter_map(|digit| char::from_digit(digit, 16));
    format!("0x{}", digits.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse::{cpu_mask, cpu_range};

    #[test]
    fn mask_and_range_are_combined() {
        let args = ProcessorArgs {
            cpu_mask: cpu_mask("0x11").into_iter().collect(),
            cpu_range: cpu_range("3-5").ok(),
            cpu_strict: true,
            prio: Priority::Low,
            poll: 7,
            numa: Some(Numa::Isolate),
            prefetch_distance: Some(4096),
        };
        let found = args.options();
        assert_eq!(found.cpus.as_deref(), Some(&[0, 3, 4, 5][..]));
        assert_eq!(mask(&found), "0x39");
        assert_eq!(found.prefetch, Some(4096));
        let options = found.options();
        assert_eq!((options.strict, options.poll), (true, Some(7)));
        assert_eq!((options.priority, options.numa), (Priority::Low, Some(Numa::Isolate)));
        let none = ProcessorArgs {
            cpu_mask: cpu_mask("0x0").into_iter().collect(),
            cpu_range: None,
            ..args
        };
        let found = none.options();
        assert_eq!((found.cpus.clone(), mask(&found).as_str()), (None, "0x0"));
    }
}
