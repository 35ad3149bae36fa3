//! Runs the conformance suite on a device of this machine and prints JSON.
//!
//! `cargo bench --bench conform -- --device CUDA0` runs all cases. With a further argument, such as
//! `MatMul/Q4_0`, only cases whose names contain it run. `scripts/prove_gpu` runs this program on
//! machines with a GPU.
#![allow(clippy::print_stdout, reason = "this program prints a report")]

use std::error::Error;
use std::time::Instant;

use conformance::Outcome;
use hal::{Bytes, Device, DeviceId};
use serde_json::json;
use thermocline::devices::candidates;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs this program without `--bench`; it must then exit at once.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let at = arguments.iter().position(|argument| argument == "--device");
    let name = at.and_then(|at| arguments.get(at + 1)).ok_or("name a device with --device NAME")?;
    let filter = arguments.iter().find(|a| !a.starts_with('-') && *a != name);
    let (found, missing) = candidates(None);
    let candidate = found.iter().find(|candidate| candidate.name == *name);
    let candidate = candidate.ok_or_else(|| {
        format!("device {name} not found; backends that are not available: {missing:?}")
    })?;
    let device = Device::new(candidate.open()?, DeviceId(1), Bytes::MAX);
    let begin = Instant::now();
    let report = conformance::run_matching(&device, filter.map_or("", String::as_str));
    let cases = |wanted: fn(&Outcome) -> Option<&String>| -> Vec<_> {
        let outcomes = report.outcomes.iter();
        let matching = outcomes.filter_map(|(name, outcome)| Some((name, wanted(outcome)?)));
        matching.map(|(name, why)| json!({ "case": name, "why": why })).collect()
    };
    let result = json!({
        "device": name,
        "description": candidate.description,
        "passed": report.passed().count(),
        "failed": cases(|outcome| if let Outcome::Failed(why) = outcome { Some(why) } else { None }),
        "skipped": cases(|outcome| if let Outcome::Skipped(why) = outcome { Some(why) } else { None }),
        "seconds": begin.elapsed().as_secs_f64(),
    });
    println!("{result:#}");
    match report.n_failed() {
        0 if report.outcomes.is_empty() => {
            Err(format!("no case has {filter:?} in its name").into())
        }
        0 => Ok(()),
        n => Err(format!("{name}: {n} cases failed").into()),
    }
}
