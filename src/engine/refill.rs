//! Refills slots: the writes of an exchange of neurons, on both sides of a layer.

use std::ops::Range;

use hal::pack::{pack_plain, plain_size, slot_plain};
use hal::{Bytes, Device, HostRows, PackDesc, Queue, Reservation, Source, Tensor, TensorDesc};

use model::LayerWeights;
use placement::exchange::Swap;
use placement::{CPU, LayerPlacement, Neurons, Share};

use super::Result;
use super::adapt::{Exchanging, Way, lane_of, sides};
use super::build::{Layer, Loaded, Plan};
use super::ffn::{FfnTensors, PackedFfn, chosen};
use super::lane::Lane;

impl Plan<'_> {
    /// Exchanges neurons of one layer according to `swaps`.
    ///
    /// # Errors
    /// Those of the devices; the contents of the slots are then unknown.
    pub(super) fn exchange_in(
        &self,
        at: &mut Exchanging,
        loaded: &mut Loaded,
        placed: &LayerPlacement,
        swaps: &[Swap],
    ) -> Result<LayerPlacement> {
        let Some(lists) = sides(placed) else { return Ok(placed.clone()) };
        let mut lists = lists.map(|list| list.to_vec());
        let unit = at.way.unit();
        // Neighbouring neurons go to neighbouring slots: rows of a transposed matrix are written
        // faster beside others of their group.
        let [mut hot, mut cold]: [Vec<usize>; 2] =
            [swaps.iter().map(|s| s.hot).collect(), swaps.iter().map(|s| s.cold).collect()];
        hot.sort_unstable_by_key(|&slot| lists[0][slot * unit]);
        cold.sort_unstable_by_key(|&slot| lists[1][slot * unit]);
        for (&hot, &cold) in hot.iter().zip(&cold) {
            for k in 0..unit {
                let [device, cpu] = &mut lists;
                std::mem::swap(&mut device[hot * unit + k], &mut cpu[cold * unit + k]);
            }
        }
        let Loaded { lanes, layers, .. } = loaded;
        let layer = &layers[at.layer];
        let remote = layer.remotes.iter().find(|remote| remote.device == CPU);
        let both = [(placed.home, layer.own.as_ref()), (CPU, remote.map(|remote| &remote.ffn))];
        for (((device, ffn), units), list) in both.into_iter().zip([&hot, &cold]).zip(&lists) {
            let Some(share) = ffn else { continue };
            let down = at.down.as_ref();
            let filling = Filling { plan: self, layer: at.layer, share, list, down };
            filling.fill(lane_of(lanes, device), at.way, units)?;
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
        let home = lane_of(lanes, placed.home);
        if let Some(predictor) = &layer.predictor {
            predictor.place(&mut home.queue, &placed)?;
        }
        if let Some((numbers, experts)) = &mut at.numbers {
            let mut moved = Vec::new();
            for ((numbers, units), list) in numbers.iter().zip([&hot, &cold]).zip(&lists) {
                for &slot in units {
                    experts[numbers[slot]] = list[slot * unit] / unit as u32;
                    moved.push(numbers[slot]);
                }
            }
            self.renumber(home, layer, at.layer, experts, &moved)?;
        }
        Ok(placed)
    }

    /// Makes the numbers `moved` of a layer's experts mean the experts in `experts`.
    fn renumber(
        &self,
        home: &mut Lane,
        layer: &Layer,
        index: usize,
        experts: &[u32],
        moved: &[usize],
    ) -> Result<()> {
        let LayerWeights { frame, .. } = &self.model.layers[index];
        let ffn = self.block(index);
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
            write_chosen(&mut home.queue, tensor, source, experts)?;
        }
        Ok(())
    }
}

/// Writes the values of a per-neuron vector for the neurons in `list`, in that order.
fn write_chosen(queue: &mut Queue, to: &Tensor, from: &HostRows, list: &[u32]) -> Result<()> {
    let chosen = chosen(from, &Neurons::List(list.into()));
    Ok(queue.write(to, &chosen.rows(0..1)?)?)
}

/// A whole down matrix transposed to one row per neuron, in host memory: gathering a column from
/// the file's blocks takes longer than the exchange saves.
#[derive(Debug)]
pub(super) struct ByNeuron {
    desc: TensorDesc,
    bytes: Vec<u8>,
    _booked: Reservation,
}

