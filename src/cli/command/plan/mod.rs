//! `thermocline plan`: where a model would be, what that takes, how fast it would be, and why. Nothing is loaded; it
//! is the plan that `run`, `bench` and all else follow.

mod json;
mod svg;
mod text;

use super::engine::{self, Machine};
use crate::cli::config::PlanOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::terminal::Terminal;
use crate::engine::{EngineOptions, Placing};
use crate::model::Model;
use crate::placement::{Forecast, Speed, plan, plan_whole_layers};
use hal::{Bytes, DeviceKind};
use std::path::Path;
use std::sync::Arc;

/// Prints the plan.
///
/// # Errors
/// A model that cannot be run; devices that are not there; where the picture or standard output cannot be written.
pub(crate) fn run(options: &PlanOptions, terminal: &Terminal) -> Result<(), Failure> {
    let machine = match options.assumed.is_empty() {
        true => Machine::new(&options.model, terminal)?,
        false => Machine::assume(&options.model, &options.assumed, terminal)?,
    };
    let computation = &options.model.computation;
    let path = options.model.path.as_deref();
    let opened = engine::open(path, computation, &machine.cpu, terminal)?;
    let model = opened.model;
    let report = Report::new(options, &machine, model, terminal);
    if let Some(path) = &options.svg {
        write(path, &svg::picture(&report))?;
    }
    let mut out = Output::stdout();
    match options.json {
        true => out.line(&format!("{:#}", json::report(&report)))?,
        false => out.write(text::report(&report))?,
    }
    out.flush()
}

/// Everything that is told of a plan.
struct Report {
    model: Arc<Model>,
    n_ctx: usize,
    /// Tokens in the context for which the time is estimated.
    n_past: usize,
    /// The share of the neurons that a token uses; `None` where all of them are.
    density: Option<f64>,
    devices: Vec<Device>,
    forecast: Forecast,
    /// Whole layers only, with the same budgets.
    whole_layers: Forecast,
    /// Without any device.
    cpu_alone: Forecast,
    /// With as much memory as everything takes.
    all_fits: Forecast,
    notes: Vec<String>,
}

/// A device of the plan.
struct Device {
    name: String,
    description: String,
    speed: Speed,
    /// `None` for the CPU and where there is no limit.
    budget: Option<Bytes>,
    /// What is left to its driver.
    reserve: Bytes,
    /// Bytes of weights and cache here, where this is the CPU.
    on_cpu: Option<Bytes>,
}

impl Report {
    fn new(
        options: &PlanOptions,
        machine: &Machine,
        model: Arc<Model>,
        terminal: &Terminal,
    ) -> Report {
        let computation = &options.model.computation;
        let mut placing = machine.placing(&model, computation, terminal);
        if placing.speeds.is_empty() {
            placing.speeds = machine.measured(&model, computation, terminal);
        }
        if let Some(density) = options.density {
            placing.density = density;
        }
        let n_ctx = engine::context(&options.model, &model, machine, &placing, terminal);
        let settings = EngineOptions { placing, ..engine::settings(&options.model, n_ctx) };
        let task = crate::engine::task(&model, &machine.devices(), &settings);
        let forecast = plan(&task);
        let with = |budget: Bytes| {
            let mut task = task.clone();
            task.devices.iter_mut().for_each(|device| device.budget = budget);
            plan(&task)
        };
        let skips = model.is_exactly_sparse() && settings.sparsity != crate::engine::Sparsity::Off;
        let notes = notes(machine, &forecast, &settings, skips);
        Report {
            n_ctx,
            n_past: crate::engine::assumed_past(&settings),
            density: skips.then_some(settings.placing.density),
            devices: devices(machine, &model, &forecast, &settings.placing),
            whole_layers: plan_whole_layers(&task),
            cpu_alone: with(Bytes(0)),
            all_fits: with(Bytes::MAX),
            forecast,
            model,
            notes,
        }
    }

    /// The name of the device with this number.
    fn device(&self, number: usize) -> &str {
        self.devices.get(number).map_or("", |device| &device.name)
    }

    /// What decides the speed, in sentences.
    fn why(&self) -> Vec<String> {
        let rate = |forecast: &Forecast| format!("{:.1} tokens/s", forecast.rate());
        let Forecast { seconds, parts, placement, .. } = &self.forecast;
        let mut why = Vec::new();
        if self.devices.len() == 1 {
            why.push("there is no device beside the CPU: what its memory delivers decides".into());
            return why;
        }
        let share = |part: f64| 100.0 * part / seconds;
        let parts = [
            ("the CPU", parts.cpu, "more device memory would take work from it"),
            ("the devices", parts.devices, "what their memory delivers decides"),
            ("hand-offs", parts.hand_offs, "fewer split layers would not be faster: tried"),
        ];
        if let Some((name, part, so)) = parts.iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
            why.push(format!("{:.0} % of a token's time is {name}: {so}", share(*part)));
        }
        let n_split = placement.n_split();
        let beside = match n_split {
            0 => "no layer is split: with every number of split layers it would be slower, or not fit".to_owned(),
            n => format!("{n} layers are split: other numbers would be slower, or not fit"),
        };
        why.push(format!(
            "{beside}; whole layers only reach {}, the CPU alone {}",
            rate(&self.whole_layers),
            rate(&self.cpu_alone)
        ));
        if self.all_fits.seconds < 0.999 * seconds {
            let needed: Bytes = self.all_fits.devices.iter().map(|bytes| bytes.total()).sum();
            why.push(format!(
                "with {needed} of device memory it would be {}",
                rate(&self.all_fits)
            ));
        }
        why
    }
}

fn notes(
    machine: &Machine,
    forecast: &Forecast,
    settings: &EngineOptions,
    skips: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    if skips && settings.placing.uses.is_none() {
        notes.push(format!(
            "a token is taken to use {:.0} % of the neurons (--density sets it)",
            100.0 * settings.placing.density
        ));
        if forecast.placement.n_split() > 0 {
            notes.push(engine::NO_PROFILE.to_owned());
        }
    }
    let unified =
        machine.others.iter().filter(|other| other.device.info().kind == DeviceKind::Integrated);
    notes.extend(unified.map(|other| {
        format!("{} shares its memory with the CPU: no layer is split there", other.candidate.name)
    }));
    if settings.placing.wishes.cache_on_cpu {
        notes.push("--no-kv-offload: attention is where its cache is, so layers stay on the CPU and only the head can be elsewhere".to_owned());
    }
    notes
}

fn devices(
    machine: &Machine,
    model: &Model,
    forecast: &Forecast,
    placing: &Placing,
) -> Vec<Device> {
    let elsewhere: Bytes =
        forecast.devices.iter().map(|bytes| bytes.frames + bytes.neurons + bytes.ends).sum();
    let cpu = Device {
        name: machine.cpu.info().name.clone(),
        description: machine.cpu.info().description.clone(),
        speed: placing.speed(0),
        budget: None,
        reserve: Bytes(0),
        on_cpu: Some(Bytes(model.file.size_bytes()) - elsewhere),
    };
    let others = machine.others.iter().enumerate().map(|(i, other)| Device {
        name: other.candidate.name.clone(),
        description: other.candidate.description.clone(),
        speed: placing.speed(i + 1),
        budget: Some(other.budget).filter(|budget| *budget != Bytes::MAX),
        reserve: other.reserve(),
        on_cpu: None,
    });
    [cpu].into_iter().chain(others).collect()
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        let message = format!("cannot write the picture to '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&error)
    })
}
