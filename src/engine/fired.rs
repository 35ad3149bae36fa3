//! Which neurons fired in a step: reads the counters of active rows and sums them up in cells, a
//! row of cells per layer.
//!
//! If neurons are exchanged, the ordinary programs count active rows, and the counters are read
//! before and after the step. Otherwise the first watched step records programs that count and
//! reserves their memory in the ledgers of the devices; ordinary steps are not affected. A step
//! that counts has the same results, to the bit.

use hal::TensorDesc;
use hal::format::Format;
use hal::op::MAX_COUNTED_TOKENS;

use placement::{CPU, DeviceIndex, LayerPlacement, Neurons, Placement};

use crate::error::Result;
use crate::load::lane::Lane;
use crate::load::{LoadedModel, lane_mut};
use crate::record::Recording;
use crate::replay::arena::BlockSizes;
use crate::size::Sizing;
use crate::step::Stepper;

/// Maximum number of cells of a dense block.
const NEURON_CELLS: usize = 128;
/// Maximum number of cells of a block with experts, which have a cell each up to this number.
const EXPERT_CELLS: usize = 256;

/// Which neurons fired in the latest watched step ([`crate::Engine::step_watched`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FiredNeurons {
    /// Number of watched steps so far.
    pub n_steps: u64,
    /// Number of tokens of the step, over all sequences.
    pub n_tokens: usize,
    /// A row of cells per layer; empty in layers without a feed-forward block. A cell stands for
    /// adjacent neurons or experts in the order below. Its value is the share of its neurons that
    /// fired, averaged over the tokens, in steps of 1 / [`FiredNeurons::ALL_FIRED`], rounded up.
    ///
    /// The order is that of the placement: first the neurons on devices other than the CPU, device
    /// by device, and on each device from the most to the least used if a profile is known. Neurons
    /// of a shared expert have no cell.
    pub layers: Vec<Vec<u8>>,
    /// Why steps of up to 16 tokens are not watched; `None` if they are.
    pub refused: Option<String>,
}

impl FiredNeurons {
    /// The value of a cell whose neurons all fired.
    pub const ALL_FIRED: u8 = 15;
}

#[derive(Debug)]
struct LayerCells {
    /// The cell of each neuron, in the file's order.
    cell_of: Vec<u16>,
    /// Number of neurons of each cell.
    sizes: Vec<u32>,
    /// For each cell, the number of its neurons that fired, summed over the counted tokens.
    sums: Vec<u64>,
    /// Whether every neuron fires for every token; nothing is counted then.
    always: bool,
    /// Whether neurons were exchanged since they were ordered.
    stale: bool,
}

