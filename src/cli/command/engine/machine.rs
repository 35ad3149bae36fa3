//! The CPU and the devices beside it: chosen, opened, with a budget, measured.

use super::speeds::Speeds;
use crate::bench::Shape;
use crate::cli::config::device::DeviceOptions;
use crate::cli::config::model::{Computation, ModelOptions, Sparsity};
use crate::cli::failure::{Exit, Failure};
use crate::cli::parse::{Assumed, Budget};
use crate::cli::terminal::Terminal;
use crate::devices::{self, Candidate, Missing};
use crate::engine::{EngineOptions, Placing};
use crate::learned::{self, Learned};
use crate::model::Model;
use crate::placement::{Forecast, Speed};
use crate::profile::Profile;
use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId, MemoryReport};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is left free of a device's memory where the user sets no budget: for the desktop, and for what other programs
/// take while the model runs.
const MARGIN: Bytes = Bytes(512 << 20);
/// What an assumed device does where the user does not say: a card of the middle class.
const ASSUMED: Speed = Speed { dense: 400e9, sparse: 280e9, hand_off: 20e-6, op: 2e-6 };
/// Said where neurons are split without knowing which are used most.
pub(crate) const NO_PROFILE: &str = "which neurons are used most is not known, so all count the same; a profile of the model would put the hot ones on the device";
/// Share of the bandwidth that single rows get on an assumed device.
const ROWS: f64 = 0.7;

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
    /// The CPU's speed, where it is assumed.
    cpu_assumed: Option<Speed>,
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
    assumed: Option<Speed>,
}

impl Beside {
    /// What of the budget is left to the driver.
    pub(crate) fn reserve(&self) -> Bytes {
        self.candidate.reserve.min(self.budget)
    }
}

impl Machine {
    /// The CPU alone.
    pub(crate) fn cpu(options: &ModelOptions, terminal: &Terminal) -> Machine {
        let options = super::cpu_options(options, terminal);
        let n_threads = options.n_threads();
        let cpu_backend = devices::cpu_backend(options);
        let cpu = Device::new(Arc::clone(&cpu_backend), DeviceId(0), Bytes::MAX);
        Machine { cpu, cpu_backend, n_threads, others: Vec::new(), cpu_assumed: None }
    }

    /// The CPU and the devices that the user wants.
    ///
    /// # Errors
    /// [`Exit::BackendMissing`] for what was asked for by name and is not there.
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
        for candidate in chosen {
            match candidate.open() {
                Ok(backend) => machine.add(candidate, backend, wanted, terminal)?,
                Err(error) if wanted.named.is_some() => {
                    let message = format!("device '{}' cannot be used", candidate.name);
                    return Err(Failure::new(Exit::BackendMissing, message).caused_by(&error));
                }
                Err(error) => {
                    terminal.note(&format!("{} is not used: {error}", candidate.name));
                }
            }
        }
        check_number(wanted, machine.others.len())?;
        Ok(machine)
    }

    /// The CPU and devices that are not there.
    ///
    /// # Errors
    /// [`Exit::Usage`] where a device has no memory.
    pub(crate) fn assume(
        options: &ModelOptions,
        assumed: &[Assumed],
        terminal: &Terminal,
    ) -> Result<Machine, Failure> {
        let mut machine = Machine::cpu(options, terminal);
        let wanted = &options.computation.devices;
        let speed = |given: &Assumed| {
            let dense = given.bandwidth.unwrap_or(ASSUMED.dense);
            Speed {
                dense,
                sparse: given.rows.unwrap_or(dense * ROWS).min(dense),
                hand_off: given.hand_off.unwrap_or(ASSUMED.hand_off),
                op: given.op.unwrap_or(ASSUMED.op),
            }
        };
        for given in assumed {
            if given.name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case("cpu")) {
                let op = given.op.unwrap_or(0.0);
                machine.cpu_assumed = Some(Speed { hand_off: 0.0, op, ..speed(given) });
                continue;
            }
            let n = machine.others.len();
            let name = given.name.clone().unwrap_or_else(|| format!("Assumed{n}"));
            if machine.others.iter().any(|other| other.candidate.name == name) {
                return Err(Failure::usage(format!("--assume: there are two devices '{name}'")));
            }
            let Some(memory) = given.memory else {
                let message = format!("--assume: '{name}' has no memory");
                return Err(Failure::usage(message).help("add memory=8GiB or another size"));
            };
            let candidate = Candidate::assumed(&name, Bytes(memory));
            let opened = candidate.open();
            let backend = opened.map_err(|error| Failure::usage(error.to_string()))?;
            machine.add(candidate, backend, wanted, terminal)?;
            if let Some(last) = machine.others.last_mut() {
                last.assumed = Some(speed(given));
            }
        }
        check_number(wanted, machine.others.len())?;
        Ok(machine)
    }

    fn add(
        &mut self,
        candidate: Candidate,
        backend: Arc<dyn Backend>,
        wanted: &DeviceOptions,
        terminal: &Terminal,
    ) -> Result<(), Failure> {
        let number = self.others.len();
        let memory = backend.memory().unwrap_or_default();
        let given = wanted.budgets.get(number).or(match &wanted.budgets[..] {
            [one] => Some(one),
            _ => None,
        });
        let budget = budget(given, memory, &candidate.name, terminal)?;
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
            terminal.note(&match here.len() {
                0 => format!("{name}: no layer of {} is placed here", layers.len()),
                n => format!(
                    "{name}: {n} of {} layers ({n_split} of them split with the CPU), {used}{of}",
                    layers.len()
                ),
            });
        }
        let (used, skips) = (forecast.placement.n_split() > 0, model.is_exactly_sparse());
        if used && skips && options.placing.uses.is_none() {
            terminal.note(NO_PROFILE);
        }
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

    /// Speeds in the order of the engine's list; what cannot be measured ends it, with a note.
    pub(crate) fn speeds(
        &self,
        shape: &Shape,
        computation: &Computation,
        terminal: &Terminal,
    ) -> Vec<Speed> {
        let folder = computation.folder.as_ref().map(|folder| folder.path.as_path());
        let mut kept = Speeds::open(folder, computation.devices.measure_anew);
        let cpu = (&self.cpu_backend, self.cpu_assumed);
        let others = self.others.iter().map(|other| (&other.backend, other.assumed));
        let mut speeds = Vec::new();
        for (number, (backend, assumed)) in [cpu].into_iter().chain(others).enumerate() {
            let threads = if number == 0 { self.n_threads } else { 0 };
            match assumed.map_or_else(|| kept.speed(backend, threads, shape), Ok) {
                Ok(speed) => speeds.push(speed),
                Err(error) => {
                    let name = &backend.info().name;
                    terminal.note(&format!("the speed of {name} cannot be measured: {error}"));
                    break;
                }
            }
        }
        kept.save(terminal);
        speeds
    }
}

