//! How the CPU's threads and memory are used.

use crate::cli::args::{NumaName, ProcessorArgs};
use crate::cli::parse::Cpus;
use crate::devices::{CpuOptions, Numa, Priority};

/// The processor's part of the options, but for the number of threads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Processor {
    /// CPUs to stay on.
    pub(crate) cpus: Option<Vec<usize>>,
    /// Each thread is bound to one CPU.
    pub(crate) strict: bool,
    /// Against other programs.
    pub(crate) priority: Priority,
    /// How long a waiting thread keeps its core, in percent of the longest.
    pub(crate) poll: u8,
    /// How threads and weights are spread over nodes.
    pub(crate) numa: Option<Numa>,
}

impl Processor {
    pub(super) fn resolve(args: &ProcessorArgs) -> Processor {
        let chosen = [&args.cpu_mask, &args.cpu_range];
        let mut cpus: Vec<usize> =
            chosen.into_iter().flatten().flat_map(|Cpus(cpus)| cpus).copied().collect();
        cpus.sort_unstable();
        cpus.dedup();
        Processor {
            // An empty mask chooses nothing, as in llama.cpp.
            cpus: (!cpus.is_empty()).then_some(cpus),
            strict: args.cpu_strict == 1,
            priority: match args.prio {
                ..=-1 => Priority::Low,
                0 => Priority::Normal,
                1 => Priority::Medium,
                2 => Priority::High,
                3.. => Priority::Realtime,
            },
            poll: args.poll,
            numa: args.numa.map(|name| match name {
                NumaName::Distribute => Numa::Distribute,
                NumaName::Isolate => Numa::Isolate,
                NumaName::Numactl => Numa::Numactl,
            }),
        }
    }

    /// What the backend takes, without numbers of threads and without notices.
    pub(crate) fn options(&self) -> CpuOptions {
        CpuOptions {
            cpus: self.cpus.clone(),
            strict: self.strict,
            numa: self.numa,
            priority: self.priority,
            poll: Some(self.poll),
            ..CpuOptions::default()
        }
    }

    /// The mask as llama-bench writes it.
    pub(crate) fn mask(&self) -> String {
        let cpus = self.cpus.as_deref().unwrap_or_default();
        let mut digits = vec![0u32; cpus.last().map_or(1, |last| last / 4 + 1)];
        cpus.iter().for_each(|cpu| digits[cpu / 4] |= 1 << (cpu % 4));
        let digits = digits.into_iter().rev().filter_map(|digit| char::from_digit(digit, 16));
        format!("0x{}", digits.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse::{cpu_mask, cpu_range};

    #[test]
    fn mask_and_range_add_up() {
        let args = ProcessorArgs {
            cpu_mask: cpu_mask("0x11").ok(),
            cpu_range: cpu_range("3-5").ok(),
            cpu_strict: 1,
            prio: -1,
            poll: 7,
            numa: Some(NumaName::Isolate),
        };
        let processor = Processor::resolve(&args);
        assert_eq!(processor.cpus.as_deref(), Some(&[0, 3, 4, 5][..]));
        assert_eq!(processor.mask(), "0x39");
        let options = processor.options();
        assert_eq!((options.strict, options.poll), (true, Some(7)));
        assert_eq!((options.priority, options.numa), (Priority::Low, Some(Numa::Isolate)));
        let none = ProcessorArgs { cpu_mask: cpu_mask("0x0").ok(), cpu_range: None, ..args };
        let processor = Processor::resolve(&none);
        assert_eq!((processor.cpus.clone(), processor.mask().as_str()), (None, "0x0"));
    }
}
