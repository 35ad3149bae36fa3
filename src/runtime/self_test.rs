//! The self-test of kernels when a model is loaded: every device computes the model's ops once and
//! is compared with the CPU. The result is cached beside the measured speeds.

use std::fmt;
use std::sync::Arc;

use engine::EngineOptions;
use hal::{Bytes, Device, DeviceId};
use measure::self_test::{Case, RefusedOp, Replaced, Verdict, cases, check};
use model::Model;
use serde_json::{Value, json};

use crate::machine::{Accelerator, Machine};
use crate::notice::{Notice, Observer, Task};
use crate::options::Computation;
use crate::speeds::Speeds;

/// What the self-test of a device found.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelNotice {
    /// Name of the device.
    pub device: String,
    /// The result, or why the test ended.
    pub result: Result<Verdict, String>,
}

impl KernelNotice {
    /// Whether every kernel was right.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.result.as_ref().is_ok_and(|v| v.replaced.is_empty() && v.refused.is_empty())
    }
}

impl fmt::Display for KernelNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        let verdict = match &self.result {
            Ok(verdict) => verdict,
            Err(why) => return write!(f, "{device}: its kernels could not be tested: {why}"),
        };
        let Verdict { n_cases, n_units, replaced, refused, .. } = verdict;
        if self.is_clean() {
            let files = if *n_units == 0 { String::new() } else { format!(" of {n_units} files") };
            return write!(f, "{device}: the kernels{files} pass {n_cases} tests");
        }
        write!(f, "{device}: wrong in the self-test: ")?;
        let replaced = replaced
            .iter()
            .map(|Replaced { unit, reason }| format!("{unit} ({reason}), now replaced"));
        let refused = refused
            .iter()
            .map(|RefusedOp { kind, reason }| format!("{kind} ({reason}), not run on this device"));
        f.write_str(&replaced.chain(refused).collect::<Vec<_>>().join("; "))
    }
}

impl Machine {
    /// Tests the kernels with which the devices run `model`, or applies the cached result.
    pub(crate) fn test_kernels(
        &self,
        model: &Model,
        settings: &EngineOptions,
        computation: &Computation,
        observer: &dyn Observer,
    ) {
        let devices = self.devices();
        let tested = |other: &&Accelerator| {
            let switches = computation.devices.switches.of(&other.candidate.name);
            self.tests_devices() && other.assumed.is_none() && switches.self_test != Some(false)
        };
        let mut others = self.others.iter().filter(tested).peekable();
        if others.peek().is_none() {
            return;
        }
        let cases = cases(engine::programs(model, &devices, settings));
        let mut kept = Speeds::open(computation.folder(), computation.devices.remeasure);
        for other in others {
            let key = key(&other.device, &cases);
            if !other.first_test(&key) {
                continue;
            }
            let result = match kept.verdict(&key) {
                Some(verdict) => Ok(verdict),
                None => self.test_device(other, &cases, observer).inspect(|verdict| {
                    kept.keep_verdict(key, verdict);
                }),
            };
            if let Ok(verdict) = &result {
                verdict.apply(&other.device);
            }
            let device = other.candidate.name.clone();
            let result = result.map_err(|error| error.to_string());
            observer.notice(&Notice::Kernels(KernelNotice { device, result }));
        }
        kept.save(observer);
    }

    /// Runs the cases, with ledgers that are empty again afterwards.
    fn test_device(
        &self,
        other: &Accelerator,
        cases: &[Case],
        observer: &dyn Observer,
    ) -> hal::Result<Verdict> {
        let cpu = Device::new(Arc::clone(self.cpu_backend()), DeviceId(0), Bytes::MAX);
        let device = Device::new(Arc::clone(other.backend()), DeviceId(1), Bytes::MAX);
        let progress = |n_done: usize| {
            observer.progress(Task::Test, Bytes(n_done as u64), Bytes(cases.len() as u64));
        };
        let verdict = check(&device, &cpu, cases, &progress);
        progress(cases.len());
        verdict
    }
}

/// The key of the cached result: device, driver, kernels, and what was tested. It leaves out how work
/// is submitted, which is measured at each start.
fn key(device: &Device, cases: &[Case]) -> String {
    let info = device.info();
    let tests = format!("{cases:?}").bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let version = device.version();
    format!("{} | {} | {version} | self-test {tests:016x}", info.name, info.description)
}

/// A result as JSON, as it is cached and reported.
#[must_use]
pub fn verdict_value(verdict: &Verdict) -> Value {
    let Verdict { n_cases, n_units, avoided, replaced, refused } = verdict;
    let replaced: Vec<_> = replaced.iter().map(|r| json!([r.unit, r.reason])).collect();
    let refused: Vec<_> = refused.iter().map(|r| json!([r.kind, r.reason])).collect();
    json!({
        "cases": n_cases,
        "units": n_units,
        "avoided": avoided,
        "replaced": replaced,
        "refused": refused,
    })
}

/// Parses a cached result; `None` if it is invalid.
pub(crate) fn read_verdict(value: &Value) -> Option<Verdict> {
    let number = |name: &str| usize::try_from(value.get(name)?.as_u64()?).ok();
    let pairs = |name: &str| {
        let pair = |pair: &Value| {
            let text = |i: usize| Some(pair.get(i)?.as_str()?.to_owned());
            Some((text(0)?, text(1)?))
        };
        value.get(name)?.as_array()?.iter().map(pair).collect::<Option<Vec<_>>>()
    };
    let avoided = value.get("avoided")?.as_array()?.iter();
    let replaced = pairs("replaced")?.into_iter();
    let refused = pairs("refused")?.into_iter();
    Some(Verdict {
        n_cases: number("cases")?,
        n_units: number("units")?,
        avoided: avoided.map(|unit| Some(unit.as_str()?.to_owned())).collect::<Option<_>>()?,
        replaced: replaced.map(|(unit, reason)| Replaced { unit, reason }).collect(),
        refused: refused.map(|(kind, reason)| RefusedOp { kind, reason }).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_survives_the_cache_and_says_what_is_wrong() {
        let replaced = Replaced { unit: "norm".to_owned(), reason: "y[3] is 1".to_owned() };
        let refused = RefusedOp { kind: "MatMul of Q4_0".to_owned(), reason: "y[7]".to_owned() };
        let verdict = Verdict {
            n_cases: 9,
            n_units: 5,
            avoided: vec!["norm".to_owned()],
            replaced: vec![replaced],
            refused: vec![refused],
        };
        assert_eq!(read_verdict(&verdict_value(&verdict)), Some(verdict.clone()));
        for wrong in [json!({}), json!({ "cases": 1, "units": 1, "replaced": [[1]] })] {
            assert_eq!(read_verdict(&wrong), None);
        }
        let notice = |result| KernelNotice { device: "CUDA0".to_owned(), result };
        let text = notice(Ok(verdict)).to_string();
        assert!(text.contains("norm (y[3] is 1), now replaced"), "{text}");
        assert!(text.contains("MatMul of Q4_0 (y[7]), not run on this device"), "{text}");
        let clean = notice(Ok(Verdict { n_cases: 9, n_units: 5, ..Verdict::default() }));
        assert!(clean.is_clean() && clean.to_string().contains("5 files pass 9 tests"));
        assert!(!notice(Err("lost".to_owned())).is_clean());
    }
}
