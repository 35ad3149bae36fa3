//! The conformance suite of all backends. Each case runs on the device and on [`oracle`], through
//! the public API of `hal` alone, and compares the outputs.
//!
//! The tests of a backend contain
//!
//! ```no_run
//! # use thermocline_conformance as conformance;
//! # let device = conformance::oracle();
//! conformance::check(&device);
//! ```
//!
//! Every case draws its data from a seed derived from its name, poisons outputs with NaN, places
//! guard rows around them, and runs twice to compare the bits. The oracle is a simulated device
//! without delays; it computes the expected values with the f64 sums of `cpu::reference`.
//! `tests/by_hand/` compares the oracle with values computed by hand.
//!
//! The suite deliberately has no timings, no tolerances that a backend could set, and no cases that
//! depend on a backend's internals.

mod cases;
mod compare;
mod rig;
mod rng;
mod weights;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hal::{Bytes, Device, DeviceId, Error};
use sim::{SimBackend, SimOptions};

pub use weights::random_weights;

use compare::compare;
use rig::{Output, Rig};
use rng::Rng;

/// Allowed normalised mean squared error of results that differ only in the order of F32 sums.
const TOLERANCE: f64 = 1e-7;

/// Memory budget of [`oracle`]: 4 GiB.
const BUDGET: Bytes = Bytes(4 << 30);

type Body = Box<dyn Fn(&mut Rig) -> hal::Result<()> + Send + Sync>;

/// The device that all other devices are compared with.
#[must_use]
pub fn oracle() -> Device {
    sim_device(true)
}

fn sim_device(computes: bool) -> Device {
    let options = SimOptions { name: "ORACLE".to_owned(), computes, ..SimOptions::default() };
    Device::new(SimBackend::new(options), DeviceId(u32::MAX), BUDGET)
}

/// One test of one behaviour.
pub struct Case {
    name: String,
    seed: u64,
    tolerance: f64,
    reason: &'static str,
    body: Body,
}

impl Case {
    fn new(
        name: impl Into<String>,
        body: impl Fn(&mut Rig) -> hal::Result<()> + Send + Sync + 'static,
    ) -> Case {
        let name = name.into();
        let seed = Rng::seed_of(&name);
        let reason = "only the order of sums may differ";
        Case { name, seed, tolerance: TOLERANCE, reason, body: Box::new(body) }
    }

    fn with_tolerance(self, tolerance: f64, reason: &'static str) -> Case {
        Case { tolerance, reason, ..self }
    }

    /// The case's name: op, format and behaviour, such as `MatMul/Q4_0/bias`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the case and returns its outputs.
    fn run(&self, device: &Device) -> Result<Vec<Output>, Outcome> {
        let run = || {
            let mut rig = Rig::new(device, self.seed)?;
            (self.body)(&mut rig)?;
            rig.check_guards()?;
            Ok(rig)
        };
        let rig = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(rig)) => rig,
            Ok(Err(Error::Unsupported { reason, .. })) => return Err(Outcome::Skipped(reason)),
            Ok(Err(error)) => return Err(Outcome::Failed(error.to_string())),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                let text = text.unwrap_or("without a message");
                return Err(Outcome::Failed(format!("panicked: {text}")));
            }
        };
        if rig.faults.is_empty() {
            Ok(rig.outputs)
        } else {
            Err(Outcome::Failed(rig.faults.join("; ")))
        }
    }
}

/// The outputs of a case on the oracle, or how it failed.
type Expected = Result<Vec<Output>, Outcome>;

/// The outputs of a case on the oracle, which are computed once per process: a case with the same
/// name has the same data.
fn expected(case: &Case) -> Arc<OnceLock<Expected>> {
    static CACHE: Mutex<BTreeMap<String, Arc<OnceLock<Expected>>>> = Mutex::new(BTreeMap::new());
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    let cell = Arc::clone(cache.entry(case.name.clone()).or_default());
    drop(cache);
    // If several tests need the outputs at the same time, one computes them and the others wait.
    cell.get_or_init(|| case.run(&oracle()));
    cell
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({}, seed {:#x})", self.name, self.seed)
    }
}

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device matches the oracle.
    Passed,
    /// The device reports that it cannot run the case, with the reason.
    Skipped(String),
    /// The device's outputs are wrong or the case ended with an error, with the details.
    Failed(String),
}

