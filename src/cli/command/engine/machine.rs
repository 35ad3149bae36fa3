//! The CPU and the devices beside it: chosen, opened, with a budget, measured.

use super::assumed::AssumedSpeed;
use super::choice::{budget, check_number, choose, tell_dropped, tell_missing, too_little};
use super::speeds::Speeds;
use crate::bench::Shape;
use crate::cli::config::device::DeviceOptions;
use crate::cli::config::model::{Computation, ModelOptions, Sparsity};
use crate::cli::failure::{Exit, Failure};
use crate::cli::parse::{Assumed, Budget};
use crate::cli::terminal::Terminal;
use crate::devices::{self, Candidate};
use crate::engine::{EngineOptions, Placing};
use crate::learned::{Learned, Section};
use crate::model::Model;
use crate::placement::{CPU, Forecast, Speed, Wishes};
use crate::profile::Profile;
use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId, DeviceKind, MemoryReport};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Said where neurons are split without knowing which are used most.
pub(crate) const NO_PROFILE: &str = "which neurons are used most is not known, so all count the same; a profile of the model would put the hot ones on the device";
/// Stands for a device that failed when it was measured: slower than anything, so that no plan takes it.
const UNUSABLE: Speed = Speed {
    dense: 1.0,
    sparse: 1.0,
    hand_off: 1.0,
    op: 1.0,
    refill: 1.0,
    prompt: 1.0,
    upload: 0.0,
};
/// The CPU and the devices beside it, as the user wants them.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// The CPU.
    pub(crate) cpu: Device,
    cpu_backend: Arc<dyn Backend>,
    /// Its threads.
    pub(crate) n_threads: usize,
    /// Devices beside it, in the order of the engine's list.
    pub(crate) others: Vec<Beside>,
    /// Those that were chosen, also where there is nothing of them to use.
    n_chosen: usize,
    /// The CPU's speed, where it is assumed.
    cpu_assumed: Option<AssumedSpeed>,
}

/// A device beside the CPU.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// With its budget, less what its driver takes.
    pub(crate) device: Device,
    backend: Arc<dyn Backend>,
    /// What it is.
    pub(crate) candidate: Candidate,
    /// What may be used of it, the driver's part included.
    pub(crate) budget: Bytes,
    /// Its speed, where it is assumed.
    assumed: Option<AssumedSpeed>,
}

impl Beside {
    /// What of the budget is left to the driver.
    pub(crate) fn reserve(&self) -> Bytes {
        self.candidate.reserve.min(self.budget)
    }

    /// Whether it has memory of its own.
    pub(crate) fn is_apart(&self) -> bool {
        self.device.info().kind != DeviceKind::Integrated
    }

    /// Why no layer is here, where the device needs `least` to hold one; nothing where the user asks for it.
    pub(crate) fn why_empty(&self, least: Option<Bytes>, wishes: Wishes) -> Option<String> {
        let (left, reserve) = (self.device.ledger().budget(), self.candidate.reserve);
        if wishes.cache_on_cpu || wishes.whole_layers == Some(0) {
            return None;
        }
        match least {
            None => Some("it cannot hold one".to_owned()),
            Some(least) if least > left => Some(format!(
                "with the smallest one {least} would be used, and of the budget of {} {left} are left beside the {reserve} that its driver is taken to use",
                self.budget
            )),
            Some(_) if wishes.whole_layers.is_some() => None,
            Some(_) => Some("by its speed and the CPU's none would be faster there".to_owned()),
        }
    }
}

impl Machine {
    /// The CPU alone.
    pub(crate) fn cpu(options: &ModelOptions, terminal: &Terminal) -> Machine {
        let options = super::cpu_options(options, terminal);
        let n_threads = options.n_threads();
        let cpu_backend = devices::cpu_backend(options);
        let cpu = Device::new(Arc::clone(&cpu_backend), DeviceId(0), Bytes::MAX);
        let others = Vec::new();
        Machine { cpu, cpu_backend, n_threads, others, n_chosen: 0, cpu_assumed: None }
    }

    /// The CPU alone, for a command that uses nothing else; flags that expect more are named.
    pub(crate) fn cpu_only(what: &str, options: &ModelOptions, terminal: &Terminal) -> Machine {
        let flags = &options.computation.devices.expected_by;
        if !flags.is_empty() {
            let change = if flags.len() == 1 { "changes" } else { "change" };
            terminal.note(&format!("{} {change} nothing: {what} on the CPU", flags.join(" and ")));
        }
        Machine::cpu(options, terminal)
    }