impl ByNeuron {
    /// Its bytes; `None` where it is not needed: the file has one row per neuron, or down has no
    /// blocks and is one matrix.
    pub(super) fn size(packed: &PackedFfn) -> Option<Bytes> {
        let blocks = packed.pack.source.format.quants().is_some();
        let slow = blocks || matches!(packed.rows.source(), Source::Paged(_));
        let desc = packed.pack.packed().ok().filter(|_| packed.pack.transpose && slow)?;
        plain_size(&desc).map(|len| Bytes(len as u64))
    }

    /// Makes it; its bytes are booked on `cpu`.
    ///
    /// # Errors
    /// Errors of a paged source; [`hal::Error::OutOfMemory`].
    pub(super) fn new(packed: &PackedFfn, cpu: &Device) -> hal::Result<ByNeuron> {
        let desc = packed.pack.packed()?;
        let len = plain_size(&desc).unwrap_or_default();
        let booked = cpu.ledger().reserve("transposed down", Bytes(len as u64))?;
        let mut bytes = vec![0; len];
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        pack_plain(&packed.pack, &packed.rows, &mut bytes, n_threads)?;
        Ok(ByNeuron { desc, bytes, _booked: booked })
    }

    fn row(&self, neuron: usize) -> hal::Result<Vec<u8>> {
        slot_plain(&self.desc, &self.bytes, neuron)
    }
}

/// Bytes of an expert's matrix packed and written at once: enough to make the overhead of a write
/// small, without host memory for a whole matrix.
const STRETCH: usize = 1 << 20;

/// Number of rows of `row_bytes` bytes written at once.
pub(super) fn at_once(row_bytes: usize) -> usize {
    (STRETCH / row_bytes.max(1)).max(1)
}

/// A share of which some slots are refilled.
struct Filling<'a> {
    plan: &'a Plan<'a>,
    layer: usize,
    share: &'a FfnTensors,
    /// The transposed down matrix, if there is one.
    down: Option<&'a ByNeuron>,
    /// The neuron of each slot.
    list: &'a [u32],
}

impl Filling<'_> {
    /// Fills the slots of `units`.
    fn fill(&self, lane: &mut Lane, way: Way, units: &[usize]) -> Result<()> {
        let ffn = self.plan.block(self.layer);
        let mut tensors = self.share.gate.iter().chain([&self.share.up, &self.share.down]);
        for packed in self.plan.mode.packs(&lane.device, ffn, &Neurons::All) {
            // Bundled matrices are one tensor on the device.
            let Some(tensor) = tensors.nth(packed.cols.len() - 1) else { break };
            for (slots, rows) in self.rows(&packed, way, units) {
                let bytes = match self.down.filter(|_| packed.pack.transpose) {
                    Some(down) => down.row(rows.start as usize)?,
                    None => lane.device.pack_rows(&packed.pack, &packed.rows, rows)?,
                };
                lane.queue.refill(tensor, slots, &bytes)?;
            }
        }
        let neurons = Neurons::List(self.list.into());
        for (tensor, values) in self.share.vectors(self.plan, self.layer, &neurons) {
            lane.queue.write(tensor, &values.rows(0..1)?)?;
        }
        Ok(())
    }

    /// The slots of a matrix that are filled at once, and the file's rows for them.
    fn rows(
        &self,
        packed: &PackedFfn,
        way: Way,
        units: &[usize],
    ) -> impl Iterator<Item = (Range<usize>, Range<u32>)> {
        let (unit, n_out) = (way.unit(), packed.rows.desc().n_rows);
        let n_expert = self.plan.block(self.layer).n_expert().unwrap_or(1);
        let across = packed.name == "ffn_down" && matches!(way, Way::Experts(_));
        let at_once = at_once(packed.rows.row_bytes());
        units.iter().flat_map(move |&u| {
            let first = self.list[u * unit] as usize;
            let (n, slot, row) = match across {
                // A matrix per expert, with one row per output value.
                true => {
                    (n_out / n_expert, u * (n_out / n_expert), first / unit * (n_out / n_expert))
                }
                false => (unit, u * unit, first),
            };
            (0..n).step_by(at_once).map(move |k| {
                let end = (k + at_once).min(n);
                (slot + k..slot + end, (row + k) as u32..(row + end) as u32)
            })
        })
    }
}
