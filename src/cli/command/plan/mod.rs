//! `thermocline plan`: where a model would be, what that takes, how fast it would be, and why. Nothing is loaded; it
//! is the plan that `run`, `bench` and all else follow.

mod held;
mod json;
mod prompts;
mod svg;
mod text;

use super::engine::{self, Machine};
use crate::cli::config::PlanOptions;
use crate::cli::failure::Failure;
use crate::cli::output::{Output, write_file};
use crate::cli::terminal::Terminal;
use crate::engine::{EngineOptions, ExchangeNeeds, Placing};
use crate::model::Model;
use crate::placement::{
    Forecast, LayerPlacement, Speed, Wishes, exchange, plan, plan_for_tokens, plan_whole_layers,
};
use hal::Bytes;
use held::Held;
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
    let report = Report::new(options, &machine, model, terminal)?;
    if let Some(path) = &options.svg {
        write_file(path, &svg::picture(&report))?;
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
    /// What is where, in bytes.
    held: Held,
    /// Whole layers only, with the same budgets.
    whole_layers: Forecast,
    /// The fastest tokens with the same budgets, however slow prompts are.
    for_tokens: Forecast,
    /// Without any device.
    cpu_alone: Forecast,
    /// With as much memory as everything takes.
    all_fits: Forecast,
    wishes: Wishes,
    /// Whether some device could have a part of a layer.
    can_split: bool,
    /// What it takes that neurons change sides; `None` where none does.
    exchange: Option<ExchangeNeeds>,
    /// What decides whether the CPU's neurons come to devices for prompts.
    streams: prompts::Streams,
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
    /// The same, were the budget large enough.
    driver: Bytes,
}

impl Report {
    fn new(
        options: &PlanOptions,
        machine: &Machine,
        model: Arc<Model>,
        terminal: &Terminal,
    ) -> Result<Report, Failure> {
        let computation = &options.model.computation;
        let mut placing = machine.placing(&model, computation, terminal);
        if placing.speeds.is_empty() {
            placing.speeds = machine.measured(&model, computation, terminal);
        }
        if placing.uses.is_none() {
            placing.uses = engine::known_uses(&model, computation, terminal);
        }
        if let Some(density) = options.density {
            placing.density = density;
        }
        let n_ctx = engine::context(&options.model, &model, machine, &placing, terminal);
        let settings = EngineOptions { placing, ..engine::settings(&options.model, n_ctx) };
        let settings = engine::with_learned(&model, settings, computation, terminal)?;
        let task = crate::engine::task(&model, &machine.devices(), &settings);
        let forecast = plan(&task);
        let with = |budget: Bytes| {
            let mut task = task.clone();
            task.devices.iter_mut().for_each(|device| device.budget = budget);
            plan(&task)
        };
        let skips = model.is_exactly_sparse() && settings.sparsity != crate::engine::Sparsity::Off;
        let mut notes = notes(machine, &forecast, &settings, skips);
        if options.density.is_some() && (!skips || settings.placing.uses.is_some()) {
            notes.push(
                match skips {
                    true => {
                        "--density changes nothing: a profile tells how often each neuron is used"
                    }
                    false => "--density changes nothing: every neuron is computed",
                }
                .to_owned(),
            );
        }
        let folder = computation.folder.as_ref().filter(|_| machine.is_measured());
        notes.extend(folder.filter(|_| !computation.devices.measure_anew).map(|folder| {
            let path = folder.path.display();
            format!(
                "speeds are measured once and kept in {path}; --reset-gpu-index measures them anew"
            )
        }));
        let need = engine::Need::of(&model, &settings, &machine.cpu);
        let need = need.less(&forecast, machine);
        let memory = machine.cpu.memory().unwrap_or_default();
        if let Err(refused) = need.check(memory, n_ctx, terminal) {
            let help = refused.help.map_or(String::new(), |help| format!("; {help}"));
            notes.push(format!("it would not be loaded: {}{help}", refused.message));
        }
        let exchange =
            crate::engine::exchange_needs(&model, &machine.devices(), &settings, &forecast);
        notes.extend(exchange.map(follows));
        let placement = &forecast.placement;
        let host = crate::engine::host_bytes(&model, &machine.devices(), &settings, placement);
        Ok(Report {
            n_ctx,
            n_past: crate::engine::assumed_past(&settings),
            density: skips.then(|| density(&settings.placing)),
            devices: devices(machine, &settings.placing),
            held: Held::new(&task, &forecast, host),
            whole_layers: plan_whole_layers(&task),
            for_tokens: plan_for_tokens(&task),
            cpu_alone: with(Bytes(0)),
            all_fits: with(Bytes::MAX),
            wishes: settings.placing.wishes,
            can_split: machine
                .others
                .iter()
                .any(|other| other.device.info().hand_off && other.is_apart()),
            forecast,
            streams: prompts::Streams::new(
                &task,
                settings.predicts(&model),
                model.hyper.experts.is_some(),
            ),
            model,
            exchange,
            notes,
        })
    }