/// How often each neuron of a model that skips some fires, as its profile tells; the first that is found counts.
fn known_uses(
    model: &Model,
    computation: &Computation,
    terminal: &Terminal,
) -> Option<Arc<Vec<Vec<f32>>>> {
    if !model.is_exactly_sparse() {
        return None;
    }
    let folder = computation.folder.as_ref().map(|folder| folder.path.as_path());
    let places = learned::places(&model.file, folder);
    places.into_iter().filter(|path| path.exists()).find_map(|path| {
        let found = Learned::open(&path, &model.file);
        match found.and_then(|learned| Profile::read(&learned, model)) {
            Ok(profile) => profile.map(|profile| Arc::new(profile.probabilities())),
            Err(refused) => {
                terminal.note(&format!("no profile is used: {refused}"));
                None
            }
        }
    })
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
    }
}

/// What may be used of a device.
fn budget(
    given: Option<&Budget>,
    memory: MemoryReport,
    name: &str,
    terminal: &Terminal,
) -> Result<Bytes, Failure> {
    let known = memory.free.or(memory.total);
    let budget = match (given, known) {
        (Some(Budget::Bytes(bytes)), _) => return Ok(Bytes(*bytes)),
        (Some(Budget::Share(share)), _) => {
            let Some(total) = memory.total.or(memory.free) else {
                let message = format!("--vram-budget: {name} does not tell how much memory it has");
                return Err(Failure::usage(message).help("give the budget in bytes, such as 6GiB"));
            };
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a share of a u64
            Bytes((total.0 as f64 * f64::from(*share)) as u64)
        }
        (Some(Budget::Auto) | None, Some(free)) => free - MARGIN,
        (Some(Budget::Auto) | None, None) => {
            terminal.note(&format!(
                "{name} does not tell how much of its memory is free: as much is used as it gives; --vram-budget sets a limit"
            ));
            Bytes::MAX
        }
    };
    Ok(budget)
}

