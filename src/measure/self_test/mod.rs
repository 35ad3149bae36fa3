//! Checks the kernels of a device before a model runs on it: every op of the model, with the
//! model's formats and row lengths but few rows and tokens, against the CPU. A wrong lane, a driver
//! that compiles a kernel wrongly or a faulty device shows in the first seconds, and costs one op
//! rather than the words.

mod cases;
mod compare;
mod contents;
mod run;

use std::collections::{BTreeMap, BTreeSet};

use hal::{Device, Error, Result};

pub use cases::{Case, cases};
use run::{Tested, test};

/// A kernel file with wrong results, in whose place the device uses another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The kernel file.
    pub unit: String,
    /// What was wrong.
    pub reason: String,
}

/// A kind of op ([`hal::Op::kind`]) that a device computes wrongly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedOp {
    /// The kind.
    pub kind: String,
    /// What was wrong, with the kernel files.
    pub reason: String,
}

/// The result of a self-test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Number of cases that ran.
    pub n_cases: usize,
    /// Number of kernel files that ran.
    pub n_units: usize,
    /// Kernel files that the device avoids: the replaced ones, and those whose replacement was wrong
    /// too.
    pub avoided: Vec<String>,
    /// Kernel files whose replacement is right.
    pub replaced: Vec<Replaced>,
    /// Ops that the device does not run.
    pub refused: Vec<RefusedOp>,
}

impl Verdict {
    /// Makes `device` use other kernels, and refuse ops, as this verdict says.
    pub fn apply(&self, device: &Device) {
        for unit in &self.avoided {
            // The device that was tested avoids it already.
            let _ = device.avoid(unit);
        }
        for RefusedOp { kind, reason } in &self.refused {
            device.refuse(kind, &format!("wrong in the self-test: {reason}"));
        }
    }
}

/// Two seeds: with the first, a value may lie so close to a limit that two right results differ.
const SEEDS: [u64; 2] = [1, 2];

/// Runs `cases` on `device` and compares their results with those of `cpu`. Where a result is
/// wrong, the device uses its other kernels from then on; what stays wrong is to be refused
/// ([`Verdict::apply`]). `progress` receives the number of cases that are done.
///
/// # Errors
/// A lost device or too little memory. A driver that rejects a kernel is a wrong result.
pub fn check(
    device: &Device,
    cpu: &Device,
    cases: &[Case],
    progress: &dyn Fn(usize),
) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut units = BTreeSet::new();
    let mut wrong = Vec::new();
    for (n_done, case) in cases.iter().enumerate() {
        progress(n_done);
        match test_twice(device, cpu, case)? {
            Tested::Skipped => continue,
            Tested::Right { units: ran } => units.extend(ran),
            Tested::Wrong { units: ran, reason } => {
                units.extend(ran.iter().cloned());
                wrong.push((case, ran, reason));
            }
        }
        verdict.n_cases += 1;
    }
    verdict.n_units = units.len();
    let mut refused = BTreeMap::new();
    for (case, units, reason) in wrong {
        // An op that was wrong alone explains the ops next to it.
        if case.ops.iter().any(|op| refused.contains_key(&op.kind())) {
            continue;
        }
        // The replacement of an earlier case may have been enough.
        let Tested::Wrong { .. } = test_twice(device, cpu, case)? else { continue };
        let avoided: Vec<String> = units.into_iter().filter(|unit| device.avoid(unit)).collect();
        verdict.avoided.extend(avoided.iter().cloned());
        match test_twice(device, cpu, case)? {
            Tested::Right { .. } | Tested::Skipped => {
                let replaced = |unit| Replaced { unit, reason: reason.clone() };
                verdict.replaced.extend(avoided.into_iter().map(replaced));
            }
            Tested::Wrong { units, reason } => {
                let reason = match &units[..] {
                    [] => reason,
                    units => format!("{reason}; kernels {}", units.join(", ")),
                };
                refused.insert(case.kind(), reason);
            }
        }
    }
    let refused = refused.into_iter().map(|(kind, reason)| RefusedOp { kind, reason });
    verdict.refused = refused.collect();
    Ok(verdict)
}

/// The first result that is not wrong.
fn test_twice(device: &Device, cpu: &Device, case: &Case) -> Result<Tested> {
    let mut last = Tested::Skipped;
    for seed in SEEDS {
        last = match test(device, cpu, case, seed) {
            Err(error @ Error::Driver { .. }) => {
                Tested::Wrong { units: Vec::new(), reason: error.to_string() }
            }
            tested => tested?,
        };
        if !matches!(last, Tested::Wrong { .. }) {
            break;
        }
    }
    Ok(last)
}
