//! The hot set follows the text: neurons that the CPU is asked for often change places with those that the device holds
//! in vain.
//!
//! Every program of up to 16 tokens counts which rows were carried through, on both sides. Every
//! [`exchange::EVERY`] tokens the counts are fetched, and what is clear changes places: a slot of the device's pack and
//! one of the CPU's are filled with each other's neuron, from the host's memory, between two steps. Nothing is computed
//! then, so nobody reads a slot that is half full, and no slot is kept free. Packs, programs and shapes stay as they are.
//! Experts with a ReLU exchange neurons, each with its own. Others change places by number: the rows of the router, so
//! that group g means another expert from then on.

use std::iter::Sum;
use std::sync::Arc;

use hal::op::Down;
use hal::{Bytes, HostRows, Source};

use crate::model::{Ffn, LayerWeights};
use crate::placement::exchange::{self, Bounds, EVERY, Heat, Weight};
use crate::placement::{CPU, DeviceIndex, LayerPlacement, Neurons, Placement, Speed};

use super::build::{Layer, Loaded, Plan};
use super::ffn::{FfnMode, PackedFfn};
use super::lane::Lane;
use super::refill::{ByNeuron, at_once};
use super::{Engine, Result, StepStats};

/// What was exchanged since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Exchanged {
    /// Neurons that came to a device.
    pub neurons: u64,
    /// The share of the neurons carried through that were not on the CPU, in the first tokens.
    pub first: f64,
    /// The same in the last ones.
    pub last: f64,
}

/// What exchanging takes in a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeNeeds {
    /// Layers whose neurons can change sides.
    pub n_layers: usize,
    /// Most neurons that change places with others at one decision; 0 where that would gain nothing.
    pub most: usize,
    /// Bytes of the model that are in the host's memory for it: of the mapped file, and of down matrices by neuron.
    pub host: Bytes,
    /// Bytes of the counters on each device.
    pub counters: Bytes,
}

/// How neurons of a block change sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One by one.
    Neurons,
    /// By whole experts of so many neurons.
    Experts(usize),
    /// One by one, each with others of the same expert of so many.
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

/// One layer whose neurons change sides.
#[derive(Debug)]
pub(super) struct Exchanging {
    pub(super) layer: usize,
    pub(super) way: Way,
    heat: Heat,
    bounds: Bounds,
    /// Of whole experts, their numbers at load by the units of each side (home, CPU), and which expert each number means
    /// now.
    pub(super) numbers: Option<([Vec<usize>; 2], Vec<u32>)>,
    /// Down by neuron, where slots could not be filled from the file in time.
    pub(super) down: Option<ByNeuron>,
}

/// The counts of all layers, and when they are looked at.
#[derive(Debug)]
pub(super) struct Adapt {
    layers: Vec<Exchanging>,
    weight: Weight,
    /// Tokens since the last decision, and what they carried through.
    since: usize,
    seen: StepStats,
    done: Option<Exchanged>,
    neurons: u64,
    /// Of one layer on one side.
    counts: Vec<f32>,
}

impl Adapt {
    /// Notes a step; says whether it is time to decide.
    pub(super) fn saw(&mut self, n_tokens: usize, stats: &StepStats) -> bool {
        if n_tokens > hal::op::MOST_COUNTED {
            return false;
        }
        self.since += n_tokens;
        self.weight += n_tokens;
        self.seen += *stats;
        if self.since < EVERY {
            return false;
        }
        let share = self.seen.off_cpu / self.seen.active.max(1.0);
        let done = self.done.get_or_insert(Exchanged { neurons: 0, first: share, last: share });
        done.last = share;
        (self.since, self.seen) = (0, StepStats::default());
        true
    }

    pub(super) fn exchanged(&self) -> Option<Exchanged> {
        self.done.map(|done| Exchanged { neurons: self.neurons, ..done })
    }

