//! `thermocline plan`: prints where a model would be placed, the memory this takes, how fast the
//! model would run, and why. Nothing is loaded. Commands that run a model use the same plan.

mod json;
mod memory;
mod prompts;
mod svg;
mod text;
mod tiers;

use crate::cli::args::{PlanArgs, Shape};
use crate::cli::failure::Failure;
use crate::cli::output::{Output, write_file};
use crate::cli::progress;
use crate::cli::terminal::Terminal;
use crate::engine::{EngineOptions, ExchangeNeeds, PlannerInputs};
use crate::model::Model;
use crate::placement::{
    Forecast, LayerPlacement, PlacementPolicy, PlanConstraints, Speed, exchange, plan,
    plan_for_decode, plan_whole_layers,
};
use hal::{Bytes, MemoryReport};
use indicatif::ProgressBar;
use memory::ItemizedMemory;
use runtime::{Machine, Notice, Runtime};
use std::path::Path;
use std::sync::Arc;
use tiers::{DiskCosts, PlanTiers};

/// Prints the plan and, with `--svg`, writes its plot.
///
/// # Errors
/// A model that cannot be run; devices that are not available; the plot or standard output cannot
/// be written.
pub(crate) fn run(args: &PlanArgs, terminal: &Terminal) -> Result<(), Failure> {
    let (run, observer) = (args.model.options(), terminal.observer());
    let runtime = match &args.assume[..] {
        [] => Runtime::new(run, observer)?,
        assumed => Runtime::assume(run, assumed, observer)?,
    };
    let model = match &args.shape {
        Some(shape) => runtime.open_shapes(shape.file(args.shape_type)?)?,
        None => runtime.open(args.model.model.as_deref())?.model,
    };
    let bar = match runtime.known_speeds(&model) {
        Some(_) => None,
        None => Some(progress::timer(terminal, "measuring the devices")),
    };
    let report = Report::new(args, &runtime, model);
    bar.inspect(ProgressBar::finish_and_clear);
    let report = report?;
    if let Some(path) = &args.svg {
        write_file(path, &svg::picture(&report))?;
        terminal.note(&format!("the plot is in '{}'", path.display()));
    }
    let mut out = Output::stdout();
    if args.json {
        out.line(&format!("{:#}", json::report(&report)))?
    } else {
        out.write(text::report(&report))?
    }
    out.flush()
}

/// The contents of a plan's report.
struct Report {
    /// See [`name_of`].
    name: String,
    model: Arc<Model>,
    n_ctx: usize,
    /// Tokens in the context assumed for the estimated time.
    n_past: usize,
    /// Fraction of the neurons that a token activates; `None` if every neuron is computed.
    density: Option<f64>,
    devices: Vec<Device>,
    forecast: Forecast,
    memory: ItemizedMemory,
    /// What is on disk, and what that costs. All forecasts include it.
    disk: PlanTiers,
    /// Alternative: whole layers only, with the same budgets.
    whole_layers: Forecast,
    /// Alternative: the fastest decode with the same budgets, even if prefill is slower.
    for_tokens: Forecast,
    /// Alternative: only the CPU.
    cpu_alone: Forecast,
    /// Alternative: enough device memory for the whole model.
    all_fits: Forecast,
    constraints: PlanConstraints,
    /// Whether some device supports split layers.
    can_split: bool,
    /// Memory needed to swap neurons at run time; `None` if no layer swaps neurons.
    exchange: Option<ExchangeNeeds>,
    /// Facts that decide whether weights on the CPU are streamed during prefill.
    streams: prompts::StreamingInfo,
    /// Host memory that a run needs.
    needed: Bytes,
    host_memory: MemoryReport,
    /// Why loading would fail; `None` if it would not.
    refused: Option<String>,
    notes: Vec<String>,
}

struct Device {
    name: String,
    description: String,
    speed: Speed,
    /// `None` for the CPU and without a limit.
    budget: Option<Bytes>,
    /// The driver's reserve in bytes, at most the budget.
    reserve: Bytes,
    /// The driver's reserve in bytes, whatever the budget.
    driver: Bytes,
}

