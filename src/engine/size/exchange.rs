//! Memory, time and gain of an exchange of neurons between devices.

use std::iter::Sum;
use std::sync::Arc;

use hal::op::Down;
use hal::pack::plain_size;
use hal::{Bytes, Device, HostRows, Source};

use model::{Ffn, Model};
use placement::exchange::Bounds;
use placement::{CPU, DeviceIndex, Forecast, LayerPlacement, Neurons, Placement, Speed};

use super::Sizing;
use crate::ops::ffn::{FfnMode, PackedFfn};
use crate::options::EngineOptions;

/// Requirements of an exchange of neurons in a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeNeeds {
    /// Number of layers whose neurons can be exchanged.
    pub n_layers: usize,
    /// Maximum number of neurons exchanged at one decision; 0 if an exchange would gain nothing.
    pub max_neurons: usize,
    /// Bytes of the model that must stay in host memory: of the mapped file and of transposed down
    /// matrices.
    pub host: Bytes,
    /// Bytes of the counters on each device.
    pub counters: Bytes,
}

/// Unit in which neurons of a block are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeUnit {
    /// Single neurons.
    Neurons,
    /// Whole experts of this number of neurons.
    Experts(usize),
    /// Single neurons, only within an expert of this number of neurons.
    WithinExperts(usize),
}

impl ExchangeUnit {
    pub(crate) fn len(self) -> usize {
        match self {
            ExchangeUnit::Neurons | ExchangeUnit::WithinExperts(_) => 1,
            ExchangeUnit::Experts(n) => n,
        }
    }
}

/// Bytes of the matrix of an expert that are packed and written at once: large enough to make the
/// overhead of a write small, without host memory for the whole matrix.
const WRITE_BYTES: usize = 1 << 20;

pub(crate) fn rows_per_write(row_bytes: usize) -> usize {
    (WRITE_BYTES / row_bytes.max(1)).max(1)
}

/// Bytes of a whole down matrix, transposed in host memory. `None` if no transposed copy is needed:
/// the pack is not transposed, or down is a single matrix in an unquantised format.
pub(crate) fn transposed_size(packed: &PackedFfn) -> Option<Bytes> {
    let blocks = packed.pack.source.format.quants().is_some();
    let slow = blocks || matches!(packed.rows.source(), Source::Paged(_));
    let desc = packed.pack.packed_desc().ok().filter(|_| packed.pack.transpose && slow)?;
    plain_size(&desc).map(|len| Bytes(len as u64))
}

/// The neurons on the home of a layer and those on the CPU; `None` if the home is the CPU, or if
/// one of the two devices has no list of neurons.
pub(crate) fn neurons_by_side(placed: &LayerPlacement) -> Option<[&Arc<[u32]>; 2]> {
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
    /// Unit in which neurons of the block are exchanged; `None` if all neurons are used, or if one
    /// neuron is spread over blocks of a matrix.
    pub(crate) fn exchange_unit(self, ffn: &Ffn) -> Option<ExchangeUnit> {
        match (self.orientation(ffn), ffn.n_expert()) {
            (Down::ByNeuron, None) if self.is_sparse() => Some(ExchangeUnit::Neurons),
            // The first row of each expert is part of a program, so the number of neurons that an
            // expert has on each device must not change.
            (Down::ByNeuron, Some(n)) if self.is_sparse() => {
                Some(ExchangeUnit::WithinExperts(ffn.up.w.desc().n_rows / n.max(1)))
            }
            (Down::AcrossNeurons, Some(_)) => Some(ExchangeUnit::Experts(ffn.down.w.desc().n_cols)),
            (Down::ByNeuron | Down::AcrossNeurons, _) => None,
        }
    }
}

/// Transfers over the memory bus per byte copied within host memory: read the source, read the slot
/// (to own its cache line), write the slot.
const COPY_TRANSFERS: f64 = 3.0;

/// Contiguous writes that move an expert to another device.
#[derive(Clone, Copy, Debug, Default)]
struct ContiguousWrites {
    bytes: f64,
    rows: f64,
    writes: f64,
}

impl ContiguousWrites {
    /// The writes for one expert of a matrix of `n` experts.
    fn new(rows: &HostRows, n: usize) -> ContiguousWrites {
        let n_rows = rows.desc().n_rows / n;
        ContiguousWrites {
            bytes: (n_rows * rows.row_bytes()) as f64,
            rows: n_rows as f64,
            writes: n_rows.div_ceil(rows_per_write(rows.row_bytes())) as f64,
        }
    }

    /// Seconds of the writes to a device that writes `rate` bytes per second. If the rate is
    /// unknown, every row counts as one write.
    fn seconds(&self, speed: &Speed, rate: f64) -> f64 {
        let by_row = self.rows * speed.refill;
        if rate > 0.0 { by_row.min(self.writes * speed.refill + self.bytes / rate) } else { by_row }
    }
}