/// All cases, in a fixed order.
#[must_use]
pub fn cases() -> Vec<Case> {
    cases::all()
}

/// The cases whose names contain one of `parts`.
#[must_use]
pub fn matching(parts: &[&str]) -> Vec<Case> {
    let mut cases = cases();
    cases.retain(|case| parts.iter().any(|part| case.name.contains(part)));
    cases
}

/// Formats whose feed-forward blocks [`without_long_prompts`] runs with 515 tokens: one format for
/// each block size (no blocks, 32 values, 256 values).
const LONG_FORMATS: [&str; 3] = ["SparseFfn/F16/", "SparseFfn/Q4_0/", "SparseFfn/Q6_K/"];

/// All cases, except that only the formats of `LONG_FORMATS` run feed-forward blocks with 515
/// tokens. In all formats, they would take a quarter of the suite's time on a software device.
/// They test the second chunk of a prompt, which does not depend on the format.
#[must_use]
pub fn without_long_prompts() -> Vec<Case> {
    let mut cases = cases();
    cases.retain(|case| {
        let long = case.name.starts_with("SparseFfn/") && case.name.ends_with("/t515");
        !long || LONG_FORMATS.iter().any(|format| case.name.starts_with(format))
    });
    cases
}

/// Formats whose feed-forward blocks [`representative`] runs in all cases.
const WHOLE_FORMATS: [&str; 4] = ["F32", "F16", "Q4_0", "Q6_K"];

/// Feed-forward cases of the other formats: those that read the weights in another way. The lists,
/// counts and hand-offs that the rest tests do not depend on the format.
const OF_EVERY_FORMAT: [&str; 9] = [
    "t1",
    "t5",
    "t17",
    "t100",
    "listed/t5",
    "experts/t5",
    "experts/t40",
    "repacked/Stored/t40",
    "repacked/Transposed/t40",
];

/// A subset of [`without_long_prompts`] in which feed-forward blocks run all cases in a few formats
/// only. On software devices it takes about half of the time of all cases, which
/// `scripts/check_fakes` runs.
#[must_use]
pub fn representative() -> Vec<Case> {
    let mut cases = without_long_prompts();
    cases.retain(|case| {
        let Some(("SparseFfn", rest)) = case.name.split_once('/') else { return true };
        let Some((format, rest)) = rest.split_once('/') else { return true };
        let layout = rest.split_once('/').map_or("", |(_, rest)| rest);
        WHOLE_FORMATS.contains(&format)
            || OF_EVERY_FORMAT.contains(&layout)
            || OF_EVERY_FORMAT.contains(&rest)
    });
    cases
}

/// Runs one case twice on `device`, and compares the outputs with each other and the oracle's.
#[must_use]
pub fn run_case(case: &Case, device: &Device) -> Outcome {
    let fail = |text: String| {
        Outcome::Failed(format!(
            "{text} (seed {:#x}, tolerance {:e}: {})",
            case.seed, case.tolerance, case.reason
        ))
    };
    let run = |device: &Device| match case.run(device) {
        Err(Outcome::Failed(text)) => Err(fail(text)),
        other => other,
    };
    let expected = expected(case);
    let expected = match expected.get() {
        Some(Ok(outputs)) => outputs,
        failed => return fail(format!("the oracle failed: {failed:?}")),
    };
    let (first, second) = match (run(device), run(device)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(outcome), _) | (_, Err(outcome)) => return outcome,
    };
    if let Err(text) = compare(expected, &first, case.tolerance) {
        return fail(text);
    }
    match compare::same_bits(&first, &second) {
        Ok(()) => Outcome::Passed,
        Err(text) => fail(format!("a second run differs: {text}")),
    }
}

/// The result of every case on a device. Its `Display` text lists failed and skipped cases.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the device.
    pub device: String,
    /// Case name and outcome.
    pub outcomes: Vec<(String, Outcome)>,
}