impl Report {
    fn new(args: &PlanArgs, runtime: &Runtime, model: Arc<Model>) -> Result<Report, Failure> {
        let machine = runtime.machine();
        let mut placing = runtime.placing(&model);
        if placing.speeds.is_empty() {
            placing.speeds = runtime.measured_speeds(&model);
        }
        if placing.uses.is_none() {
            placing.uses = runtime.known_uses(&model);
        }
        if let Some(density) = args.density {
            placing.density = density;
        }
        let n_ctx = runtime.context(&model, &placing);
        let settings = EngineOptions { placing, ..runtime.settings(&model, n_ctx) };
        let settings = runtime.with_side_file(&model, settings)?;
        let task = crate::engine::task(&model, &machine.devices(), &settings);
        let forecast = plan(&task);
        let with = |budget: Bytes| {
            let mut task = task.clone();
            task.devices.iter_mut().for_each(|device| device.budget = budget);
            plan(&task)
        };
        let skips = model.is_exactly_sparse() && settings.sparsity != crate::engine::Sparsity::Off;
        let mut notes = notes(machine, &forecast, &settings, skips);
        notes.extend(unused_density(args, skips, settings.placing.uses.is_some()));
        let computation = &runtime.options().computation;
        if args.assume.is_empty() {
            notes.extend(speeds_note(runtime, &model));
        }
        let need = runtime.need(&model, &settings, &forecast);
        let host_memory = machine.host_memory();
        let costs = DiskCosts::new(runtime, &model, &settings);
        let (timed, disk, refused) = costs.main(forecast.clone(), &task);
        let checked = match disk.tiers {
            Some(_) => Ok(()),
            None => need.check(host_memory, n_ctx, computation, runtime.observer().as_ref()),
        };
        let refused = refused.or(checked.err().map(tiers::why));
        notes.extend(refused.as_ref().map(|why| format!("loading would fail: {why}")));
        let exchange =
            crate::engine::exchange_needs(&model, &machine.devices(), &settings, &forecast);
        notes.extend(exchange.map(exchange_note));
        let slower = runtime::slower_placement(&forecast, &model, &machine.devices(), &settings);
        notes.extend(slower.map(|notice| notice.to_string()));
        let placement = &forecast.placement;
        let host = crate::engine::host_bytes(&model, &machine.devices(), &settings, placement);
        Ok(Report {
            name: name_of(args, &model),
            n_ctx,
            n_past: crate::engine::assumed_past(&settings),
            density: skips.then(|| density(&settings.placing)),
            devices: devices(machine, &settings.placing),
            memory: ItemizedMemory::new(&task, &forecast, host),
            whole_layers: costs.alternative(plan_whole_layers(&task)),
            for_tokens: costs.alternative(plan_for_decode(&task)),
            cpu_alone: costs.alternative(with(Bytes(0))),
            all_fits: costs.alternative(with(Bytes::MAX)),
            constraints: settings.placing.constraints,
            can_split: machine
                .others
                .iter()
                .any(|other| other.device.info().hand_off && other.has_own_memory()),
            forecast: timed,
            disk,
            streams: prompts::StreamingInfo::new(
                &task,
                settings.predicts(&model),
                model.experts().is_some(),
            ),
            model,
            exchange,
            needed: need.total(),
            host_memory,
            refused,
            notes,
        })
    }

    /// The name of the device with this number.
    fn device(&self, number: usize) -> &str {
        self.devices.get(number).map_or("", |device| &device.name)
    }

    /// Bytes that `forecast` needs on all devices together, including the reserves of the drivers
    /// in use.
    fn budget_of(&self, forecast: &Forecast) -> Bytes {
        let all = self.devices.iter().zip(&forecast.devices);
        let used = all.map(|(device, bytes)| (device.driver, bytes.total()));
        used.filter(|(_, here)| *here > Bytes(0)).map(|(driver, here)| driver + here).sum()
    }