    /// The CPU and the devices that the user wants.
    ///
    /// # Errors
    /// [`Exit::BackendMissing`] for what was asked for by name and is not there, [`Exit::Usage`].
    pub(crate) fn new(options: &ModelOptions, terminal: &Terminal) -> Result<Machine, Failure> {
        let mut machine = Machine::cpu(options, terminal);
        let wanted = &options.computation.devices;
        if wanted.backend == Some("cpu") {
            return Ok(machine);
        }
        let folder = options.computation.folder.as_ref().map(|folder| folder.path.as_path());
        let (found, missing) = devices::candidates(folder);
        let chosen = choose(wanted, found, &missing)?;
        if chosen.is_empty() {
            tell_missing(wanted, &missing, terminal);
        }
        tell_dropped(wanted, terminal);
        let mut opened = Vec::new();
        for candidate in chosen {
            match candidate.open() {
                Ok(backend) => opened.push((candidate, backend)),
                Err(error) if wanted.named.is_some() => {
                    let message = format!("device '{}' cannot be used", candidate.name);
                    return Err(Failure::new(Exit::BackendMissing, message).caused_by(&error));
                }
                Err(error) => {
                    terminal.note(&format!("{} is not used: {error}", candidate.name));
                }
            }
        }
        check_number(wanted, opened.len())?;
        for (candidate, backend) in opened {
            machine.add(candidate, backend, wanted, terminal)?;
        }
        Ok(machine)
    }

