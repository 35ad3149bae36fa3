//! The verdict at the head of the report: whether the model runs on this machine, what it skips,
//! the memory it needs, and how fast it would be. Nothing is loaded or measured.

use super::Facts;
use super::text::{bytes, parameters};
use crate::chat::Templates;
use crate::cli::failure::Failure;
use crate::cli::folders::cache_folder;
use crate::engine::{EngineOptions, PlannerInputs, forecast};
use crate::model::Model;
use hal::MemoryReport;
use runtime::{Computation, Opened, Options, Runtime, SilentObserver, activation_name};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// What a user wants to know before running a model.
pub(super) struct Verdict {
    /// Why the model cannot run here; `None` if it can.
    refused: Option<String>,
    /// Architecture and sizes.
    model: String,
    /// File size and bits per weight.
    size: String,
    /// Which neurons are skipped; empty if the model is not supported.
    skips: String,
    template: &'static str,
    run: Option<PlannedRun>,
}

/// How a run with default settings would be.
struct PlannedRun {
    /// Bytes of host memory that the run needs.
    needed: u64,
    memory: MemoryReport,
    n_ctx: usize,
    /// Tokens per second; `None` if the speeds of the devices are not cached.
    rate: Option<f64>,
    /// Names of the devices other than the CPU.
    devices: Vec<String>,
}

impl Verdict {
    pub(super) fn new(path: Option<&Path>, facts: &Facts<'_>) -> Verdict {
        let template = match Templates::from_metadata(facts.file.metadata()) {
            Ok(templates) if templates.default_source().is_some() => "yes, `chat` uses it",
            Ok(_) => "none: `chat` writes turns as plain text, `run` continues a text",
            Err(_) => "invalid: --chat-template selects another one",
        };
        let (skips, run, refused) = match plan(path) {
            Ok((opened, run)) => {
                let why = run.as_ref().err().map(reason);
                (skips(&opened.model, facts), run.ok(), why)
            }
            Err(failure) => (String::new(), None, Some(reason(&failure))),
        };
        Verdict { refused, model: model(facts), size: size(facts), skips, template, run }
    }

    /// Whether the model runs.
    pub(super) fn sentence(&self, file: &str) -> String {
        let name = Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
        match (&self.refused, &self.run) {
            (Some(why), _) => format!("{name} does not run here: {why}"),
            (None, Some(run)) if run.exceeds(run.memory.total.map(|bytes| bytes.0)) => {
                format!("{name} runs here, but slowly: it is larger than the memory")
            }
            (None, _) => format!("{name} runs here"),
        }
    }

    /// The other lines: label and text.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("model", self.model.clone()), ("weights", self.size.clone())];
        if !self.skips.is_empty() {
            lines.push(("skips", self.skips.clone()));
        }
        lines.push(("chat template", self.template.to_owned()));
        if let Some(run) = &self.run {
            lines.push(("memory", run.memory_line()));
            lines.push(("expected speed", run.speed_line()));
        }
        lines
    }

    pub(super) fn json(&self) -> Value {
        let run = self.run.as_ref();
        json!({
            "runs": self.refused.is_none(),
            "why_not": self.refused,
            "model": self.model,
            "weights": self.size,
            "skips": self.skips,
            "chat_template": self.template.starts_with("yes"),
            "memory_needed_bytes": run.map(|run| run.needed),
            "memory_free_bytes": run.and_then(|run| run.memory.free).map(|bytes| bytes.0),
            "n_ctx": run.map(|run| run.n_ctx),
            "tokens_per_second": run.and_then(|run| run.rate),
        })
    }
}

impl PlannedRun {
    fn exceeds(&self, memory: Option<u64>) -> bool {
        memory.is_some_and(|memory| self.needed > memory)
    }

    fn memory_line(&self) -> String {
        let needed = bytes(self.needed.into());
        let n_ctx = self.n_ctx;
        let have = match (self.memory.free, self.memory.total) {
            (Some(free), Some(total)) => format!("; {free} of {total} are free"),
            (Some(free), None) => format!("; {free} are free"),
            (None, Some(total)) => format!("; the machine has {total}"),
            (None, None) => String::new(),
        };
        format!("{needed} with the default context of {n_ctx} tokens{have}")
    }

    fn speed_line(&self) -> String {
        let devices = match &self.devices[..] {
            [] => "on the CPU".to_owned(),
            names => format!("on the CPU and {}", names.join(", ")),
        };
        match self.rate {
            Some(rate) if rate < 10.0 => format!("about {rate:.1} tokens/s {devices}"),
            Some(rate) => format!("about {rate:.0} tokens/s {devices}"),
            None => "unknown: `thermocline plan -m FILE` measures this machine once".to_owned(),
        }
    }
}

