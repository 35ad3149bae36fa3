//! The CPU and the other devices of a run: opens the chosen devices, sets their budgets and
//! measures their speeds.

mod assume;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use engine::{DenseFrom, EngineOptions, PlannerInputs};
use hal::{Backend, Bytes, Device, DeviceId, DeviceKind, MemoryReport};
use learn::learned::{Section, SideFile};
use learn::profile::Profile;
use measure::bench::Shape;
use model::Model;
use placement::{CPU, Forecast, PlacementPolicy, PlanConstraints, Speed};

use crate::assumed_device::{AssumedHost, AssumedSpeed};
use crate::choice::{budget, check_budget_count, choose, device_full, no_device};
use crate::devices::{self, Candidate, PrefetchDistance};
use crate::error::DeviceError;
use crate::notice::{Notice, Observer, PlacementReport, SharedObserver, Task};
use crate::opening::open_all;
use crate::options::{Budget, Computation, DeviceOptions, Options};
use crate::overrides;
use crate::speeds::{MIN_LARGE, Speeds, shape_of};

type Result<T> = std::result::Result<T, DeviceError>;

/// Speed of a device whose measurement failed: so slow that a plan uses the device only for layers
/// that the user requests.
const UNUSABLE: Speed = Speed {
    dense: 1.0,
    sparse: 1.0,
    hand_off: 1.0,
    op: 1.0,
    refill: 1.0,
    prompt: 1.0,
    upload: 0.0,
};

/// The CPU and the other devices, as the user requested.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The CPU.
    pub cpu: Device,
    cpu_backend: Arc<dyn Backend>,
    /// Number of CPU threads.
    pub n_threads: usize,
    /// Devices other than the CPU, in the order of the engine's list.
    pub others: Vec<Accelerator>,
    /// Number of chosen devices, including those without usable memory.
    n_chosen: usize,
    /// The assumed CPU, memory and disk; `None` if they are this machine's.
    host_assumed: Option<AssumedHost>,
    /// The prefetch distance of the CPU's kernels.
    prefetch: PrefetchDistance,
}

/// A device other than the CPU.
#[derive(Clone, Debug)]
pub struct Accelerator {
    /// The device. Its ledger has the budget minus the driver's reserve.
    pub device: Device,
    backend: Arc<dyn Backend>,
    /// The candidate from which the device was opened.
    pub candidate: Candidate,
    /// Usable device memory, including the driver's reserve.
    pub budget: Bytes,
    /// The assumed speed; `None` if the speed is measured.
    pub(crate) assumed: Option<AssumedSpeed>,
    /// The self-tests of this process, by key.
    tested: Arc<Mutex<BTreeSet<String>>>,
}

impl Accelerator {
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Whether the self-test with this key is the first.
    pub(crate) fn first_test(&self, key: &str) -> bool {
        self.tested.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned())
    }

    /// The driver's reserve in bytes, at most the budget.
    #[must_use]
    pub fn reserve(&self) -> Bytes {
        self.candidate.reserve.min(self.budget)
    }

    /// Whether the device has its own memory, unlike an integrated GPU.
    #[must_use]
    pub fn has_own_memory(&self) -> bool {
        self.device.info().kind != DeviceKind::Integrated
    }

    /// Why no layer is placed on this device. `least` is the least memory that a layer needs;
    /// `None` if the device can run no layer. Returns `None` if the user's options explain it.
    #[must_use]
    pub fn why_empty(&self, least: Option<Bytes>, constraints: PlanConstraints) -> Option<String> {
        let (left, reserve) = (self.device.ledger().budget(), self.candidate.reserve);
        if constraints.cache_on_cpu || constraints.whole_layers == Some(0) {
            return None;
        }
        match least {
            None => Some("it cannot run any layer of this model".to_owned()),
            Some(least) if least > left => Some(format!(
                "one layer needs at least {least}, but the budget of {} leaves {left} after an estimated {reserve} for the driver",
                self.budget
            )),
            Some(_) if constraints.whole_layers.is_some() => None,
            Some(_) if constraints.policy != PlacementPolicy::Fastest => None,
            Some(_) => {
                Some("according to the measured speeds, no layer would be faster on it".to_owned())
            }
        }
    }
}