    /// Sentences that say what limits the speed.
    fn limit_reasons(&self) -> Vec<String> {
        let rate = |forecast: &Forecast| format!("{} tokens/s", shown_rate(forecast.rate(), 1));
        let Forecast { seconds, parts, placement, .. } = &self.forecast;
        let mut why = Vec::new();
        let share = |part: f64| 100.0 * part / seconds;
        if self.devices.len() == 1 {
            why.push(if self.limit() == "disk" && seconds.is_finite() {
                format!(
                    "{:.0} % of a token's time goes to the disk: more memory or a faster disk is faster",
                    share(parts.disk)
                )
            } else {
                "the CPU is the only device: its memory bandwidth is the limit".to_owned()
            });
            return why;
        }
        let more_helps = self.all_fits.seconds < 0.999 * seconds;
        let of_cpu = if more_helps {
            "with more memory, devices would take over some of its work"
        } else {
            "its memory bandwidth is the limit"
        };
        let parts = [
            ("the CPU", parts.cpu, of_cpu),
            ("the devices", parts.devices, "their memory bandwidth is the limit"),
            ("hand-offs", parts.hand_offs, "fewer split layers would not be faster"),
            ("the disk", parts.disk, "more memory or a faster disk is faster"),
        ];
        let longest = parts.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((name, part, so)) = longest.filter(|_| seconds.is_finite()) {
            why.push(format!("{:.0} % of a token's time goes to {name}: {so}", share(*part)));
        }
        let n_split = placement.n_split();
        let slower = match prompts::decode_cost(self) {
            Some(_) => "decode or prefill would be slower, or the model would not fit",
            None => "decode would be slower, or the model would not fit",
        };
        let beside = match n_split {
            0 if self.constraints.policy == PlacementPolicy::Layers => {
                "no layer is split: --placement layers places whole layers only".to_owned()
            }
            0 if self.constraints.policy == PlacementPolicy::Fill => {
                "no layer is split: the budget holds only whole layers, or none".to_owned()
            }
            n if self.constraints.policy == PlacementPolicy::Fill => {
                format!("{n} layers are split: --placement fill spends the whole budget")
            }
            0 if self.constraints.whole_layers.is_some() => {
                "no layer is split: -ngl places whole layers only".to_owned()
            }
            0 if self.constraints.cache_on_cpu => {
                "no layer is split: the KV caches are on the CPU".to_owned()
            }
            0 if !self.can_split => "no layer is split: no device supports split layers".to_owned(),
            0 => format!("no layer is split: with split layers, {slower}"),
            n => format!("split layers: {n}; with more or fewer, {slower}"),
        };
        why.push(format!(
            "{beside}; decode would reach {} with whole layers only, {} with the CPU alone",
            rate(&self.whole_layers),
            rate(&self.cpu_alone)
        ));
        if more_helps {
            why.push(format!(
                "with {} of device memory, decode would reach {}",
                rounded_up(self.budget_of(&self.all_fits)),
                rate(&self.all_fits)
            ));
        }
        why
    }
}

/// A rate with `decimals` decimals. A small rate gets more decimals, so that two significant digits
/// are shown.
fn shown_rate(rate: f64, decimals: usize) -> String {
    let wanted = if rate > 0.0 { (1.0 - rate.log10().floor()).clamp(0.0, 9.0) as usize } else { 0 };
    format!("{rate:.*}", decimals.max(wanted))
}

/// Rounds up to two decimals of the printed unit, so that the printed number is a sufficient
/// budget.
fn rounded_up(bytes: Bytes) -> Bytes {
    let units = std::iter::successors(Some(1u64), |unit| unit.checked_mul(1024));
    let unit = units.take_while(|unit| *unit <= bytes.0).last().unwrap_or(1);
    let hundredths = (u128::from(bytes.0) * 100).div_ceil(u128::from(unit));
    let whole = (hundredths * u128::from(unit)).div_ceil(100);
    Bytes(u64::try_from(whole).unwrap_or(u64::MAX))
}

/// What the model is called: its file without folders, or its shape.
fn name_of(args: &PlanArgs, model: &Model) -> String {
    match &args.shape {
        Some(Shape::Spec(spec)) => spec.to_string(),
        Some(Shape::Config(_)) | None => {
            let name = Path::new(model.file.name()).file_name().unwrap_or_default();
            name.to_string_lossy().into_owned()
        }
    }
}

/// Where measured speeds are cached; `None` if nothing was measured or the user measures again.
fn speeds_note(runtime: &Runtime, model: &Model) -> Option<String> {
    let computation = &runtime.options().computation;
    let folder = computation.folder().filter(|_| runtime.machine().is_measured());
    let path = folder.filter(|_| !computation.devices.remeasure)?.display();
    Some(if runtime.known_speeds(model).is_some() {
        format!(
            "speeds are measured once and cached in {path}; --reset-gpu-index measures them again"
        )
    } else {
        format!("speeds are measured each time: {path} cannot be written")
    })
}

/// Why `--density` has no effect; `None` if it has one or is not given.
fn unused_density(args: &PlanArgs, skips: bool, is_profiled: bool) -> Option<String> {
    args.density?;
    if !skips {
        return Some("--density has no effect: every neuron is computed".to_owned());
    }
    is_profiled.then(|| {
        "--density has no effect: the profile states how often each neuron fires".to_owned()
    })
}

