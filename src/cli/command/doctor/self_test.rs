//! Runs the built-in model on a device, and compares its words with the CPU's.

use crate::cli::folders::this_program;
use crate::placement::PlacementPolicy;
use runtime::{
    Computation, DeviceOptions, DeviceSwitches, KernelNotice, Model, Notice, Observer, Options,
    SamplerConfig, Settings,
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Long enough that prefill uses the kernels for several tokens, and that decode reads a cache.
const PROMPT: &str = "Once upon a time, there was a little girl named Lily. She loved to play \
    outside in the park with her dog Max. One day, Lily and Max found a big red ball under a tree. \
    They were very happy and";
/// Generated tokens.
const N_TOKENS: usize = 32;

/// The text that a device generates.
pub(super) struct Words {
    text: String,
    /// Time to load the model, and to compile kernels that are not cached.
    load: Duration,
    /// Time per generated token, prefill included.
    per_token: Duration,
    /// What the self-test of the device's kernels found.
    kernels: Option<KernelNotice>,
}

/// Keeps the notice about the device's kernels.
#[derive(Default)]
struct KernelObserver(Mutex<Option<KernelNotice>>);

impl Observer for KernelObserver {
    fn notice(&self, notice: &Notice) {
        if let Notice::Kernels(kernels) = notice {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(kernels.clone());
        }
    }
}

impl Words {
    /// The built-in model, run on the CPU alone, or with all layers on `device`.
    ///
    /// # Errors
    /// Why the model cannot run there.
    pub(super) fn of(device: Option<&str>, switches: &DeviceSwitches) -> Result<Words, String> {
        let mut devices = DeviceOptions {
            switches: switches.clone(),
            compiler: this_program(),
            ..DeviceOptions::default()
        };
        match device {
            Some(name) => {
                devices.named = Some(vec![name.to_owned()]);
                devices.constraints.policy = PlacementPolicy::Layers;
                devices.constraints.whole_layers = Some(usize::MAX);
            }
            None => devices.backend = Some("cpu"),
        }
        let computation = Computation { devices, ..Computation::default() };
        let options = Options { computation, ..Options::default() };
        generate(&options).map_err(|error| error_text(&error))
    }
}

fn generate(options: &Options) -> runtime::Result<Words> {
    let began = Instant::now();
    let observer = Arc::new(KernelObserver::default());
    let mut model = Model::open_observed(None, options, Arc::clone(&observer) as _)?;
    let mut sequence = model.sequence();
    let settings = Settings { n_predict: Some(N_TOKENS), ..Settings::default() };
    let greedy = SamplerConfig { temp: 0.0, ..SamplerConfig::default() };
    let prompt = model.encode(PROMPT)?;
    let load = began.elapsed();
    let began = Instant::now();
    let mut text = String::new();
    for token in model.generate(&mut sequence, &prompt, &greedy, &settings)? {
        text += &token?.text;
    }
    let per_token = began.elapsed() / N_TOKENS as u32;
    let kernels = observer.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(Words { text, load, per_token, kernels })
}

/// An error with its causes, in one line.
fn error_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// How a device's words compare with the CPU's.
pub(super) enum SelfTest {
    Passed {
        load: Duration,
        per_token: Duration,
        kernels: Option<KernelNotice>,
    },
    /// The words of the CPU, and those of the device.
    Differs {
        cpu: String,
        device: String,
        kernels: Option<KernelNotice>,
    },
    Failed(String),
}

impl SelfTest {
    /// Runs the built-in model on the CPU, whose words are `cpu`, and on `device`.
    pub(super) fn run(cpu: &Words, device: &str, switches: &DeviceSwitches) -> SelfTest {
        match Words::of(Some(device), switches) {
            Ok(Words { text, load, per_token, kernels }) if text == cpu.text => {
                SelfTest::Passed { load, per_token, kernels }
            }
            Ok(Words { text, kernels, .. }) => {
                SelfTest::Differs { cpu: cpu.text.clone(), device: text, kernels }
            }
            Err(why) => SelfTest::Failed(why),
        }
    }

    /// What the test of single kernels found; `None` if the model was not loaded.
    pub(super) fn kernels(&self) -> Option<&KernelNotice> {
        match self {
            SelfTest::Passed { kernels, .. } | SelfTest::Differs { kernels, .. } => {
                kernels.as_ref()
            }
            SelfTest::Failed(_) => None,
        }
    }

    pub(super) fn line(&self) -> String {
        match self {
            SelfTest::Passed { load, .. } => format!(
                "self-test: {N_TOKENS} tokens of the built-in model are the CPU's, after {:.1} s of loading",
                load.as_secs_f64()
            ),
            SelfTest::Differs { cpu, device, .. } => format!(
                "self-test FAILED: the built-in model continues {device:?}, on the CPU {cpu:?}; do not use this device, or turn off its features one by one (--device-options)"
            ),
            SelfTest::Failed(why) => format!("self-test FAILED: {why}"),
        }
    }

    pub(super) fn json(&self) -> Value {
        let mut value = self.words_value();
        value["kernels"] = json!(self.kernels().map(|kernels| match &kernels.result {
            Ok(verdict) => runtime::verdict_value(verdict),
            Err(error) => json!({ "error": error }),
        }));
        value
    }

    fn words_value(&self) -> Value {
        match self {
            SelfTest::Passed { load, per_token, .. } => json!({
                "passed": true,
                "tokens": N_TOKENS,
                "load_seconds": load.as_secs_f64(),
                "seconds_per_token": per_token.as_secs_f64(),
            }),
            SelfTest::Differs { cpu, device, .. } => {
                json!({ "passed": false, "cpu": cpu, "device": device })
            }
            SelfTest::Failed(why) => json!({ "passed": false, "error": why }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_passes_with_the_words_of_the_cpu_alone() {
        let none = DeviceSwitches::default();
        let cpu = Words::of(None, &none).unwrap();
        assert!(cpu.text.len() > 40, "{}", cpu.text);
        assert!(
            matches!(SelfTest::run(&cpu, "Missing0", &none), SelfTest::Failed(why) if why.contains("Missing0"))
        );
        // The CPU as the device under test.
        let passed = SelfTest::run(&cpu, "cpu", &none);
        assert!(matches!(passed, SelfTest::Passed { .. }), "{}", passed.line());
        let other = Words { text: "Nothing.".to_owned(), ..cpu };
        let differs = SelfTest::run(&other, "cpu", &none);
        assert!(differs.line().contains("Nothing."), "{}", differs.line());
        assert_eq!(differs.json()["passed"], false);
    }
}
