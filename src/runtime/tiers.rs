//! Decides whether weights stay on disk, and how much memory the rest may take.

use std::fmt;
use std::path::PathBuf;

use engine::{EngineOptions, NeuronReads, PagingOptions, ReadRates, Tiers};
use hal::{Bytes, Device, MemoryReport};
use model::Model;
use placement::{CPU, Forecast, Placement};
use store::{DirectFile, DiskSpeed};

use crate::Result;
use crate::disk_plan::uses_devices;
use crate::error::MemoryLimit;
use crate::memory::MemoryNeed;
use crate::neuron_reads::{self, read_seconds};
use crate::notice::{Notice, Observer};
use crate::options::{Budget, Computation};
use crate::repack;
use crate::runtime::Runtime;
use crate::speeds::Speeds;

/// Host memory of a process beside weights, KV cache and scratch: code, vocabulary, threads,
/// buffers.
const OTHER_MEMORY: Bytes = Bytes(64 << 20);
/// The least memory that [`Budget::Auto`] leaves free, and the part of the free memory.
const MARGIN: (Bytes, u64) = (Bytes(64 << 20), 16);
/// What a limit of this process need not leave: code and buffers exist already, and it has no other
/// users.
pub(crate) const IN_USE: Bytes = Bytes(OTHER_MEMORY.0 + MARGIN.0.0);
/// Number of reading threads if the disk cannot be measured.
pub(crate) const USUAL_DEPTH: usize = 8;

/// A message about weights on disk.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskNotice {
    /// The file system cannot read past the page cache.
    NotDirect {
        /// The model's file.
        file: PathBuf,
    },
    /// Weights stay on disk, because they do not fit into memory.
    Tiers {
        /// Host memory that may be used.
        budget: Bytes,
        /// Sizes of the tiers.
        tiers: Tiers,
    },
    /// What weights on disk cost.
    Reads {
        /// Bytes that a token reads by the estimate.
        per_token: Bytes,
        /// Single neurons that a token reads by the estimate.
        neurons: f64,
        /// Measured bytes per second of the disk, and the estimated seconds of a token's reads;
        /// `None` if the disk cannot be measured.
        rate: Option<[f64; 2]>,
    },
}

impl fmt::Display for DiskNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskNotice::NotDirect { file } => write!(
                f,
                "the file system of {} cannot read past the page cache, so the system may cache weights beyond the budget",
                file.display()
            ),
            DiskNotice::Tiers { budget, tiers } => {
                let Tiers { devices, copies, weights, pinned, cache, read_per_token, .. } = *tiers;
                let on_disk = tiers.on_disk();
                let all = devices + copies + weights;
                write!(
                    f,
                    "{on_disk} of {all} of weights stay on disk, because only {budget} of memory may be used: "
                )?;
                if devices > Bytes(0) {
                    write!(f, "{devices} are on devices, ")?;
                }
                let always = pinned + copies;
                // Of a dense model, every token reads all the rest.
                let is_dense = read_per_token >= Bytes(weights.0.saturating_sub(pinned.0));
                let holds =
                    if is_dense { "are for reads" } else { "hold what the text needs most" };
                write!(f, "{always} are always in memory, {cache} {holds}")
            }
            DiskNotice::Reads { per_token, neurons, rate } => {
                write!(f, "a token reads about {per_token} from disk")?;
                if *neurons > 0.0 {
                    write!(f, ", in {neurons:.0} neurons")?;
                }
                match rate {
                    None => Ok(()),
                    Some([bandwidth, seconds]) => write!(
                        f,
                        " at {:.2} GB/s: up to {:.1} tokens/s by the estimate",
                        bandwidth / 1e9,
                        1.0 / seconds
                    ),
                }
            }
        }
    }
}