impl Machine {
    /// Only the CPU, without other devices.
    #[must_use]
    pub fn cpu(options: &Options, observer: &SharedObserver) -> Machine {
        let receiver = Arc::clone(observer);
        let notice = devices::Notice::new(move |text| {
            receiver.notice(&Notice::Cpu(text.to_owned()));
        });
        let prefetch = PrefetchDistance::default();
        if let Some(bytes) = options.computation.processor.prefetch {
            prefetch.set(bytes);
        }
        let options = devices::CpuOptions { notice, prefetch: prefetch.clone(), ..options.cpu() };
        let n_threads = options.n_threads();
        let cpu_backend = devices::cpu_backend(options);
        let cpu = Device::new(Arc::clone(&cpu_backend), DeviceId(0), Bytes::MAX);
        let others = Vec::new();
        Machine { cpu, cpu_backend, n_threads, others, n_chosen: 0, host_assumed: None, prefetch }
    }

    /// Sets the prefetch distance of the CPU's kernels to the cached or measured one, unless the
    /// user gave one. Weights that a cache of the processor may hold need none.
    pub(crate) fn tune(&self, model: &Model, computation: &Computation, observer: &dyn Observer) {
        if computation.processor.prefetch.is_some() || Bytes(model.file.size_bytes()) < MIN_LARGE {
            return;
        }
        let mut kept = Speeds::open(computation.folder(), computation.devices.remeasure);
        if kept.known_prefetch_distance(&self.cpu_backend, self.n_threads).is_none() {
            observer.progress(Task::Tune, Bytes(0), Bytes(1));
        }
        let distance = kept.prefetch_distance(&self.cpu_backend, self.n_threads);
        observer.progress(Task::Tune, Bytes(1), Bytes(1));
        if let Some(bytes) = distance {
            self.prefetch.set(bytes);
        }
        kept.save(observer);
    }

    /// The CPU and the devices that the user requested.
    ///
    /// # Errors
    /// [`DeviceError`] for a requested device that is not available.
    pub fn new(options: &Options, observer: &SharedObserver) -> Result<Machine> {
        let mut machine = Machine::cpu(options, observer);
        let wanted = &options.computation.devices;
        if wanted.backend == Some("cpu") {
            return Ok(machine);
        }
        let compilation = options.computation.kernel_compilation(observer);
        let (found, missing) = devices::candidates_with(&compilation);
        let chosen = choose(wanted, found.clone(), &missing)?;
        if chosen.is_empty()
            && let Some(notice) = no_device(wanted, &missing)
        {
            observer.notice(&notice);
        }
        if wanted.layers_ignored {
            observer.notice(&Notice::WholeLayersIgnored);
        }
        if wanted.named.is_none() {
            for candidate in chosen.iter().filter(|candidate| candidate.software) {
                let device = format!("{} ({})", candidate.name, candidate.description);
                observer.notice(&Notice::SoftwareDevice { device });
            }
        }
        let opened = open_all(chosen, &found, wanted, observer.as_ref())?;
        check_budget_count(wanted, opened.len())?;
        for (candidate, backend) in opened {
            machine.add(candidate, backend, wanted, observer)?;
        }
        Ok(machine)
    }

    fn add(
        &mut self,
        candidate: Candidate,
        backend: Arc<dyn Backend>,
        wanted: &DeviceOptions,
        observer: &SharedObserver,
    ) -> Result<()> {
        let number = self.n_chosen;
        self.n_chosen += 1;
        let mut memory = backend.memory().unwrap_or_default();
        // Metal and DX12 do not report memory; an integrated device uses the machine's memory.
        if backend.info().kind == DeviceKind::Integrated && memory == MemoryReport::default() {
            memory = self.cpu.memory().unwrap_or_default();
        }
        let given = wanted.budgets.get(number).or(match &wanted.budgets[..] {
            [one] => Some(one),
            _ => None,
        });
        let budget = budget(given, memory, &candidate.name, observer.as_ref())?;
        if budget == Bytes(0) {
            if matches!(given, None | Some(Budget::Auto)) {
                let full = device_full(&candidate.name, memory);
                observer.notice(&Notice::DeviceFull(full));
            }
            return Ok(());
        }
        let number = self.others.len();
        let id = DeviceId(u32::try_from(number + 1).unwrap_or(u32::MAX));
        let counted = if budget == Bytes::MAX { budget } else { budget - candidate.reserve };
        let device = Device::new(Arc::clone(&backend), id, counted);
        let (assumed, tested) = Default::default();
        self.others.push(Accelerator { device, backend, candidate, budget, assumed, tested });
        Ok(())
    }