impl LayerCells {
    fn new(sizing: &Sizing<'_>, index: usize, placed: &LayerPlacement) -> LayerCells {
        let BlockSizes { n_ff, n_expert, .. } = BlockSizes::new(&sizing.model.layers[index]);
        let predictor = sizing.mode.predictor(sizing.model, sizing.options, index);
        let always = !sizing.mode.is_sparse() && predictor.is_none() && n_expert == 0;
        let uses = sizing.options.placing.uses.as_ref().and_then(|uses| uses.get(index));
        let n_unit = n_ff.checked_div(n_expert).unwrap_or(1);
        let n_units = n_ff / n_unit.max(1);
        let mut devices = vec![CPU; n_ff];
        for share in &placed.shares {
            each_row(&share.neurons, n_ff, |_, neuron| devices[neuron] = share.device);
        }
        let uses = uses.filter(|uses| uses.len() == n_ff);
        let use_of = |unit: usize| {
            let of = |uses: &Vec<f32>| uses[unit * n_unit..(unit + 1) * n_unit].iter().sum::<f32>();
            uses.map_or(0.0, of)
        };
        // An expert may have neurons on several devices.
        let place_of = |unit: usize| -> (usize, DeviceIndex) {
            let devices = &devices[unit * n_unit..(unit + 1) * n_unit];
            let n_cpu = devices.iter().filter(|device| **device == CPU).count();
            (n_cpu, devices.iter().copied().filter(|device| *device != CPU).min().unwrap_or(CPU))
        };
        let mut units: Vec<((usize, DeviceIndex), f32, usize)> =
            (0..n_units).map(|unit| (place_of(unit), use_of(unit), unit)).collect();
        units.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)).then(a.2.cmp(&b.2)));
        let n_cells = n_units.min(if n_expert > 0 { EXPERT_CELLS } else { NEURON_CELLS });
        let mut cells = LayerCells {
            cell_of: vec![0; n_ff],
            sizes: vec![0; n_cells],
            sums: vec![0; n_cells],
            always,
            stale: false,
        };
        for (position, (_, _, unit)) in units.into_iter().enumerate() {
            let cell = position * n_cells / n_units;
            cells.cell_of[unit * n_unit..(unit + 1) * n_unit].fill(cell as u16);
            cells.sizes[cell] += n_unit as u32;
        }
        cells
    }

    /// The values of the cells after steps of `n_tokens` tokens in total.
    fn values(&self, n_tokens: usize, out: &mut Vec<u8>) {
        out.clear();
        let most = u64::from(FiredNeurons::ALL_FIRED);
        out.extend(self.sizes.iter().zip(&self.sums).map(|(&size, &sum)| {
            let all = u64::from(size) * n_tokens as u64;
            let share = if self.always { most } else { (most * sum).div_ceil(all.max(1)) };
            share.min(most) as u8
        }));
    }
}

/// Calls `each` with every row of a share and its neuron.
fn each_row(neurons: &Neurons, n_ff: usize, mut each: impl FnMut(usize, usize)) {
    match neurons {
        Neurons::All => (0..n_ff).for_each(|row| each(row, row)),
        Neurons::List(list) => {
            list.iter().enumerate().for_each(|(row, &neuron)| each(row, neuron as usize));
        }
    }
}

/// Counts which neurons fire in watched steps.
#[derive(Debug)]
pub(crate) struct RowWatch {
    layers: Vec<LayerCells>,
    /// Whether the counters and the programs that count were made for this watch.
    owns_programs: bool,
    /// The counters before the step, per device and layer, if the counters are those of the
    /// exchange of neurons.
    before: Vec<Vec<Vec<f32>>>,
    /// Buffer for the counters of a layer on a device.
    counts: Vec<f32>,
    /// Number of tokens counted since [`RowWatch::begin`].
    n_tokens: usize,
}

impl RowWatch {
    /// Records the programs that count active rows, unless the ordinary ones do.
    ///
    /// # Errors
    /// Device errors, after which `stepper` is as before.
    pub(crate) fn new(
        sizing: &Sizing<'_>,
        stepper: &mut Stepper,
        placement: &Placement,
        buckets: &[usize],
    ) -> Result<RowWatch> {
        let layers = placement.layers.iter().enumerate();
        let layers: Vec<LayerCells> =
            layers.map(|(i, placed)| LayerCells::new(sizing, i, placed)).collect();
        let counted = stepper.loaded.lanes.iter().flatten().any(Lane::has_hits);
        let owns_programs =
            !counted && layers.iter().any(|cells| !cells.always && !cells.cell_of.is_empty());
        let n_cols = sizing.model.max_n_ff();
        let n_before = if counted { layers.len() } else { 0 };
        let watch = RowWatch {
            before: stepper.loaded.lanes.iter().map(|_| vec![Vec::new(); n_before]).collect(),
            layers,
            owns_programs,
            counts: Vec::with_capacity(n_cols),
            n_tokens: 0,
        };
        if owns_programs {
            let recorded = record_counting(sizing, stepper, placement, buckets);
            recorded.inspect_err(|_| watch.release(stepper))?;
        }
        Ok(watch)
    }

    /// Releases the programs and counters of this watch.
    pub(crate) fn release(&self, stepper: &mut Stepper) {
        if self.owns_programs {
            stepper.counting = None;
            stepper.loaded.lanes.iter_mut().flatten().for_each(Lane::drop_hits);
        }
    }