    /// The CPU and devices that are not there.
    ///
    /// # Errors
    /// [`Exit::Usage`] where a device has no memory, [`Exit::BackendMissing`] where one is named that is not assumed.
    pub(crate) fn assume(
        options: &ModelOptions,
        assumed: &[Assumed],
        terminal: &Terminal,
    ) -> Result<Machine, Failure> {
        let mut machine = Machine::cpu(options, terminal);
        let wanted = &options.computation.devices;
        let mut named: Vec<(Candidate, AssumedSpeed)> = Vec::new();
        for given in assumed {
            if given.name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case("cpu")) {
                if given.memory.is_some() || machine.cpu_assumed.is_some() {
                    let message = "--assume: the CPU is named once, and its memory is what it has";
                    return Err(Failure::usage(message));
                }
                machine.cpu_assumed = Some(AssumedSpeed::of_cpu(given));
                continue;
            }
            let n = named.len();
            let name = given.name.clone().unwrap_or_else(|| format!("Assumed{n}"));
            if named.iter().any(|(other, _)| other.name == name) {
                return Err(Failure::usage(format!("--assume: there are two devices '{name}'")));
            }
            let Some(memory) = given.memory else {
                let message = format!("--assume: '{name}' has no memory");
                return Err(Failure::usage(message).help("add memory=8GiB or another size"));
            };
            let speed = AssumedSpeed::of_device(given);
            named.push((Candidate::assumed(&name, Bytes(memory)), speed));
        }
        if wanted.backend == Some("cpu") {
            return Ok(machine);
        }
        // An assumed device is of any backend.
        let any = DeviceOptions { backend: None, ..wanted.clone() };
        let found = named.iter().map(|(candidate, _)| candidate.clone()).collect();
        tell_dropped(wanted, terminal);
        let chosen = choose(&any, found, &[])?;
        check_number(wanted, chosen.len())?;
        for candidate in chosen {
            let speed = named.iter().find(|(c, _)| c.name == candidate.name).map(|(_, s)| *s);
            let opened = candidate.open();
            let backend = opened.map_err(|error| Failure::usage(error.to_string()))?;
            let before = machine.others.len();
            let (memory, name) = (backend.memory().unwrap_or_default(), &candidate.name);
            if wanted.budgets.is_empty() && budget(None, memory, name, terminal)? == Bytes(0) {
                let message = format!("--assume: {}", too_little(name, memory));
                return Err(Failure::usage(message));
            }
            machine.add(candidate, backend, wanted, terminal)?;
            machine.others[before..].iter_mut().for_each(|other| other.assumed = speed);
        }
        Ok(machine)
    }

    fn add(
        &mut self,
        candidate: Candidate,
        backend: Arc<dyn Backend>,
        wanted: &DeviceOptions,
        terminal: &Terminal,
    ) -> Result<(), Failure> {
        let number = self.n_chosen;
        self.n_chosen += 1;
        let mut memory = backend.memory().unwrap_or_default();
        // Metal and DX12 do not tell; what such a device has is the machine's.
        if backend.info().kind == DeviceKind::Integrated && memory == MemoryReport::default() {
            memory = self.cpu.memory().unwrap_or_default();
        }
        let given = wanted.budgets.get(number).or(match &wanted.budgets[..] {
            [one] => Some(one),
            _ => None,
        });
        let budget = budget(given, memory, &candidate.name, terminal)?;
        if budget == Bytes(0) {
            if matches!(given, None | Some(Budget::Auto)) {
                terminal.note(&too_little(&candidate.name, memory));
            }
            return Ok(());
        }
        let number = self.others.len();
        let id = DeviceId(u32::try_from(number + 1).unwrap_or(u32::MAX));
        let counted = if budget == Bytes::MAX { budget } else { budget - candidate.reserve };
        let device = Device::new(Arc::clone(&backend), id, counted);
        self.others.push(Beside { device, backend, candidate, budget, assumed: None });
        Ok(())
    }

    /// The engine's list.
    pub(crate) fn devices(&self) -> Vec<Device> {
        [&self.cpu].into_iter().chain(self.others.iter().map(|o| &o.device)).cloned().collect()
    }

    /// What may be used of all devices together, drivers' parts included; `None` without a device or a limit.
    pub(crate) fn budget(&self) -> Option<Bytes> {
        let sum: Bytes = self.others.iter().map(|other| other.budget).sum();
        Some(sum).filter(|sum| self.n_chosen > 0 && *sum != Bytes::MAX)
    }

    /// The same for people, one after the other where there are several.
    pub(crate) fn budgets(&self) -> Option<String> {
        let budgets: Vec<Bytes> = self.others.iter().map(|other| other.budget).collect();
        match &budgets[..] {
            [] => self.budget().map(|none| none.to_string()),
            all if all.contains(&Bytes::MAX) => None,
            all => Some(all.iter().map(Bytes::to_string).collect::<Vec<_>>().join(":")),
        }
    }

    /// One line on where the model goes and what is expected of it.
    pub(crate) fn tell(
        &self,
        forecast: &Forecast,
        model: &Model,
        options: &EngineOptions,
        terminal: &Terminal,
    ) {
        let layers = &forecast.placement.layers;
        for (number, other) in self.others.iter().enumerate() {
            let here: Vec<_> = layers.iter().filter(|layer| layer.home == number + 1).collect();
            let n_split = here.iter().filter(|layer| layer.is_split()).count();
            let used = forecast.devices[number + 1].total() + other.reserve();
            let of = match other.budget {
                Bytes::MAX => String::new(),
                budget => format!(" of {budget}"),
            };
            let name = &other.candidate.name;
            let why = other.why_empty(forecast.least[number + 1], options.placing.wishes);
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            terminal.note(&match here.len() {
                0 => format!("{name}: no layer of {} is placed here{why}", layers.len()),
                n => format!(
                    "{name}: {n} of {} layers ({n_split} of them split with the CPU), {used}{of}",
                    layers.len()
                ),
            });
        }
        self.cannot(forecast, options.placing.wishes).iter().for_each(|what| terminal.note(what));
        let (used, skips) = (forecast.placement.n_split() > 0, uses_differ(model));
        if used && skips && options.placing.uses.is_none() {
            terminal.note(NO_PROFILE);
        }
    }

    /// Whether the speed of any of it is measured, not assumed.
    pub(crate) fn is_measured(&self) -> bool {
        self.cpu_assumed.is_none() || self.others.iter().any(|other| other.assumed.is_none())
    }

    /// What the user wants, and what else of the model devices could have, that is not so: sentences.
    pub(crate) fn cannot(&self, forecast: &Forecast, wishes: Wishes) -> Vec<String> {
        let layers = &forecast.placement.layers;
        let placed = layers.iter().filter(|layer| layer.home != CPU).count();
        let wanted = wishes.whole_layers.unwrap_or(0).min(layers.len());
        let fewer = (0 < placed && placed < wanted)
            .then(|| format!("only {placed} of the {wanted} layers that -ngl asks for fit"));
        let refused = self.others.iter().zip(&forecast.refused[1..]);
        let refused = refused.flat_map(|(other, all)| {
            all.iter().map(|what| format!("{}: {what}", other.candidate.name))
        });
        fewer.into_iter().chain(refused).collect()
    }

    /// What a placement of `model` is planned from. Devices are measured where no kept figures are.
    pub(crate) fn placing(
        &self,
        model: &Model,
        computation: &Computation,
        terminal: &Terminal,
    ) -> Placing {
        let wishes = computation.devices.wishes;
        if self.others.is_empty() {
            return Placing { wishes, ..Placing::default() };
        }
        let speeds = self.measured(model, computation, terminal);
        let uses = known_uses(model, computation, terminal);
        Placing { wishes, speeds, uses, ..Placing::default() }
    }

    /// Speeds with weights of the model's format, also where there is nothing to plan.
    pub(crate) fn measured(
        &self,
        model: &Model,
        computation: &Computation,
        terminal: &Terminal,
    ) -> Vec<Speed> {
        self.speeds(&shape(model, computation), computation, terminal)
    }

    /// Speeds in the order of the engine's list; what cannot be measured is left alone, with a note.
    pub(crate) fn speeds(
        &self,
        shape: &Shape,
        computation: &Computation,
        terminal: &Terminal,
    ) -> Vec<Speed> {
        let folder = computation.folder.as_ref().map(|folder| folder.path.as_path());
        let mut kept = Speeds::open(folder, computation.devices.measure_anew);
        let cpu = (&self.cpu_backend, self.cpu_assumed, Bytes::MAX);
        let others =
            self.others.iter().map(|o| (&o.backend, o.assumed, o.device.ledger().budget()));
        let mut speeds = Vec::new();
        for (number, (backend, assumed, most)) in [cpu].into_iter().chain(others).enumerate() {
            let threads = if number == 0 { self.n_threads } else { 0 };
            let speed = match assumed {
                Some(assumed) => Ok(assumed.with(shape)),
                None => kept.speed(backend, threads, shape, most),
            };
            speeds.push(speed.unwrap_or_else(|error| {
                let name = &backend.info().name;
                terminal.note(&format!(
                    "the speed of {name} cannot be measured, so nothing is placed there by choice: {error}"
                ));
                UNUSABLE
            }));
        }
        kept.save(terminal);
        speeds
    }

    /// What nobody said of the devices that are not there, and decides how fast prompts are.
    pub(crate) fn guesses(&self) -> Vec<String> {
        let cpu = [(&self.cpu, self.cpu_assumed)];
        let others = self.others.iter().map(|other| (&other.device, other.assumed));
        let all = cpu.into_iter().chain(others);
        all.filter_map(|(device, assumed)| assumed?.guess(&device.info().name)).collect()
    }
}

