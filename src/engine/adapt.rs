//! Adapts the hot set to the text: neurons that the CPU computes often swap places with resident
//! neurons that are rarely active.
//!
//! Every program of up to 16 tokens counts active rows, on the device and on the CPU. Every
//! [`exchange::EVERY`] tokens the counts are read and clear cases are swapped: a slot of the
//! device's pack and a slot of the CPU's pack are each filled with the other's neuron, from host
//! memory. This happens between two steps, so no program reads a half-filled slot and no spare
//! slot is needed. Packs, programs and shapes stay as they are. Experts with a ReLU swap neurons
//! within each expert. Other experts swap as a whole by renumbering: the router's rows are
//! swapped, so that group g means another expert from then on.

use std::iter::Sum;
use std::sync::Arc;

use hal::op::Down;
use hal::{Bytes, HostRows, Source};

use model::Ffn;
use placement::exchange::{self, Bounds, EVERY, Heat, Weight};
use placement::{CPU, DeviceIndex, LayerPlacement, Neurons, Placement, Speed};

use super::build::{Layer, Loaded, Plan};
use super::ffn::{FfnMode, PackedFfn};
use super::lane::Lane;
use super::refill::{ByNeuron, at_once};
use super::{Engine, Result, StepStats};

/// Neurons exchanged since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exchanged {
    /// Neurons moved to a device.
    pub neurons: u64,
    /// Share of active neurons that were not on the CPU, over the first tokens.
    pub first: f64,
    /// The same share over the last tokens.
    pub last: f64,
}

/// Requirements of exchanging neurons in a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeNeeds {
    /// Layers whose neurons can be exchanged.
    pub n_layers: usize,
    /// Maximum number of neurons exchanged at one decision; 0 where an exchange would gain
    /// nothing.
    pub most: usize,
    /// Bytes of the model that must stay in host memory: of the mapped file, and of transposed
    /// down matrices.
    pub host: Bytes,
    /// Bytes of the counters on each device.
    pub counters: Bytes,
}

/// Unit in which neurons of a block are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Single neurons.
    Neurons,
    /// Whole experts of this number of neurons.
    Experts(usize),
    /// Single neurons, only within an expert of this number of neurons.
    WithinExperts(usize),
}

impl Way {
    pub(super) fn unit(self) -> usize {
        match self {
            Way::Neurons | Way::WithinExperts(_) => 1,
            Way::Experts(n) => n,
        }
    }
}

/// One layer whose neurons are exchanged.
#[derive(Debug)]
pub(super) struct Exchanging {
    pub(super) layer: usize,
    pub(super) way: Way,
    heat: Heat,
    bounds: Bounds,
    /// For whole experts: the expert numbers at load by the units of each side (home, CPU), and
    /// the expert that each number means now.
    pub(super) numbers: Option<([Vec<usize>; 2], Vec<u32>)>,
    /// The transposed down matrix, where slots could not be filled from the file in time.
    pub(super) down: Option<ByNeuron>,
}

/// The counts of all layers, and when to read them.
#[derive(Debug)]
pub(super) struct Adapt {
    layers: Vec<Exchanging>,
    weight: Weight,
    /// Tokens since the last decision, and their active neurons.
    since: usize,
    seen: StepStats,
    done: Option<Exchanged>,
    neurons: u64,
    /// Counts of one layer on one side.
    counts: Vec<f32>,
}

impl Adapt {
    /// Records the statistics of steps of up to [`hal::op::MOST_COUNTED`] tokens.
    pub(super) fn found(&mut self, stats: &StepStats) {
        self.seen += *stats;
    }

    /// Counts a step; returns whether a decision is due.
    fn saw(&mut self, n_tokens: usize) -> bool {
        if n_tokens > hal::op::MOST_COUNTED {
            return false;
        }
        self.since += n_tokens;
        self.weight += n_tokens;
        self.since >= EVERY
    }

    /// Resets the count for the next decision.
    fn decide(&mut self) {
        let share = self.seen.off_cpu / self.seen.active.max(1.0);
        let done = self.done.get_or_insert(Exchanged { neurons: 0, first: share, last: share });
        done.last = share;
        (self.since, self.seen) = (0, StepStats::default());
    }

    pub(super) fn exchanged(&self) -> Option<Exchanged> {
        self.done.map(|done| Exchanged { neurons: self.neurons, ..done })
    }