/// The speed of the disk of a model's file, cached or measured; `None` if it cannot be measured.
/// Sends a notice if the file cannot be read past the page cache.
pub(crate) fn disk_speed(
    file: &gguf::File,
    computation: &Computation,
    observer: &dyn Observer,
) -> Option<DiskSpeed> {
    let (path, facts) = (file.paths().first()?, file.opened(0)?);
    let opened = DirectFile::open(path, Some(facts)).ok()?;
    if !opened.is_direct() {
        observer.notice(&Notice::Disk(DiskNotice::NotDirect { file: path.clone() }));
    }
    let mut speeds = Speeds::open(computation.folder(), computation.devices.remeasure);
    let speed = speeds.disk(path, &opened);
    speeds.save(observer);
    speed
}

/// Weights that stay on disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskTier {
    pub(crate) options: PagingOptions,
    /// `None` if the disk could not be measured.
    speed: Option<DiskSpeed>,
}

impl DiskTier {
    /// The disk tier with `usable` bytes of host memory ([`usable_memory`]).
    fn new(
        model: &Model,
        usable: Bytes,
        computation: &Computation,
        observer: &dyn Observer,
    ) -> DiskTier {
        let speed = disk_speed(&model.file, computation, observer);
        let depth = speed.map_or(USUAL_DEPTH, |speed| speed.depth);
        DiskTier {
            options: PagingOptions { budget: usable, depth, neurons: NeuronReads::Layer },
            speed,
        }
    }

    /// Reports what is on disk, and what that costs.
    pub(crate) fn report(&self, tiers: &Tiers, observer: &dyn Observer) {
        if tiers.on_disk() == Bytes(0) {
            return;
        }
        let budget = self.options.budget + OTHER_MEMORY;
        observer.notice(&Notice::Disk(DiskNotice::Tiers { budget, tiers: *tiers }));
        let (per_token, neurons) = (tiers.read_per_token, tiers.row_reads_per_token);
        let rate = self.rates().map(|disk| [disk.bandwidth, read_seconds(tiers, disk)]);
        if per_token > Bytes(0) {
            observer.notice(&Notice::Disk(DiskNotice::Reads { per_token, neurons, rate }));
        }
    }

    /// The measured rates of the disk; `None` if it could not be measured.
    fn rates(&self) -> Option<ReadRates> {
        let DiskSpeed { bandwidth, small_reads, .. } = self.speed?;
        Some(ReadRates { bandwidth, small_reads })
    }
}

/// The memory for weights, KV cache and scratch of a model that needs `need`, which is more, on a
/// machine with `memory`; `None` if the model fits, or if its weights are not used from a mapped
/// file. `least` returns what must be in memory at once if the other weights stay on disk: this may
/// change the placement.
///
/// # Errors
/// [`crate::Error::Memory`] if what must be in memory at once exceeds the budget.
fn usable_memory(
    model: &Model,
    need: &MemoryNeed,
    least: impl FnOnce() -> (MemoryNeed, Bytes),
    settings: &EngineOptions,
    computation: &Computation,
    memory: MemoryReport,
) -> Result<Option<Bytes>> {
    let given = computation.devices.ram_budget;
    let wanted = computation.mmap && !computation.mlock && !computation.must_fit;
    let budget = match given {
        Budget::Bytes(bytes) => Some(Bytes(bytes)),
        Budget::Share(share) => {
            memory.total.map(|total| Bytes((total.0 as f64 * f64::from(share)) as u64))
        }
        Budget::Auto => memory.free.map(|free| free - MARGIN.0.max(Bytes(free.0 / MARGIN.1))),
    };
    let Some(budget) = budget else { return Ok(None) };
    let limit = if given == Budget::Auto { MemoryLimit::Free } else { MemoryLimit::Budget };
    let usable = budget - OTHER_MEMORY;
    if need.total() <= usable {
        return Ok(None);
    }
    if model.file.paths().is_empty() || !wanted || cfg!(not(any(unix, windows))) {
        // A limit that cannot be kept is refused; without one, the memory check decides.
        let refused = given != Budget::Auto;
        return if refused {
            Err(need.error((limit, budget), settings.n_ctx, OTHER_MEMORY, None))
        } else {
            Ok(None)
        };
    }
    let in_memory = need;
    let (need, least) = least();
    if need.unmapped() + least > usable {
        let need = need.at_once(least);
        return Err(need.error((limit, budget), settings.n_ctx, OTHER_MEMORY, Some(in_memory)));
    }
    Ok(Some(usable))
}