impl Report {
    /// Number of cases that failed.
    #[must_use]
    pub fn n_failed(&self) -> usize {
        self.outcomes.iter().filter(|(_, o)| matches!(o, Outcome::Failed(_))).count()
    }

    /// Number of cases that the device cannot run.
    #[must_use]
    pub fn n_skipped(&self) -> usize {
        self.outcomes.iter().filter(|(_, o)| matches!(o, Outcome::Skipped(_))).count()
    }

    /// Names of the cases that passed.
    pub fn passed(&self) -> impl Iterator<Item = &str> {
        let passed = self.outcomes.iter().filter(|(_, o)| *o == Outcome::Passed);
        passed.map(|(name, _)| name.as_str())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.outcomes {
            match outcome {
                Outcome::Passed => {}
                Outcome::Skipped(reason) => writeln!(f, "skipped {name}: {reason}")?,
                Outcome::Failed(text) => writeln!(f, "FAILED  {name}: {text}")?,
            }
        }
        let (total, failed, skipped) = (self.outcomes.len(), self.n_failed(), self.n_skipped());
        let passed = total - failed - skipped;
        write!(f, "{}: {passed} passed, {failed} failed, {skipped} skipped", self.device)
    }
}

/// Runs every case whose name contains `part`; an empty `part` matches all cases.
#[must_use]
pub fn run_matching(device: &Device, part: &str) -> Report {
    let cases = matching(&[part]);
    let outcomes = cases.iter().map(|case| (case.name.clone(), run_case(case, device))).collect();
    Report { device: device.info().name.clone(), outcomes }
}

/// Runs every case.
#[must_use]
pub fn run_all(device: &Device) -> Report {
    run_matching(device, "")
}

/// Runs cases in parallel on several devices: each device takes the next case that has not started.
///
/// # Panics
/// If `devices` is empty.
#[must_use]
pub fn run_in_parallel(devices: &[Device], cases: &[Case]) -> Report {
    let next = AtomicUsize::new(0);
    let run_cases = |device: &Device| {
        let mut finished = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(number) else { return finished };
            finished.push((number, run_case(case, device)));
        }
    };
    let mut finished: Vec<(usize, Outcome)> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            devices.iter().map(|device| scope.spawn(|| run_cases(device))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("cases catch panics")).collect()
    });
    finished.sort_by_key(|(number, _)| *number);
    let outcomes =
        finished.into_iter().map(|(number, outcome)| (cases[number].name.clone(), outcome));
    Report { device: devices[0].info().name.clone(), outcomes: outcomes.collect() }
}

/// The complete conformance test of a backend.
///
/// # Panics
/// Panics with the report if a case failed.
pub fn check(device: &Device) {
    let report = run_all(device);
    assert_eq!(report.n_failed(), 0, "\n{report}");
}

#[cfg(test)]
mod tests {
    use hal::null::NullBackend;

    use super::*;

    /// A report of every case, on two devices in parallel.
    fn report(open: impl Fn() -> Device) -> Report {
        run_in_parallel(&[open(), open()], &cases())
    }

    #[test]
    fn the_null_backend_fails() {
        let open = || Device::new(Arc::new(NullBackend::default()), DeviceId(0), Bytes(1 << 30));
        let report = report(open);
        let passed: Vec<&str> = report.passed().collect();
        // `hal` itself enforces the budget, whatever the backend.
        assert_eq!(passed, ["Memory/budget"], "\n{report}");
        assert_eq!(report.n_skipped(), 0);
    }

    /// If memory works and ops do nothing, only the cases of memory, which run no ops, pass.
    #[test]
    fn a_device_that_computes_nothing_fails() {
        let report = report(|| sim_device(false));
        let passed: Vec<&str> =
            report.passed().filter(|name| !name.starts_with("Memory/")).collect();
        assert!(passed.is_empty(), "{passed:?}");
    }

    #[test]
    fn case_names_are_unique() {
        let cases = cases();
        let names: std::collections::HashSet<&str> = cases.iter().map(Case::name).collect();
        assert_eq!(names.len(), cases.len());
    }
}