/// The devices that are wanted, of those that were found.
fn choose(
    wanted: &DeviceOptions,
    found: Vec<Candidate>,
    missing: &[Missing],
) -> Result<Vec<Candidate>, Failure> {
    let why = |message: String| {
        let mut failure = Failure::new(Exit::BackendMissing, message);
        let concerned = |missing: &&Missing| wanted.backend.is_none_or(|b| b == missing.backend);
        if let Some(missing) = missing.iter().find(concerned) {
            failure.causes = vec![format!("{}: {}", missing.backend, missing.reason)];
            failure = failure.help(missing.hint.clone());
        }
        failure
    };
    let names: Vec<&str> = found.iter().map(|candidate| candidate.name.as_str()).collect();
    let listed = match names.is_empty() {
        true => "there is none beside the CPU".to_owned(),
        false => format!("there are: {}", names.join(", ")),
    };
    let of_backend = |candidate: &Candidate| wanted.backend.is_none_or(|b| b == candidate.backend);
    let mut chosen = Vec::new();
    match &wanted.named {
        Some(wanted) => {
            for name in wanted.iter().filter(|name| !name.eq_ignore_ascii_case("cpu")) {
                let by_name = |c: &&Candidate| c.name.eq_ignore_ascii_case(name) && of_backend(c);
                let Some(candidate) = found.iter().find(by_name) else {
                    return Err(why(format!("no device '{name}': {listed}")));
                };
                chosen.push(candidate.clone());
            }
        }
        None => chosen.extend(found.into_iter().filter(|c| of_backend(c) && !c.software)),
    }
    if let Some(backend) = wanted.backend
        && chosen.is_empty()
    {
        return Err(why(format!("no device for --backend {backend}")));
    }
    match wanted.main {
        None => Ok(chosen),
        Some(_) if chosen.is_empty() => Ok(chosen),
        Some(n) if n < chosen.len() => Ok(vec![chosen.swap_remove(n)]),
        Some(n) => Err(why(format!("no device number {n}: there are {}", chosen.len()))),
    }
}

/// One line where a device was expected: because flags are about it, or because this build could use one.
fn tell_missing(wanted: &DeviceOptions, missing: &[Missing], terminal: &Terminal) {
    for missing in missing {
        let line = match &wanted.expected_by[..] {
            [] if missing.is_built => {
                format!(
                    "everything runs on the CPU: {}; `thermocline doctor` says what would help",
                    missing.reason
                )
            }
            [] => continue,
            flags => {
                let change = if flags.len() == 1 { "changes" } else { "change" };
                let (flags, reason) = (flags.join(" and "), &missing.reason);
                format!("{flags} {change} nothing: {reason}, so everything runs on the CPU")
            }
        };
        terminal.note(&line);
    }
}

fn check_number(wanted: &DeviceOptions, n_devices: usize) -> Result<(), Failure> {
    let n = wanted.budgets.len();
    match n > 1 && n_devices > 0 && n != n_devices {
        true => {
            Err(Failure::usage(format!("--vram-budget has {n} values for {n_devices} devices")))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::ColorWhen;

    fn quiet() -> Terminal {
        Terminal::new(ColorWhen::Off, true, 0)
    }

    fn found() -> Vec<Candidate> {
        ["Card0", "Card1"].map(|name| Candidate::assumed(name, Bytes(8 << 30))).into()
    }

    #[test]
    fn devices_by_name_and_number() {
        let choose = |wanted: DeviceOptions| {
            let missing = devices::candidates(None).1;
            let chosen = super::choose(&wanted, found(), &missing);
            chosen.map(|all| all.into_iter().map(|c| c.name).collect::<Vec<_>>())
        };
        let named = |names: &[&str]| {
            let named = names.iter().map(|&name| name.to_owned()).collect();
            DeviceOptions { named: Some(named), ..DeviceOptions::default() }
        };
        assert_eq!(choose(DeviceOptions::default()).unwrap(), ["Card0", "Card1"]);
        assert_eq!(choose(named(&["card1"])).unwrap(), ["Card1"]);
        let second = DeviceOptions { main: Some(1), ..DeviceOptions::default() };
        assert_eq!(choose(second).unwrap(), ["Card1"]);
        let failure = choose(named(&["CUDA0"])).unwrap_err();
        assert_eq!(failure.exit, Exit::BackendMissing);
        assert!(failure.message.contains("there are: Card0, Card1"), "{failure:?}");
        let wgpu = DeviceOptions { backend: Some("wgpu"), ..DeviceOptions::default() };
        let failure = choose(wgpu).unwrap_err();
        assert!(failure.exit == Exit::BackendMissing && failure.help.is_some());
        let third = DeviceOptions { main: Some(2), ..DeviceOptions::default() };
        assert_eq!(choose(third).unwrap_err().exit, Exit::BackendMissing);
    }

    #[test]
    fn budgets_of_what_there_is() {
        let memory = |free: u64, total: u64| MemoryReport {
            free: Some(Bytes(free << 30)),
            total: Some(Bytes(total << 30)),
        };
        let budget = |given: Option<Budget>, memory| {
            super::budget(given.as_ref(), memory, "Card", &quiet()).map(|bytes| bytes.0)
        };
        assert_eq!(budget(None, memory(6, 8)), Ok((6 << 30) - MARGIN.0));
        assert_eq!(budget(Some(Budget::Auto), memory(6, 8)), Ok((6 << 30) - MARGIN.0));
        assert_eq!(budget(Some(Budget::Share(0.5)), memory(6, 8)), Ok(4 << 30));
        assert_eq!(budget(Some(Budget::Bytes(5)), memory(6, 8)), Ok(5));
        assert_eq!(budget(None, MemoryReport::default()), Ok(u64::MAX));
        assert!(budget(Some(Budget::Share(0.5)), MemoryReport::default()).is_err());
    }
}