    /// Which expert each number of `layer` means, if they have changed places.
    pub(super) fn experts(&self, layer: usize) -> Option<&[u32]> {
        let at = self.layers.iter().find(|at| at.layer == layer)?;
        at.numbers.as_ref().map(|(_, experts)| &experts[..])
    }
}

/// The lists of a layer's home and of the CPU, if those are its two sides.
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
    /// How neurons of the block change sides; `None` where they cannot: where all are used, or where one is spread over
    /// blocks of a matrix.
    fn exchanges(self, ffn: &Ffn) -> Option<Way> {
        match (self.orientation(ffn), ffn.n_expert) {
            (Down::ByNeuron, None) if self.is_sparse() => Some(Way::Neurons),
            // Bounds of groups are part of a program, so each expert keeps as many neurons on a side as it has.
            (Down::ByNeuron, Some(n)) if self.is_sparse() => {
                Some(Way::WithinExperts(ffn.up.w.desc().n_rows / n.max(1)))
            }
            (Down::AcrossNeurons, Some(_)) => Some(Way::Experts(ffn.down.w.desc().n_cols)),
            (Down::ByNeuron | Down::AcrossNeurons, _) => None,
        }
    }
}

/// How often what is copied within the host's memory passes its bus: out of the file, out of the slot's place, into it.
const COPIED: f64 = 3.0;

/// What is written where an expert changes sides.
#[derive(Clone, Copy, Debug, Default)]
struct Stretches {
    bytes: f64,
    rows: f64,
    writes: f64,
}

impl Stretches {
    /// Of a matrix of `n` experts.
    fn new(rows: &HostRows, n: usize) -> Stretches {
        let n_rows = rows.desc().n_rows / n;
        Stretches {
            bytes: (n_rows * rows.row_bytes()) as f64,
            rows: n_rows as f64,
            writes: n_rows.div_ceil(at_once(rows.row_bytes())) as f64,
        }
    }