    /// The name of the device with this number.
    fn device(&self, number: usize) -> &str {
        self.devices.get(number).map_or("", |device| &device.name)
    }

    /// The budgets that `forecast` takes, all devices together, what is left to the drivers of those it uses included.
    fn budget_of(&self, forecast: &Forecast) -> Bytes {
        let all = self.devices.iter().zip(&forecast.devices);
        let used = all.map(|(device, bytes)| (device.driver, bytes.total()));
        used.filter(|(_, here)| *here > Bytes(0)).map(|(driver, here)| driver + here).sum()
    }

    /// What decides the speed, in sentences.
    fn why(&self) -> Vec<String> {
        let rate = |forecast: &Forecast| format!("{} tokens/s", shown_rate(forecast.rate(), 1));
        let Forecast { seconds, parts, placement, .. } = &self.forecast;
        let mut why = Vec::new();
        if self.devices.len() == 1 {
            why.push("there is no device beside the CPU: what its memory delivers decides".into());
            return why;
        }
        let share = |part: f64| 100.0 * part / seconds;
        let more_helps = self.all_fits.seconds < 0.999 * seconds;
        let of_cpu = match more_helps {
            true => "more device memory would take work from it",
            false => "what its memory delivers decides",
        };
        let parts = [
            ("the CPU", parts.cpu, of_cpu),
            ("the devices", parts.devices, "what their memory delivers decides"),
            ("hand-offs", parts.hand_offs, "fewer split layers would not be faster: tried"),
        ];
        if let Some((name, part, so)) = parts.iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
            why.push(format!("{:.0} % of a token's time is {name}: {so}", share(*part)));
        }
        let n_split = placement.n_split();
        let slower = match prompts::paid(self) {
            Some(_) => "have slower tokens or prompts, or not fit",
            None => "be slower, or not fit",
        };
        let beside = match n_split {
            0 if self.wishes.whole_layers.is_some() => "no layer is split, as -ngl asks".to_owned(),
            0 if self.wishes.cache_on_cpu => {
                "no layer is split: their caches are on the CPU".to_owned()
            }
            0 if !self.can_split => {
                "no layer is split: no device here can have a part of one".to_owned()
            }
            0 => format!("no layer is split: with every number of split layers it would {slower}"),
            n => format!("{n} layers are split: other numbers would {slower}"),
        };
        why.push(format!(
            "{beside}; whole layers only reach {}, the CPU alone {}",
            rate(&self.whole_layers),
            rate(&self.cpu_alone)
        ));
        if more_helps {
            why.push(format!(
                "with {} of device memory it would be {}",
                shown_whole(self.budget_of(&self.all_fits)),
                rate(&self.all_fits)
            ));
        }
        why
    }
}