impl Runtime {
    /// Plans the placement of `model`, and decides whether weights stay on disk: first what devices
    /// hold, then what memory holds. The settings then say where repacked weights and weights on
    /// disk are.
    pub(crate) fn tiers(
        &self,
        model: &Model,
        settings: EngineOptions,
        devices: &[Device],
    ) -> Result<(EngineOptions, Option<Forecast>, Option<DiskTier>)> {
        let (observer, cpu) = (self.observer().as_ref(), &self.machine().cpu);
        let has_devices = !self.machine().others.is_empty();
        let plan = |settings: &EngineOptions| {
            has_devices.then(|| engine::forecast(model, devices, settings))
        };
        let planned = plan(&settings);
        let on_devices = planned.as_ref().is_some_and(uses_devices);
        let computation = &self.options().computation;
        let memory = self.machine().memory_for(model, IN_USE);
        let usable = self.memory_beside_disk(
            model,
            &settings,
            planned.as_ref(),
            plan,
            (computation, memory),
        )?;
        let disk = usable.map(|usable| DiskTier::new(model, usable, computation, observer));
        let mut settings = EngineOptions { paging: disk.map(|disk| disk.options), ..settings };
        settings.placing.disk = disk.as_ref().and_then(DiskTier::rates);
        if disk.is_some() && settings.placing.uses.is_none() {
            settings.placing.uses = self.known_uses(model);
        }
        if on_devices && disk.is_none() {
            return Ok((settings, planned, disk));
        }
        if let Some(disk) = &disk {
            let placement = plan(&settings).map(|forecast| forecast.placement);
            let on_cpu = || Placement::all_on(CPU, model.hyper.n_layer);
            let placement = placement.unwrap_or_else(on_cpu);
            settings = neuron_reads::choose(
                model,
                devices,
                settings,
                &placement,
                computation,
                disk.rates(),
            );
        }
        let settings = repack::prepare(model, settings, computation, cpu, observer)?;
        let planned = if disk.is_some() { plan(&settings) } else { planned };
        Ok((settings, planned, disk))
    }

    /// The memory for weights, KV cache and scratch if weights of `model` stay on disk in the
    /// placement of `planned`; `None` if they do not. `plan` places the model for weights on disk.
    ///
    /// # Errors
    /// As [`usable_memory`].
    pub(crate) fn memory_beside_disk(
        &self,
        model: &Model,
        settings: &EngineOptions,
        planned: Option<&Forecast>,
        plan: impl FnOnce(&EngineOptions) -> Option<Forecast>,
        (computation, memory): (&Computation, MemoryReport),
    ) -> Result<Option<Bytes>> {
        let neurons = NeuronReads::Layer;
        let paging = Some(PagingOptions { budget: Bytes::MAX, depth: 1, neurons });
        let paged = EngineOptions { paging, ..settings.clone() };
        // Repacked weights are cached for whole layers: for models that are entirely on the CPU,
        // and with weights on disk.
        let keeps_copies = computation.cache.is_some();
        let on_devices = planned.is_some_and(uses_devices);
        let whole = self.host_need(model, &paged, planned);
        let whole = whole.with_copies_mapped(keeps_copies && !on_devices);
        let least = || {
            let planned = plan(&paged);
            let on_cpu = Placement::all_on(CPU, model.hyper.n_layer);
            let placement = planned.as_ref().map_or(&on_cpu, |forecast| &forecast.placement);
            let devices = self.machine().devices();
            let least = engine::least_paged(model, &devices, &paged, placement);
            let need = self.host_need(model, &paged, planned.as_ref());
            (need.with_copies_mapped(keeps_copies), least)
        };
        usable_memory(model, &whole, least, &paged, computation, memory)
    }
}
