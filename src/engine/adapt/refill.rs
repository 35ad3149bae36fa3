//! Refills slots: the writes of an exchange of neurons, on the home device and on the CPU.

use std::ops::Range;

use hal::pack::{pack_plain, plain_size, slot_plain};
use hal::{Bytes, Device, HostRows, PackDesc, Queue, Reservation, Tensor, TensorDesc};

use model::{FfnMatrix, LayerWeights};
use placement::exchange::Swap;
use placement::{CPU, LayerPlacement, Neurons, Share};

use super::{ExpertNumbers, LayerExchange};
use crate::error::Result;
use crate::load::ffn::FfnTensors;
use crate::load::lane::Lane;
use crate::load::{Layer, LoadedModel, lane_mut};
use crate::ops::ffn::{PackedFfn, PackedMatrix, select_values};
use crate::paging::Paging;
use crate::size::Sizing;
use crate::size::exchange::{ExchangeUnit, neurons_by_side, rows_per_write};

/// Exchanges neurons of one layer according to `swaps`, and returns its new placement.
///
/// # Errors
/// Device errors, after which the contents of the slots are unknown.
pub(super) fn swap_neurons(
    sizing: &Sizing<'_>,
    at: &mut LayerExchange,
    loaded: &mut LoadedModel,
    mut paging: Option<&mut Paging>,
    placed: &LayerPlacement,
    swaps: &[Swap],
) -> Result<LayerPlacement> {
    let Some(lists) = neurons_by_side(placed) else { return Ok(placed.clone()) };
    let mut lists = lists.map(|list| list.to_vec());
    let unit = at.unit.len();
    // Adjacent neurons go to adjacent slots: a row of a transposed matrix is written faster next to
    // rows that share its scales.
    let [mut hot, mut cold]: [Vec<usize>; 2] =
        [swaps.iter().map(|s| s.hot).collect(), swaps.iter().map(|s| s.cold).collect()];
    hot.sort_unstable_by_key(|&slot| lists[0][slot * unit]);
    cold.sort_unstable_by_key(|&slot| lists[1][slot * unit]);
    let LoadedModel { lanes, layers, .. } = loaded;
    let layer = &mut layers[at.layer];
    let mut remote = layer.remotes.iter_mut().find(|remote| remote.device == CPU);
    let mut held = remote.as_mut().and_then(|remote| remote.held.as_mut());
    for (&hot, &cold) in hot.iter().zip(&cold) {
        if let Some(held) = &mut held {
            let [from, to] = [lists[1][cold * unit], lists[0][hot * unit]];
            held.replace(held.expert_of(from), held.expert_of(to));
        }
        for k in 0..unit {
            let [device, cpu] = &mut lists;
            std::mem::swap(&mut device[hot * unit + k], &mut cpu[cold * unit + k]);
        }
    }
    // Experts in place need no refill.
    let remote = remote.filter(|remote| remote.held.is_none());
    let both = [(placed.home, layer.own.as_ref()), (CPU, remote.map(|remote| &remote.ffn))];
    for (((device, ffn), units), list) in both.into_iter().zip([&hot, &cold]).zip(&lists) {
        let Some(share) = ffn else { continue };
        let down = at.down.as_ref();
        let refill = Refill { sizing, layer: at.layer, share, list, down };
        let paging = paging.as_deref_mut().filter(|_| device != CPU);
        refill.fill(lane_mut(lanes, device), at.unit, units, paging)?;
    }
    let shares = placed.shares.iter().map(|share| Share {
        device: share.device,
        neurons: match share.device {
            CPU => Neurons::List(lists[1].as_slice().into()),
            device if device == placed.home => Neurons::List(lists[0].as_slice().into()),
            _ => share.neurons.clone(),
        },
    });
    let placed = LayerPlacement { home: placed.home, shares: shares.collect() };
    let home = lane_mut(lanes, placed.home);
    if let Some(predictor) = &layer.predictor {
        predictor.write_slots(&mut home.queue, &placed)?;
    }
    if let Some(ExpertNumbers { units: numbers, experts }) = &mut at.numbers {
        let mut moved = Vec::new();
        for ((numbers, units), list) in numbers.iter().zip([&hot, &cold]).zip(&lists) {
            for &slot in units {
                experts[numbers[slot]] = list[slot * unit] / unit as u32;
                moved.push(numbers[slot]);
            }
        }
        renumber(sizing, home, layer, at.layer, experts, &moved)?;
    }
    Ok(placed)
}

/// Renumbers a layer's experts: each number in `moved` now stands for the file's expert
/// `experts[number]`.
fn renumber(
    sizing: &Sizing<'_>,
    home: &mut Lane,
    layer: &Layer,
    index: usize,
    experts: &[u32],
    moved: &[usize],
) -> Result<()> {
    let LayerWeights { frame, .. } = &sizing.model.layers[index];
    let ffn = sizing.block(index);
    let (Some(source), Some(router)) = (&frame.router, &layer.frame.router) else {
        return Ok(());
    };
    let added = layer.own.as_ref().and_then(|own| own.bias_down.as_ref());
    let rows = [(Some(&source.w), Some(&router.w)), (ffn.down.bias.as_ref(), added)];
    for (source, tensor) in rows {
        let (Some(source), Some(tensor)) = (source, tensor) else { continue };
        let pack = PackDesc::whole(source.desc());
        for &number in moved {
            let expert = experts[number];
            let bytes = home.device.pack_rows(&pack, source, expert..expert + 1)?;
            home.queue.refill(tensor, number..number + 1, &bytes)?;
        }
    }
    if let (Some(source), Some(tensor)) = (&source.bias, &router.bias) {
        write_values(&mut home.queue, tensor, source, experts)?;
    }
    let loaded = &layer.frame;
    let vectors = [
        (&frame.expert_scale, &loaded.expert_scale),
        (&frame.selection, &loaded.selection),
        (&frame.expert_groups, &loaded.expert_groups),
    ];
    for (source, tensor) in vectors {
        if let (Some(source), Some(tensor)) = (source, tensor) {
            write_values(&mut home.queue, tensor, source, experts)?;
        }
    }
    Ok(())
}