    /// Clears the counts of earlier steps.
    pub(crate) fn begin(&mut self) {
        self.n_tokens = 0;
        self.layers.iter_mut().for_each(|cells| cells.sums.fill(0));
    }

    /// Called before a device step that counts. Clears the counters, or stores their values.
    pub(crate) fn before_step(&mut self, lanes: &mut [Option<Lane>]) -> Result<()> {
        for (device, lane) in lanes.iter_mut().enumerate() {
            let Some(lane) = lane.as_mut().filter(|lane| lane.has_hits()) else { continue };
            for layer in 0..self.layers.len() {
                match self.before[device].get_mut(layer) {
                    Some(before) => lane.read_hits(layer, before)?,
                    None => lane.clear_hits(layer)?,
                }
            }
        }
        Ok(())
    }

    /// Called after a device step of `n_tokens` that counted. Adds up the neurons that fired.
    pub(crate) fn after_step(
        &mut self,
        loaded: &mut LoadedModel,
        placement: &Placement,
        n_tokens: usize,
    ) -> Result<()> {
        let RowWatch { layers, before, counts, .. } = self;
        let LoadedModel { lanes, layers: tensors, .. } = loaded;
        for (index, (cells, placed)) in layers.iter_mut().zip(&placement.layers).enumerate() {
            let n_ff = cells.cell_of.len();
            for share in &placed.shares {
                if cells.always || share.neurons.len(n_ff) == 0 {
                    continue;
                }
                lane_mut(lanes, share.device).read_hits(index, counts)?;
                let before = before[share.device].get(index).map_or(&[][..], |before| before);
                let in_file_order = tensors[index].held_on(share.device).is_some();
                each_row(&share.neurons, n_ff, |row, neuron| {
                    let row = if in_file_order { neuron } else { row };
                    let count = counts[row] - before.get(row).copied().unwrap_or(0.0);
                    cells.sums[usize::from(cells.cell_of[neuron])] += count as u64;
                });
            }
        }
        self.n_tokens += n_tokens;
        Ok(())
    }

    pub(crate) fn mark_exchanged(&mut self, layer: usize) {
        if let Some(cells) = self.layers.get_mut(layer) {
            cells.stale = true;
        }
    }

    /// Orders the neurons of exchanged layers by `placement`, unless a device step of this watched
    /// step was already counted.
    pub(crate) fn reorder(&mut self, sizing: &Sizing<'_>, placement: &Placement) {
        if self.n_tokens > 0 {
            return;
        }
        let layers = self.layers.iter_mut().zip(&placement.layers).enumerate();
        for (index, (cells, placed)) in layers.filter(|(_, (cells, _))| cells.stale) {
            *cells = LayerCells::new(sizing, index, placed);
        }
    }

    /// Writes the neurons that fired since [`RowWatch::begin`] to `out`, if a step was counted.
    pub(crate) fn finish(&self, out: &mut FiredNeurons) {
        if self.n_tokens == 0 {
            return;
        }
        out.n_steps += 1;
        out.n_tokens = self.n_tokens;
        out.layers.resize_with(self.layers.len(), Vec::new);
        for (cells, out) in self.layers.iter().zip(&mut out.layers) {
            cells.values(self.n_tokens, out);
        }
    }
}

/// Allocates counters on every device in use, and records the programs of the layers with them.
fn record_counting(
    sizing: &Sizing<'_>,
    stepper: &mut Stepper,
    placement: &Placement,
    buckets: &[usize],
) -> Result<()> {
    let n_layer = placement.layers.len();
    let desc = TensorDesc::new(n_layer, sizing.model.max_n_ff(), Format::F32);
    for lane in stepper.loaded.lanes.iter_mut().flatten() {
        lane.make_hits(desc)?;
    }
    let buckets = &buckets[..buckets.partition_point(|&n| n <= MAX_COUNTED_TOKENS)];
    let recording = Recording::new(sizing, buckets, &stepper.loaded);
    let programs = recording.layer_programs(placement, &[])?;
    stepper.counting = Some(programs);
    Ok(())
}