    /// The expert that each number of `layer` means, if experts were swapped.
    pub(super) fn experts(&self, layer: usize) -> Option<&[u32]> {
        let at = self.layers.iter().find(|at| at.layer == layer)?;
        at.numbers.as_ref().map(|(_, experts)| &experts[..])
    }
}

/// The neurons of a layer's home and of the CPU, if those are its two sides.
pub(super) fn sides(placed: &LayerPlacement) -> Option<[&Arc<[u32]>; 2]> {
    let list = |device: DeviceIndex| {
        placed.shares.iter().find_map(|share| match &share.neurons {
            Neurons::List(list) if share.device == device && !list.is_empty() => Some(list),
            Neurons::List(_) | Neurons::All => None,
        })
    };
    match placed.home {
        CPU => None,
        home => Some([list(home)?, list(CPU)?]),
    }
}

impl FfnMode {
    /// Unit in which neurons of the block are exchanged; `None` where all neurons are used or
    /// where one neuron is spread over blocks of a matrix.
    fn exchanges(self, ffn: &Ffn) -> Option<Way> {
        match (self.orientation(ffn), ffn.n_expert()) {
            (Down::ByNeuron, None) if self.is_sparse() => Some(Way::Neurons),
            // Bounds of groups are part of a program, so the number of an expert's neurons on each
            // side stays the same.
            (Down::ByNeuron, Some(n)) if self.is_sparse() => {
                Some(Way::WithinExperts(ffn.up.w.desc().n_rows / n.max(1)))
            }
            (Down::AcrossNeurons, Some(_)) => Some(Way::Experts(ffn.down.w.desc().n_cols)),
            (Down::ByNeuron | Down::AcrossNeurons, _) => None,
        }
    }
}

/// Passes over the memory bus for a copy within host memory: read the file, read the slot (for
/// ownership), write the slot.
const COPIED: f64 = 3.0;

/// Contiguous writes when an expert changes sides.
#[derive(Clone, Copy, Debug, Default)]
struct Stretches {
    bytes: f64,
    rows: f64,
    writes: f64,
}

impl Stretches {
    /// For a matrix of `n` experts.
    fn new(rows: &HostRows, n: usize) -> Stretches {
        let n_rows = rows.desc().n_rows / n;
        Stretches {
            bytes: (n_rows * rows.row_bytes()) as f64,
            rows: n_rows as f64,
            writes: n_rows.div_ceil(at_once(rows.row_bytes())) as f64,
        }
    }

    /// Seconds on a device that writes `rate` bytes per second; row by row where the rate is not
    /// known.
    fn seconds(&self, speed: &Speed, rate: f64) -> f64 {
        let by_row = self.rows * speed.refill;
        match rate > 0.0 {
            true => by_row.min(self.writes * speed.refill + self.bytes / rate),
            false => by_row,
        }
    }
}

impl Sum for Stretches {
    fn sum<I: Iterator<Item = Stretches>>(all: I) -> Stretches {
        all.fold(Stretches::default(), |sum, one| Stretches {
            bytes: sum.bytes + one.bytes,
            rows: sum.rows + one.rows,
            writes: sum.writes + one.writes,
        })
    }
}

/// Bytes of a matrix in the file, if it is mapped and not held in memory.
fn mapped(rows: &HostRows) -> Bytes {
    match rows.source() {
        Source::Owned(_) => Bytes(0),
        Source::Mapped(_) | Source::Paged(_) => rows.desc().bytes().unwrap_or_default(),
    }
}

impl Engine {
    /// After a step of `n_tokens`: exchanges neurons if a decision is due.
    ///
    /// # Errors
    /// Those of the devices.
    pub(super) fn adapt(&mut self, n_tokens: usize) -> Result<()> {
        let is_due =
            |loaded: &mut Loaded| loaded.adapt.as_mut().is_some_and(|adapt| adapt.saw(n_tokens));
        if !self.loaded.as_mut().is_some_and(is_due) {
            return Ok(());
        }
        self.read_counters()?;
        // After an error the contents of the slots are unknown, so the model is unloaded and
        // loaded again.
        let taken = self.loaded.take();
        let Some((mut loaded, mut adapt)) = taken.and_then(|mut loaded| {
            let mut adapt = loaded.adapt.take()?;
            adapt.decide();
            Some((loaded, adapt))
        }) else {
            return Ok(());
        };
        let changed = self.planner(&|_, _| {}).exchange(&mut adapt, &mut loaded, &self.placement);
        for (layer, placed) in changed? {
            let streams = loaded.streams.iter_mut().flatten();
            streams.for_each(|stream| stream.place(layer, &placed, &self.model));
            self.placement.layers[layer] = placed;
        }
        loaded.adapt = Some(adapt);
        self.loaded = Some(loaded);
        Ok(())
    }
}