/// The note on adapting the hot set.
fn exchange_note(needs: ExchangeNeeds) -> String {
    let ExchangeNeeds { n_layers, max_neurons, host, counters } = needs;
    match max_neurons {
        0 => "the hot set is not adapted: moving neurons to the device costs more than it gains"
            .to_owned(),
        _ => format!(
            "the hot set of {n_layers} layers adapts to the text: up to {max_neurons} neurons are swapped every {} tokens; this takes {counters} on each device for counters and {host} of host memory for weights (--no-adapt disables it)",
            exchange::DECISION_INTERVAL
        ),
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
            "a token is assumed to activate {:.0} % of the neurons (--density changes this)",
            100.0 * settings.placing.density
        ));
        if forecast.placement.n_split() > 0 {
            notes.push(Notice::NoProfile.to_string());
        }
    }
    let unified = machine.others.iter().filter(|other| !other.has_own_memory());
    notes.extend(unified.map(|other| {
        format!(
            "{} shares memory with the CPU, so no layer is split between them",
            other.candidate.name
        )
    }));
    let constraints = settings.placing.constraints;
    notes.extend(machine.others.iter().enumerate().filter_map(|(i, other)| {
        let is_here = |layer: &LayerPlacement| layer.home == i + 1;
        let is_empty = !forecast.placement.layers.iter().any(is_here);
        let why = other.why_empty(forecast.least[i + 1], constraints).filter(|_| is_empty)?;
        Some(format!("no layer is placed on {}: {why}", other.candidate.name))
    }));
    notes.extend(machine.unmet_options(forecast, &settings.placing));
    let assumed_defaults = machine.assumed_defaults();
    if !machine.others.is_empty() && !assumed_defaults.is_empty() {
        notes.push(format!(
            "assumed, because --assume does not set it: {}",
            assumed_defaults.join("; ")
        ));
    }
    if constraints.cache_on_cpu {
        notes.push("--no-kv-offload: attention runs where its KV cache is, so layers stay on the CPU and only the head can be on a device".to_owned());
    }
    notes
}

/// Fraction of the neurons that a token activates.
fn density(placing: &PlannerInputs) -> f64 {
    let Some(uses) = &placing.uses else { return placing.density };
    let (sum, n) = uses.iter().flatten().fold((0.0, 0), |(sum, n), p| (sum + f64::from(*p), n + 1));
    sum / f64::from(n.max(1))
}

/// The devices, the CPU first.
fn devices(machine: &Machine, placing: &PlannerInputs) -> Vec<Device> {
    let cpu = Device {
        name: machine.cpu.info().name.clone(),
        description: machine.cpu.info().description.clone(),
        speed: placing.speed(0),
        budget: None,
        reserve: Bytes(0),
        driver: Bytes(0),
    };
    let others = machine.others.iter().enumerate().map(|(i, other)| Device {
        name: other.candidate.name.clone(),
        description: other.candidate.description.clone(),
        speed: placing.speed(i + 1),
        budget: Some(other.budget).filter(|budget| *budget != Bytes::MAX),
        reserve: other.reserve(),
        driver: other.candidate.reserve,
    });
    [cpu].into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_keep_two_digits() {
        let shown = [1234.5, 12.34, 7.12, 0.4321, 0.004567].map(|rate| shown_rate(rate, 0));
        assert_eq!(shown, ["1234", "12", "7.1", "0.43", "0.0046"]);
        let shown = [1234.56, 7.12, 0.4321, 0.0, f64::INFINITY].map(|rate| shown_rate(rate, 1));
        assert_eq!(shown, ["1234.6", "7.1", "0.43", "0.0", "inf"]);
    }

    #[test]
    fn a_printed_size_is_a_sufficient_budget() {
        let shown = |bytes| rounded_up(Bytes(bytes));
        assert_eq!([shown(0), shown(7), shown(1 << 20)], [Bytes(0), Bytes(7), Bytes(1 << 20)]);
        for bytes in [(1 << 20) + 1, 79_306_752, (3 << 30) + 12_345_678] {
            let found = shown(bytes);
            let read = crate::cli::parse::budget(&found.to_string()).unwrap();
            let runtime::Budget::Bytes(read) = read else { panic!("{found}") };
            assert!(found.0 >= bytes && read + 1 >= bytes && read - bytes < bytes / 64, "{found}");
        }
    }
}