    pub(crate) fn cpu_backend(&self) -> &Arc<dyn Backend> {
        &self.cpu_backend
    }

    /// Whether devices can be compared with the CPU: not with an assumed one.
    pub(crate) fn tests_devices(&self) -> bool {
        self.host_assumed.is_none()
    }

    /// The devices for the engine, the CPU first.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        [&self.cpu].into_iter().chain(self.others.iter().map(|o| &o.device)).cloned().collect()
    }

    /// Total budget of all devices, including drivers' reserves; `None` without devices or without
    /// a limit.
    #[must_use]
    pub fn budget(&self) -> Option<Bytes> {
        let sum: Bytes = self.others.iter().map(|other| other.budget).sum();
        Some(sum).filter(|sum| self.n_chosen > 0 && *sum != Bytes::MAX)
    }

    /// The budgets as text, in the order of the devices; `None` without devices or without a limit.
    #[must_use]
    pub fn budgets(&self) -> Option<String> {
        let budgets: Vec<Bytes> = self.others.iter().map(|other| other.budget).collect();
        match &budgets[..] {
            [] => self.budget().map(|none| none.to_string()),
            all if all.contains(&Bytes::MAX) => None,
            all => Some(all.iter().map(Bytes::to_string).collect::<Vec<_>>().join(":")),
        }
    }

    /// Sends notices about the placement to `observer`.
    pub(crate) fn report(
        &self,
        forecast: &Forecast,
        model: &Model,
        options: &EngineOptions,
        observer: &dyn Observer,
    ) {
        let layers = &forecast.placement.layers;
        for (number, other) in self.others.iter().enumerate() {
            let here: Vec<_> = layers.iter().filter(|layer| layer.home == number + 1).collect();
            let n_split = here.iter().filter(|layer| layer.is_split()).count();
            observer.notice(&Notice::Placed(PlacementReport {
                device: other.candidate.name.clone(),
                n_home: here.len(),
                n_split,
                n_layer: layers.len(),
                used: forecast.devices[number + 1].total() + other.reserve(),
                budget: Some(other.budget).filter(|budget| *budget != Bytes::MAX),
                why_empty: other.why_empty(forecast.least[number + 1], options.placing.constraints),
            }));
        }
        for what in self.unmet_options(forecast, &options.placing) {
            observer.notice(&Notice::NotPlaced(what));
        }
        let (used, skips) = (forecast.placement.n_split() > 0, uses_differ(model));
        if used && skips && options.placing.uses.is_none() {
            observer.notice(&Notice::NoProfile);
        }
    }

    /// User options and rules that `forecast` does not meet, and parts of the model that devices
    /// reject, as sentences.
    #[must_use]
    pub fn unmet_options(&self, forecast: &Forecast, placing: &PlannerInputs) -> Vec<String> {
        let PlannerInputs { constraints, rules, .. } = placing;
        let unmet = rules.unmet(forecast).into_iter();
        let unmet = unmet.map(|unmet| overrides::unmet_sentence(unmet, self));
        let layers = &forecast.placement.layers;
        let placed = layers.iter().filter(|layer| layer.home != CPU).count();
        let on_cpu = rules.layers.iter().filter(|rule| rule.home == Some(CPU)).count();
        let wanted = constraints.whole_layers.unwrap_or(0).min(layers.len().saturating_sub(on_cpu));
        let fewer = (0 < placed && placed < wanted)
            .then(|| format!("only {placed} of the {wanted} requested layers fit"));
        let refused = self.others.iter().zip(&forecast.refused[1..]);
        let refused = refused.flat_map(|(other, all)| {
            all.iter().map(|what| format!("{}: {what}", other.candidate.name))
        });
        fewer.into_iter().chain(unmet).chain(refused).collect()
    }

    /// The planner's input for `model`. Devices without cached speeds are measured.
    pub(crate) fn placing(
        &self,
        model: &Model,
        computation: &Computation,
        observer: &dyn Observer,
    ) -> PlannerInputs {
        let constraints = computation.devices.constraints;
        if self.others.is_empty() {
            return PlannerInputs { constraints, ..PlannerInputs::default() };
        }
        let speeds = self.measured_speeds(model, computation, observer);
        let uses = known_uses(model, computation, observer);
        // `Runtime::open` reports the errors of overrides.
        let rules = overrides::rules(model, &computation.devices.tensor_overrides(), self);
        let rules = Arc::new(rules.unwrap_or_default());
        PlannerInputs { constraints, speeds, uses, rules, ..PlannerInputs::default() }
    }

    /// Speeds with weights of the model's format, even if there is nothing to plan.
    pub(crate) fn measured_speeds(
        &self,
        model: &Model,
        computation: &Computation,
        observer: &dyn Observer,
    ) -> Vec<Speed> {
        // The kernels of an assumed CPU do not run.
        if self.host_assumed.is_none_or(|host| host.speed.is_none()) {
            self.tune(model, computation, observer);
        }
        self.speeds(&shape_of(model, computation), computation, observer)
    }

    /// Cached speeds of all devices; `None` if one is missing.
    pub(crate) fn known_speeds(&self, model: &Model, options: &Computation) -> Option<Vec<Speed>> {
        let (shape, kept) = (shape_of(model, options), Speeds::open(options.folder(), false));
        let cpu = kept.known(&self.cpu_backend, self.n_threads, &shape);
        let others = self.others.iter().map(|o| kept.known(&o.backend, 0, &shape));
        [cpu].into_iter().chain(others).collect()
    }

    /// Speeds in the order of the engine's list. If a device cannot be measured, a notice says so
    /// and its speed is [`UNUSABLE`].
    pub(crate) fn speeds(
        &self,
        shape: &Shape,
        computation: &Computation,
        observer: &dyn Observer,
    ) -> Vec<Speed> {
        let mut kept = Speeds::open(computation.folder(), computation.devices.remeasure);
        let assumed = self.host_assumed.and_then(|host| host.speed);
        let cpu = (&self.cpu_backend, assumed, Bytes::MAX);
        let others =
            self.others.iter().map(|o| (&o.backend, o.assumed, o.device.ledger().budget()));
        let mut speeds = Vec::new();
        for (number, (backend, assumed, most)) in [cpu].into_iter().chain(others).enumerate() {
            let threads = if number == 0 { self.n_threads } else { 0 };
            let speed = match assumed {
                Some(assumed) => Ok(assumed.for_shape(shape)),
                None => kept.speed(backend, threads, shape, most),
            };
            speeds.push(speed.unwrap_or_else(|error| {
                let (device, reason) = (backend.info().name.clone(), error.to_string());
                observer.notice(&Notice::NotMeasured { device, reason });
                UNUSABLE
            }));
        }
        kept.save(observer);
        speeds
    }

    /// The measured shares of active rows from which the CPU computes all rows of `model` faster
    /// than a list of rows; [`DenseFrom::NEVER`] if the model has no feed-forward blocks, or if the
    /// CPU is assumed or cannot be measured.
    pub(crate) fn dense_from(
        &self,
        model: &Model,
        computation: &Computation,
        observer: &dyn Observer,
    ) -> DenseFrom {
        if self.host_assumed.is_some_and(|host| host.speed.is_some()) || model.max_n_ff() == 0 {
            return DenseFrom::NEVER;
        }
        let mut kept = Speeds::open(computation.folder(), computation.devices.remeasure);
        let shape = shape_of(model, computation);
        let found = kept.dense_from(&self.cpu_backend, self.n_threads, &shape);
        kept.save(observer);
        found.unwrap_or_else(|error| {
            let (device, reason) = (self.cpu.info().name.clone(), error.to_string());
            observer.notice(&Notice::NotMeasured { device, reason });
            DenseFrom::NEVER
        })
    }
}

/// Whether tokens use different neurons of the model.
pub(crate) fn uses_differ(model: &Model) -> bool {
    model.is_exactly_sparse() || model.experts().is_some()
}

/// How often each neuron fires according to the profile; `None` without a usable profile, or if
/// every token uses all neurons.
pub(crate) fn known_uses(
    model: &Model,
    computation: &Computation,
    observer: &dyn Observer,
) -> Option<Arc<Vec<Vec<f32>>>> {
    if !uses_differ(model) {
        return None;
    }
    let read = SideFile::find(&model.file, computation.folder(), Section::Profile)
        .and_then(|found| found.map_or(Ok(None), |learned| Profile::read(&learned, model)));
    match read {
        Ok(profile) => profile.map(|profile| Arc::new(profile.uses(model))),
        Err(refused) => {
            observer.notice(&Notice::ProfileRefused { reason: refused.to_string() });
            None
        }
    }
}