impl Plan<'_> {
    /// Whether rows are counted, which is only needed if some layer can exchange neurons.
    pub(super) fn counts(&self) -> bool {
        let exchanges = |(_, ffn): (usize, &Ffn)| self.mode.exchanges(ffn).is_some();
        self.options.adapt && self.devices.len() > 1 && self.model.blocks().any(exchanges)
    }

    /// Requirements of the exchange; `None` where it is off or no layer can exchange neurons.
    /// `seconds` is the estimated time of a token, if there is an estimate.
    pub(super) fn exchange_needs(
        &self,
        placement: &Placement,
        seconds: Option<f64>,
    ) -> Option<ExchangeNeeds> {
        let shape = self.scratch().hits?;
        let mut needs = ExchangeNeeds { n_layers: 0, most: 0, host: Bytes(0), counters: Bytes(0) };
        let mut most = usize::MAX;
        for (index, placed) in placement.layers.iter().enumerate() {
            let Some(ffn) = &self.model.layers[index].ffn else { continue };
            let (Some(_), Some(way)) = (sides(placed), self.mode.exchanges(ffn)) else { continue };
            let bounds = self.bounds(index, placed.home, way, seconds);
            if bounds.least.is_some() {
                most = most.min(bounds.most * way.unit());
                needs.most = most;
            }
            needs.n_layers += 1;
            needs.host += self.host(ffn);
        }
        needs.counters = shape.bytes().unwrap_or_default();
        (needs.n_layers > 0).then_some(needs)
    }

    /// Bytes of a block that stay in host memory to fill slots from.
    fn host(&self, ffn: &Ffn) -> Bytes {
        let size =
            |packed: &PackedFfn| ByNeuron::size(packed).unwrap_or_else(|| mapped(&packed.rows));
        let packs = self.mode.packs(&self.devices[CPU], ffn, &Neurons::All);
        packs.iter().map(size).sum()
    }

    /// Cost and gain of exchanging neurons of a layer.
    fn bounds(&self, index: usize, home: DeviceIndex, way: Way, seconds: Option<f64>) -> Bounds {
        let ffn = self.block(index);
        let [device, cpu] = [home, CPU].map(|device| self.options.placing.speed(device));
        let used = self.reads(index).used * way.unit() as f64;
        let saved = used * (1.0 / cpu.sparse - 1.0 / device.sparse);
        let cost = match way {
            Way::Neurons | Way::WithinExperts(_) => {
                ffn.matrices().count() as f64 * (device.refill + cpu.refill)
            }
            Way::Experts(_) => {
                let n = ffn.n_expert().unwrap_or(1);
                let stretches = ffn.matrices().map(|(_, rows)| Stretches::new(rows, n));
                let stretches: Stretches = stretches.sum();
                stretches.seconds(&device, device.upload)
                    + stretches.seconds(&cpu, cpu.dense / COPIED)
            }
        };
        Bounds::new(saved, cost, seconds)
    }

    /// Sets up the exchange of neurons, or reports why it is off although it was requested.
    /// `seconds` is the estimated time of a token, if there is an estimate.
    pub(super) fn adapt(
        &self,
        layers: &[Layer],
        placement: &Placement,
        seconds: Option<f64>,
    ) -> std::result::Result<Option<Adapt>, String> {
        let Some(needs) = self.exchange_needs(placement, seconds) else { return Ok(None) };
        if needs.most == 0 {
            return Ok(None);
        }
        let free = self.devices[CPU].memory().ok().and_then(|memory| memory.free);
        if let Some(free) = free.filter(|free| *free < needs.host) {
            return Err(format!(
                "the hot set is not adapted: that needs {} of the model in host memory, and {free} are free",
                needs.host
            ));
        }
        let made = placement.layers.iter().zip(layers).enumerate();
        let made =
            made.filter_map(|(i, (placed, layer))| self.exchanging(i, placed, layer, seconds));
        let layers: hal::Result<Vec<Exchanging>> = made.collect();
        let layers = layers.map_err(|error| format!("the hot set is not adapted: {error}"))?;
        Ok((!layers.is_empty()).then(|| Adapt {
            layers,
            weight: Weight::default(),
            since: 0,
            seen: StepStats::default(),
            done: None,
            neurons: 0,
            counts: Vec::new(),
        }))
    }

    fn exchanging(
        &self,
        index: usize,
        placed: &LayerPlacement,
        layer: &Layer,
        seconds: Option<f64>,
    ) -> Option<hal::Result<Exchanging>> {
        let ffn = self.model.layers[index].ffn.as_ref()?;
        let lists = sides(placed)?;
        let way = self.mode.exchanges(ffn)?;
        // An expert's `bias_down` moves with its number; on the CPU it is read from the file.
        let added_here = layer.own.as_ref().is_some_and(|own| own.bias_down.is_some());
        if matches!(way, Way::Experts(_)) && ffn.down.bias.is_some() && !added_here {
            return None;
        }
        let (unit, n_ff) = (way.unit(), ffn.n_ff());
        let (placing, used) = (&self.options.placing, ffn.share_used());
        let uses = placing.uses.as_ref().and_then(|uses| uses.get(index));
        let uses = uses.filter(|uses| uses.len() == n_ff);
        let density = if self.mode.is_sparse() { placing.density } else { 1.0 };
        let expected = |n: usize| uses.map_or((density * used) as f32, |uses| uses[n]);
        let number = |list: &Arc<[u32]>| -> Vec<usize> {
            list.iter().step_by(unit).map(|&n| n as usize / unit).collect()
        };
        let whole = ffn.n_expert().filter(|_| matches!(way, Way::Experts(_)));
        let numbers = whole.map(|n| (lists.map(number), (0..n as u32).collect()));
        let packs = self.mode.packs(&self.devices[CPU], ffn, &Neurons::All);
        let down = packs.iter().find(|packed| ByNeuron::size(packed).is_some());
        let down = down.map(|packed| {
            let down = ByNeuron::new(packed, &self.devices[CPU]);
            self.model.file.release_rows(&packed.rows);
            down
        });
        Some(down.transpose().map(|down| Exchanging {
            layer: index,
            way,
            heat: Heat::new((0..n_ff).map(expected)),
            bounds: self.bounds(index, placed.home, way, seconds),
            numbers,
            down,
        }))
    }

    /// Reads the counts and exchanges neurons where the gain is clear. Returns the layers whose
    /// placement changed. After an error the contents of the slots are unknown.
    ///
    /// # Errors
    /// Those of the devices.
    pub(super) fn exchange(
        &self,
        adapt: &mut Adapt,
        loaded: &mut Loaded,
        placement: &Placement,
    ) -> Result<Vec<(usize, LayerPlacement)>> {
        let mut all = Vec::new();
        let mut most = usize::MAX;
        for at in &mut adapt.layers {
            let placed = &placement.layers[at.layer];
            let Some(lists) = sides(placed) else { continue };
            for (device, list) in [placed.home, CPU].into_iter().zip(lists) {
                let lane = lane_of(&mut loaded.lanes, device);
                lane.take_hits(at.layer, &mut adapt.counts)?;
                list.iter().zip(&adapt.counts).for_each(|(&neuron, &n)| at.heat.add(neuron, n));
            }
            let lists = lists.map(|list| &list[..]);
            let heat = (at.layer, &at.heat, adapt.weight);
            all.extend(match at.way {
                Way::WithinExperts(n) => exchange::swaps_within(heat, lists, n, &at.bounds),
                way @ (Way::Neurons | Way::Experts(_)) => {
                    exchange::swaps(heat, lists, way.unit(), &at.bounds)
                }
            });
            most = most.min(at.bounds.most);
        }
        adapt.weight.decay(adapt.layers.iter_mut().map(|at| &mut at.heat));
        let chosen = exchange::best(all, most);
        let mut changed = Vec::new();
        for swaps in chosen.chunk_by(|a, b| a.layer == b.layer) {
            let Some(at) = adapt.layers.iter_mut().find(|at| at.layer == swaps[0].layer) else {
                continue;
            };
            let placed = self.exchange_in(at, loaded, &placement.layers[at.layer], swaps)?;
            adapt.neurons += (swaps.len() * at.way.unit()) as u64;
            if let Some(observers) = &mut loaded.observers {
                let experts = at.numbers.as_ref().map(|(_, experts)| experts.clone());
                observers.relabel(at.layer, &placed, experts);
            }
            changed.push((at.layer, placed));
        }
        Ok(changed)
    }
}

pub(super) fn lane_of(lanes: &mut [Option<Lane>], device: DeviceIndex) -> &mut Lane {
    lanes[device].as_mut().expect("a used device has a lane")
}