impl Sum for ContiguousWrites {
    fn sum<I: Iterator<Item = ContiguousWrites>>(all: I) -> ContiguousWrites {
        all.fold(ContiguousWrites::default(), |sum, one| ContiguousWrites {
            bytes: sum.bytes + one.bytes,
            rows: sum.rows + one.rows,
            writes: sum.writes + one.writes,
        })
    }
}

/// Bytes of a matrix that is read from the mapped file; 0 if it is held in memory.
fn mapped_bytes(rows: &HostRows) -> Bytes {
    match rows.source() {
        Source::Owned(_) => Bytes(0),
        Source::Mapped(_) | Source::Paged(_) => rows.desc().bytes().unwrap_or_default(),
    }
}

/// Requirements of adapting the hot set of `model` in the placement of `forecast`. `None` if
/// adapting is off, or if no layer can exchange neurons.
#[must_use]
pub fn exchange_needs(
    model: &Model,
    devices: &[Device],
    options: &EngineOptions,
    forecast: &Forecast,
) -> Option<ExchangeNeeds> {
    let sizing = Sizing::new(model, devices, options);
    sizing.exchange_needs(&forecast.placement, Some(forecast.seconds))
}

impl Sizing<'_> {
    /// As [`FfnMode::exchange_unit`]; with weights on disk only whole experts are exchanged.
    pub(crate) fn exchange_unit(&self, ffn: &Ffn) -> Option<ExchangeUnit> {
        let unit = self.mode.exchange_unit(ffn);
        unit.filter(|unit| {
            self.options.paging.is_none() || matches!(unit, ExchangeUnit::Experts(_))
        })
    }

    /// Whether active rows are counted, which is needed only if some layer can exchange neurons.
    pub(crate) fn counts_rows(&self) -> bool {
        let exchanges = |(_, ffn): (usize, &Ffn)| self.exchange_unit(ffn).is_some();
        self.options.adapt && self.devices.len() > 1 && self.model.blocks().any(exchanges)
    }

    /// Requirements of the exchange. `None` if it is off, or if no layer can exchange neurons.
    /// `seconds` is the estimated time of a token; `None` if unknown.
    pub(crate) fn exchange_needs(
        &self,
        placement: &Placement,
        seconds: Option<f64>,
    ) -> Option<ExchangeNeeds> {
        let shape = self.scratch().hits?;
        let mut needs =
            ExchangeNeeds { n_layers: 0, max_neurons: 0, host: Bytes(0), counters: Bytes(0) };
        let mut most = usize::MAX;
        for (index, placed) in placement.layers.iter().enumerate() {
            let Some(ffn) = &self.model.layers[index].ffn else { continue };
            let (Some(_), Some(unit)) = (neurons_by_side(placed), self.exchange_unit(ffn)) else {
                continue;
            };
            let bounds = self.bounds(index, placed.home, unit, seconds);
            if bounds.min_gain.is_some() {
                most = most.min(bounds.max_swaps * unit.len());
                needs.max_neurons = most;
            }
            needs.n_layers += 1;
            // Experts on disk are read when they are exchanged.
            needs.host +=
                if self.options.paging.is_some() { Bytes(0) } else { self.refill_bytes(ffn) };
        }
        needs.counters = shape.bytes().unwrap_or_default();
        (needs.n_layers > 0).then_some(needs)
    }

    /// Bytes of a block that stay in host memory to fill slots from.
    fn refill_bytes(&self, ffn: &Ffn) -> Bytes {
        let size = |packed: &PackedFfn| {
            transposed_size(packed).unwrap_or_else(|| mapped_bytes(&packed.rows))
        };
        let packs = self.mode.packs(&self.devices[CPU], ffn, &Neurons::All);
        packs.iter().map(size).sum()
    }

    /// Limits of the exchange of neurons of a layer, from its cost and gain.
    pub(crate) fn bounds(
        &self,
        index: usize,
        home: DeviceIndex,
        unit: ExchangeUnit,
        seconds: Option<f64>,
    ) -> Bounds {
        let ffn = self.block(index);
        let [device, cpu] = [home, CPU].map(|device| self.options.placing.speed(device));
        let used = self.reads(index).used * unit.len() as f64;
        let saved = used * (1.0 / cpu.sparse - 1.0 / device.sparse);
        let cost = match unit {
            ExchangeUnit::Neurons | ExchangeUnit::WithinExperts(_) => {
                ffn.matrices().count() as f64 * (device.refill + cpu.refill)
            }
            ExchangeUnit::Experts(_) => {
                let n = ffn.n_expert().unwrap_or(1);
                let writes = ffn.matrices().map(|(_, rows)| ContiguousWrites::new(rows, n));
                let writes: ContiguousWrites = writes.sum();
                let paged = self.options.paging.and(self.options.placing.disk);
                // The expert that leaves the device is read when it is used next.
                let read = paged.map_or(0.0, |disk| writes.bytes / disk.bandwidth);
                let written = writes.seconds(&device, device.upload);
                written + writes.seconds(&cpu, cpu.dense / COPY_TRANSFERS) + read
            }
        };
        Bounds::new(saved, cost, seconds)
    }
}