/// Whether a token uses some neurons of the model and not others.
pub(crate) fn uses_differ(model: &Model) -> bool {
    model.is_exactly_sparse() || model.hyper.experts.is_some()
}

/// How often each neuron of a model that does not use all of them is used, as its profile tells.
pub(crate) fn known_uses(
    model: &Model,
    computation: &Computation,
    terminal: &Terminal,
) -> Option<Arc<Vec<Vec<f32>>>> {
    if !uses_differ(model) {
        return None;
    }
    let folder = computation.folder.as_ref().map(|folder| folder.path.as_path());
    let read = Learned::find(&model.file, folder, Section::Profile)
        .and_then(|found| found.map_or(Ok(None), |learned| Profile::read(&learned, model)));
    match read {
        Ok(profile) => profile.map(|profile| Arc::new(profile.uses(model))),
        Err(refused) => {
            terminal.note(&format!("no profile is used: {refused}"));
            None
        }
    }
}

/// What devices are measured with for a model: its blocks, in the format of most of their bytes.
fn shape(model: &Model, computation: &Computation) -> Shape {
    let mut sizes: BTreeMap<&'static str, (u64, Format)> = BTreeMap::new();
    for layer in &model.layers {
        for (_, rows) in layer.ffn.matrices() {
            let desc = rows.desc();
            let entry = sizes.entry(desc.format.name()).or_insert((0, desc.format));
            entry.0 += desc.bytes().unwrap_or_default().0;
        }
    }
    let formats = sizes.into_values().filter(|(_, f)| f.row_bytes(model.hyper.n_embd).is_some());
    let format = formats.max_by_key(|(bytes, _)| *bytes).map_or(Format::F16, |(_, format)| format);
    let predicts = model.layers.iter().any(|layer| layer.ffn.predictor.is_some());
    Shape {
        format,
        n_embd: model.hyper.n_embd,
        n_ff: model.hyper.n_ff,
        size: Bytes(model.file.size_bytes()),
        listed: predicts && computation.sparsity == Sparsity::Predicted,
        skips: model.is_exactly_sparse() && computation.sparsity != Sparsity::Off,
    }
}