/// Writes the values of the vector `from` for the neurons or experts in `list`, in that order.
fn write_values(queue: &mut Queue, to: &Tensor, from: &HostRows, list: &[u32]) -> Result<()> {
    let values = select_values(from, &Neurons::List(list.into()));
    Ok(queue.write(to, &values.rows(0..1)?)?)
}

/// A whole down matrix in host memory, transposed to one row per neuron. Gathering a column from
/// the blocks of the file would take longer than the exchange saves.
#[derive(Debug)]
pub(crate) struct TransposedDown {
    desc: TensorDesc,
    bytes: Vec<u8>,
    _booked: Reservation,
}

impl TransposedDown {
    /// Transposes the matrix. Its bytes count as allocated on `cpu`.
    ///
    /// # Errors
    /// Read errors of a paged source; [`hal::Error::OutOfMemory`].
    pub(crate) fn new(packed: &PackedFfn, cpu: &Device) -> hal::Result<TransposedDown> {
        let desc = packed.pack.packed_desc()?;
        let len = plain_size(&desc).unwrap_or_default();
        let booked = cpu.ledger().reserve("transposed down", Bytes(len as u64))?;
        let mut bytes = vec![0; len];
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        pack_plain(&packed.pack, &packed.rows, &mut bytes, n_threads)?;
        Ok(TransposedDown { desc, bytes, _booked: booked })
    }

    fn row(&self, neuron: usize) -> hal::Result<Vec<u8>> {
        slot_plain(&self.desc, &self.bytes, neuron)
    }
}

/// A share whose slots are being refilled.
struct Refill<'a> {
    sizing: &'a Sizing<'a>,
    layer: usize,
    share: &'a FfnTensors,
    down: Option<&'a TransposedDown>,
    /// The neuron of each slot.
    list: &'a [u32],
}

impl Refill<'_> {
    /// Fills the slots of `units`. Experts on disk are read and uploaded one by one.
    fn fill(
        &self,
        lane: &mut Lane,
        unit: ExchangeUnit,
        units: &[usize],
        paging: Option<&mut Paging>,
    ) -> Result<()> {
        match paging {
            None => self.fill_matrices(lane, unit, units, None)?,
            Some(paging) => {
                let expert = |u: usize| self.list[u * unit.len()] as usize / unit.len();
                paging.order_experts(self.layer, units.iter().map(|&u| expert(u)));
                for &u in units {
                    paging.read_expert(self.layer, expert(u))?;
                    self.fill_matrices(lane, unit, &[u], Some(paging))?;
                    paging.drop_expert(self.layer, expert(u));
                }
            }
        }
        let neurons = Neurons::List(self.list.into());
        for (tensor, values) in self.share.vectors(self.sizing, self.layer, &neurons) {
            lane.queue.write(tensor, &values.rows(0..1)?)?;
        }
        Ok(())
    }

    fn fill_matrices(
        &self,
        lane: &mut Lane,
        unit: ExchangeUnit,
        units: &[usize],
        paging: Option<&Paging>,
    ) -> Result<()> {
        let ffn = self.sizing.block(self.layer);
        let mut tensors = self.share.gate.iter().chain([&self.share.up, &self.share.down]);
        for packed in self.sizing.mode.packs(&lane.device, ffn, &Neurons::All) {
            // Bundled matrices are one tensor on the device, so the iterator skips to the next
            // pack.
            let Some(tensor) = tensors.nth(packed.cols.len() - 1) else { break };
            let stored = paging.and_then(|paging| paging.stored_rows(&packed.rows));
            let source = stored.unwrap_or(&packed.rows);
            for (slots, rows) in self.rows(&packed, unit, units) {
                let bytes = match self.down.filter(|_| packed.pack.transpose) {
                    Some(down) => down.row(rows.start as usize)?,
                    None => lane.device.pack_rows(&packed.pack, source, rows)?,
                };
                lane.queue.refill(tensor, slots, &bytes)?;
            }
        }
        Ok(())
    }

    /// For each write: the slots of the matrix that it fills, and the file's rows for these slots.
    fn rows(
        &self,
        packed: &PackedFfn,
        unit: ExchangeUnit,
        units: &[usize],
    ) -> impl Iterator<Item = (Range<usize>, Range<u32>)> {
        let (n_unit, n_out) = (unit.len(), packed.rows.desc().n_rows);
        let n_expert = self.sizing.block(self.layer).n_expert().unwrap_or(1);
        let across = packed.matrix == PackedMatrix::One(FfnMatrix::Down)
            && matches!(unit, ExchangeUnit::Experts(_));
        let rows_per_write = rows_per_write(packed.rows.row_bytes());
        units.iter().flat_map(move |&u| {
            let first = self.list[u * n_unit] as usize;
            let (n, slot, row) = if across {
                // Each expert has a down matrix with one row per output value.
                (n_out / n_expert, u * (n_out / n_expert), first / n_unit * (n_out / n_expert))
            } else {
                (n_unit, u * n_unit, first)
            };
            (0..n).step_by(rows_per_write).map(move |k| {
                let end = (k + rows_per_write).min(n);
                (slot + k..slot + end, (row + k) as u32..(row + end) as u32)
            })
        })
    }
}
