//! How the CPU's threads and memory are used.

use crate::cli::args::{NumaName, ProcessorArgs};
use crate::cli::parse::Cpus;
use crate::devices::{Numa, Priority};
use runtime::Processor;

/// Converts the flags.
pub(super) fn processor(args: &ProcessorArgs) -> Processor {
    let chosen = [&args.cpu_mask, &args.cpu_range];
    let mut cpus: Vec<usize> =
        chosen.into_iter().flatten().flat_map(|Cpus(cpus)| cpus).copied().collect();
    cpus.sort_unstable();
    cpus.dedup();
    Processor {
        // An empty mask selects nothing, as in llama.cpp.
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

/// The mask as llama-bench writes it.
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
    fn mask_and_range_add_up() {
        let args = ProcessorArgs {
            cpu_mask: cpu_mask("0x11").ok(),
            cpu_range: cpu_range("3-5").ok(),
            cpu_strict: 1,
            prio: -1,
            poll: 7,
            numa: Some(NumaName::Isolate),
        };
        let found = processor(&args);
        assert_eq!(found.cpus.as_deref(), Some(&[0, 3, 4, 5][..]));
        assert_eq!(mask(&found), "0x39");
        let options = found.options();
        assert_eq!((options.strict, options.poll), (true, Some(7)));
        assert_eq!((options.priority, options.numa), (Priority::Low, Some(Numa::Isolate)));
        let none = ProcessorArgs { cpu_mask: cpu_mask("0x0").ok(), cpu_range: None, ..args };
        let found = processor(&none);
        assert_eq!((found.cpus.clone(), mask(&found).as_str()), (None, "0x0"));
    }
}