/// A rate with so many decimals, or with as many more as two digits of a small one take.
fn shown_rate(rate: f64, decimals: usize) -> String {
    let wanted = if rate > 0.0 { (1.0 - rate.log10().floor()).clamp(0.0, 9.0) as usize } else { 0 };
    format!("{rate:.*}", decimals.max(wanted))
}

/// The least amount that is not less and that two decimals show whole: what is read off is enough.
fn shown_whole(bytes: Bytes) -> Bytes {
    let units = std::iter::successors(Some(1u64), |unit| unit.checked_mul(1024));
    let unit = units.take_while(|unit| *unit <= bytes.0).last().unwrap_or(1);
    let hundredths = (u128::from(bytes.0) * 100).div_ceil(u128::from(unit));
    let whole = (hundredths * u128::from(unit)).div_ceil(100);
    Bytes(u64::try_from(whole).unwrap_or(u64::MAX))
}

/// What it means that the hot set follows the text.
fn follows(needs: ExchangeNeeds) -> String {
    let ExchangeNeeds { n_layers, most, host, counters } = needs;
    match most {
        0 => "the hot set stays as it is: bringing neurons to the device costs more than it gains"
            .to_owned(),
        most => format!(
            "the hot set of {n_layers} layers follows the text: up to {most} neurons change places every {} tokens; {counters} of counters on each device, and {host} of the model in the host's memory (--no-adapt: none of it)",
            exchange::EVERY
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
            "a token is taken to use {:.0} % of the neurons (--density sets it)",
            100.0 * settings.placing.density
        ));
        if forecast.placement.n_split() > 0 {
            notes.push(engine::NO_PROFILE.to_owned());
        }
    }
    let unified = machine.others.iter().filter(|other| !other.is_apart());
    notes.extend(unified.map(|other| {
        format!("{} shares its memory with the CPU: no layer is split there", other.candidate.name)
    }));
    let wishes = settings.placing.wishes;
    notes.extend(machine.others.iter().enumerate().filter_map(|(i, other)| {
        let is_here = |layer: &LayerPlacement| layer.home == i + 1;
        let is_empty = !forecast.placement.layers.iter().any(is_here);
        let why = other.why_empty(forecast.least[i + 1], wishes).filter(|_| is_empty)?;
        Some(format!("no layer is placed on {}: {why}", other.candidate.name))
    }));
    notes.extend(machine.cannot(forecast, wishes));
    let guesses = machine.guesses();
    if !machine.others.is_empty() && !guesses.is_empty() {
        notes.push(format!("assumed, as --assume does not say it: {}", guesses.join("; ")));
    }
    if wishes.cache_on_cpu {
        notes.push("--no-kv-offload: attention is where its cache is, so layers stay on the CPU and only the head can be elsewhere".to_owned());
    }
    notes
}

/// The share of the neurons that a token uses.
fn density(placing: &Placing) -> f64 {
    let Some(uses) = &placing.uses else { return placing.density };
    let (sum, n) = uses.iter().flatten().fold((0.0, 0), |(sum, n), p| (sum + f64::from(*p), n + 1));
    sum / f64::from(n.max(1))
}

/// The devices, the CPU first.
fn devices(machine: &Machine, placing: &Placing) -> Vec<Device> {
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
    fn what_is_shown_is_enough() {
        let shown = |bytes| shown_whole(Bytes(bytes));
        assert_eq!([shown(0), shown(7), shown(1 << 20)], [Bytes(0), Bytes(7), Bytes(1 << 20)]);
        for bytes in [(1 << 20) + 1, 79_306_752, (3 << 30) + 12_345_678] {
            let found = shown(bytes);
            let read = crate::cli::parse::budget(&found.to_string()).unwrap();
            let crate::cli::parse::Budget::Bytes(read) = read else { panic!("{found}") };
            assert!(found.0 >= bytes && read + 1 >= bytes && read - bytes < bytes / 64, "{found}");
        }
    }
}