    /// Seconds at a device that takes so many bytes a second. Where that is not known, row by row.
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

/// Bytes of a matrix in the file, if it is mapped and not held.
fn mapped(rows: &HostRows) -> Bytes {
    match rows.source() {
        Source::Owned(_) => Bytes(0),
        Source::Mapped(_) | Source::Paged(_) => rows.desc().bytes().unwrap_or_default(),
    }
}

impl Engine {
    /// After a step of `n_tokens`: lets neurons change sides if it is time.
    ///
    /// # Errors
    /// Those of the devices.
    pub(super) fn adapt(&mut self, n_tokens: usize, stats: &StepStats) -> Result<()> {
        let is_due = |loaded: &mut Loaded| {
            loaded.adapt.as_mut().is_some_and(|adapt| adapt.saw(n_tokens, stats))
        };
        if !self.loaded.as_mut().is_some_and(is_due) {
            return Ok(());
        }
        // Where it fails, what slots hold is not known: nothing is left then, and all is loaded anew.
        let taken = self.loaded.take();
        let Some((mut loaded, mut adapt)) = taken.and_then(|mut loaded| {
            let adapt = loaded.adapt.take()?;
            Some((loaded, adapt))
        }) else {
            return Ok(());
        };
        let changed = self.planner(&|_, _| {}).exchange(&mut adapt, &mut loaded, &self.placement);
        let changed = changed.inspect_err(|_| self.generation += 1)?;
        for (layer, placed) in changed {
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
    /// Whether counts are kept: if anything could ever change sides.
    pub(super) fn counts(&self) -> bool {
        let exchanges = |layer: &LayerWeights| self.mode.exchanges(&layer.ffn).is_some();
        self.options.adapt && self.devices.len() > 1 && self.model.layers.iter().any(exchanges)
    }

    /// What exchanging takes; `None` where it is off or nothing could change sides. `seconds` is what a token takes, if
    /// that was estimated.
    pub(super) fn exchange_needs(
        &self,
        placement: &Placement,
        seconds: Option<f64>,
    ) -> Option<ExchangeNeeds> {
        let shape = self.scratch().hits?;
        let mut needs = ExchangeNeeds { n_layers: 0, most: 0, host: Bytes(0), counters: Bytes(0) };
        let mut most = usize::MAX;
        for (index, placed) in placement.layers.iter().enumerate() {
            let ffn = &self.model.layers[index].ffn;
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

    /// Bytes of a block that the host keeps to fill slots from.
    fn host(&self, ffn: &Ffn) -> Bytes {
        let size =
            |packed: &PackedFfn| ByNeuron::size(packed).unwrap_or_else(|| mapped(&packed.rows));
        let packs = self.mode.packs(&self.devices[CPU], ffn, &Neurons::All);
        packs.iter().map(size).sum()
    }

    /// What exchanging neurons of a layer costs and gains.
    fn bounds(&self, index: usize, home: DeviceIndex, way: Way, seconds: Option<f64>) -> Bounds {
        let ffn = &self.model.layers[index].ffn;
        let [device, cpu] = [home, CPU].map(|device| self.options.placing.speed(device));
        let used = self.reads(index, self.used_experts()).used * way.unit() as f64;
        let saved = used * (1.0 / cpu.sparse - 1.0 / device.sparse);
        let cost = match way {
            Way::Neurons | Way::WithinExperts(_) => {
                ffn.matrices().count() as f64 * (device.refill + cpu.refill)
            }
            Way::Experts(_) => {
                let n = ffn.n_expert.unwrap_or(1);
                let stretches = ffn.matrices().map(|(_, rows)| Stretches::new(rows, n));
                let stretches: Stretches = stretches.sum();
                stretches.seconds(&device, device.upload)
                    + stretches.seconds(&cpu, cpu.dense / COPIED)
            }
        };
        Bounds::new(saved, cost, seconds)
    }

    /// The share of the experts that a token uses.
    fn used_experts(&self) -> f64 {
        self.model.hyper.experts.map_or(1.0, |experts| experts.n_used as f64 / experts.n as f64)
    }

    /// What exchanges neurons from now on, or why nothing does although it was wanted. `seconds` is what a token takes,
    /// if that was estimated.
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
                "the hot set stays as it is: to follow the text, {} of the model have to be in the host's memory, and {free} are free",
                needs.host
            ));
        }
        let made = placement.layers.iter().zip(layers).enumerate();
        let made =
            made.filter_map(|(i, (placed, layer))| self.exchanging(i, placed, layer, seconds));
        let layers: hal::Result<Vec<Exchanging>> = made.collect();
        let layers = layers.map_err(|error| format!("the hot set stays as it is: {error}"))?;
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
        let ffn = &self.model.layers[index].ffn;
        let lists = sides(placed)?;
        let way = self.mode.exchanges(ffn)?;
        // An expert's part of what down adds goes with its number: where that is on the CPU, it is the file's.
        let added_here = layer.own.as_ref().is_some_and(|own| own.bias_down.is_some());
        if matches!(way, Way::Experts(_)) && ffn.down.bias.is_some() && !added_here {
            return None;
        }
        let (unit, n_ff) = (way.unit(), self.model.hyper.n_ff);
        let (placing, used) = (&self.options.placing, self.used_experts());
        let uses = placing.uses.as_ref().and_then(|uses| uses.get(index));
        let uses = uses.filter(|uses| uses.len() == n_ff);
        let density = if self.mode.is_sparse() { placing.density } else { 1.0 };
        let expected = |n: usize| uses.map_or((density * used) as f32, |uses| uses[n]);
        let number = |list: &Arc<[u32]>| -> Vec<usize> {
            list.iter().step_by(unit).map(|&n| n as usize / unit).collect()
        };
        let whole = ffn.n_expert.filter(|_| matches!(way, Way::Experts(_)));
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

    /// Looks at the counts and exchanges what is clear. Gives the layers that are placed otherwise now. Where it fails,
    /// what a slot holds is not known.
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