/// The model, and how it would run; an error if it cannot.
fn plan(path: Option<&Path>) -> Result<(Opened, Result<PlannedRun, Failure>), Failure> {
    let computation = Computation { cache: cache_folder(None), ..Computation::default() };
    let options = Options { computation, ..Options::default() };
    let observer = Arc::new(SilentObserver);
    let runtime = Runtime::new(options.clone(), Arc::clone(&observer) as _)
        .unwrap_or_else(|_| Runtime::cpu(options, observer));
    let opened = runtime.open(path)?;
    let run = planned_run(&runtime, &opened.model);
    Ok((opened, run))
}

fn planned_run(runtime: &Runtime, model: &Model) -> Result<PlannedRun, Failure> {
    let speeds = runtime.known_speeds(model);
    let inputs = PlannerInputs {
        speeds: speeds.clone().unwrap_or_default(),
        uses: runtime.known_uses(model),
        constraints: runtime.options().computation.devices.constraints,
        ..PlannerInputs::default()
    };
    let n_ctx = match speeds {
        Some(_) => runtime.context(model, &inputs),
        None => runtime.fixed_context(None, model),
    };
    let settings = EngineOptions { placing: inputs, ..runtime.settings(model, n_ctx) };
    let settings = runtime.with_side_file(model, settings)?;
    let machine = runtime.machine();
    let forecast = forecast(model, &machine.devices(), &settings);
    let need = runtime.need(model, &settings, &forecast);
    let memory = runtime::memory_for(model, hal::Bytes(0));
    let computation = &runtime.options().computation;
    need.check(memory, n_ctx, computation, runtime.observer().as_ref())?;
    Ok(PlannedRun {
        needed: need.total().0,
        memory,
        n_ctx,
        rate: speeds.map(|_| forecast.rate()),
        devices: machine.others.iter().map(|other| other.candidate.name.clone()).collect(),
    })
}

/// A failure on one line.
fn reason(failure: &Failure) -> String {
    let causes = failure.causes.join(": ");
    if causes.is_empty() { failure.message.clone() } else { causes }
}

/// Architecture and sizes, such as `llama, 32 layers of 11008 neurons, 6.74 B parameters`.
fn model(facts: &Facts<'_>) -> String {
    let value = |name: &str| {
        let found = facts.hyper.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.to_string())
    };
    let mut parts = vec![facts.architecture.clone().unwrap_or_else(|| "not stated".to_owned())];
    let experts = value("experts").filter(|n| n != "0");
    parts.extend(match (value("layers"), value("neurons per layer")) {
        // Layers may differ, and experts have another size.
        (Some(layers), Some(neurons)) if experts.is_none() && neurons.parse::<u64>().is_ok() => {
            Some(format!("{layers} layers of {neurons} neurons"))
        }
        (Some(layers), _) => Some(format!("{layers} layers")),
        (None, _) => None,
    });
    parts.extend(experts.map(|n| format!("{n} experts per layer")));
    parts.push(format!("{} parameters", parameters(facts.n_params)));
    parts.join(", ")
}

/// Bytes and bits of the weights, and the type with the most bytes.
fn size(facts: &Facts<'_>) -> String {
    let n_bytes: u128 = facts.types.values().map(|(_, bytes)| bytes).sum();
    let bits = 8.0 * n_bytes as f64 / facts.n_params.max(1) as f64;
    let mainly = facts.types.iter().max_by_key(|(_, (_, bytes))| *bytes);
    let mainly = mainly.map_or(String::new(), |(name, _)| format!(" (mainly {name})"));
    format!("{}, {bits:.2} bits per weight{mainly}", bytes(n_bytes))
}

/// Which neurons and experts are not computed.
fn skips(model: &Model, facts: &Facts<'_>) -> String {
    let activation = activation_name(model);
    let mut parts = Vec::new();
    if let Some(experts) = model.experts() {
        parts.push(format!("all but {} of {} experts for each token", experts.n_used, experts.n));
    }
    let density = facts.profile.as_ref().and_then(|profile| profile.as_ref().ok());
    let density = density.map(|known| 100.0 * known.profile.summary().density);
    parts.push(if model.blocks().next().is_none() {
        "nothing: the model has no feed-forward blocks".to_owned()
    } else if !facts.predictor.is_empty() {
        "neurons that the file's predictor excludes; --sparsity exact skips without any loss"
            .to_owned()
    } else if model.is_exactly_sparse() {
        let share = density.map_or(String::new(), |density| {
            format!("; a token needs about {density:.0} % of them")
        });
        format!("neurons whose {activation} is 0, without any loss{share}")
    } else {
        format!("no neurons by default ({activation} has no exact zeros); --sparsity balanced skips the least important")
    });
    parts.join("; ")
}
