//! Lists of active neurons: the predictor on a layer's home device, the lists it fills there, and
//! their transfer to the other devices of the layer.

use std::collections::BTreeSet;
use std::sync::Arc;

use hal::format::Format;
use hal::op::{Hidden, Predict};
use hal::{
    Bytes, Device, HostRowSet, HostRows, Operand, PackDesc, Queue, RowSet, Slot, Source, Tensor,
    TensorDesc,
};

use model::chooser::LayerPredictor;
use placement::{LayerPlacement, Neurons};

use super::Result;

/// Minimum number of rows written to a device's list; larger writes are rounded up to powers of
/// two, so that few sizes of staging exist.
const FEWEST: usize = 64;

fn words(n_rows: usize, n_cols: usize) -> TensorDesc {
    TensorDesc::new(n_rows, n_cols, Format::U32)
}

/// The shapes of a list of up to `capacity` rows for `n_tokens`.
pub(super) fn list_desc(capacity: usize, n_tokens: usize) -> RowSet<TensorDesc> {
    RowSet {
        ids: words(1, capacity),
        count: words(1, 1),
        members: words(capacity, n_tokens.div_ceil(32)),
    }
}

/// Input of a predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// As the file's family defines it.
    OfFile,
    /// The block's normed input.
    Normed,
}

/// The data of a predictor, on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen<'a> {
    pub(super) fc1: Option<&'a HostRows>,
    pub(super) fc2: &'a HostRows,
    pub(super) bias: Option<&'a [f32]>,
    threshold: f32,
    hidden: Hidden,
    input: Input,
}

impl<'a> Chosen<'a> {
    /// PowerInfer's formula, selecting scores of at least `threshold`.
    pub(super) fn of_file(weights: &'a model::Predictor, threshold: f32) -> Chosen<'a> {
        let model::Predictor { fc1, fc2 } = weights;
        let (hidden, input) = (Hidden::Relu, Input::OfFile);
        Chosen { fc1: Some(fc1), fc2, bias: None, threshold, hidden, input }
    }

    /// A trained predictor, for a relative error of `target` in the block's output.
    pub(super) fn learned(layer: &'a LayerPredictor, target: f32) -> Chosen<'a> {
        let threshold = layer.threshold(target);
        let LayerPredictor { fc1, fc2, bias, .. } = layer;
        let (hidden, input) = (Hidden::Linear, Input::Normed);
        Chosen { fc1: fc1.as_ref(), fc2, bias: Some(bias), threshold, hidden, input }
    }
}

/// A layer's predictor over tensors or, for planning, over their shapes.
#[derive(Clone, Debug)]
pub(super) struct Predictor<T> {
    fc1: Option<T>,
    fc2: T,
    /// `[1, n_ff]`
    bias: Option<T>,
    /// `[1, n_ff]`: the slot of each neuron.
    slots: T,
    threshold: f32,
    hidden: Hidden,
    /// Which input its op needs.
    pub(super) input: Input,
}

impl Predictor<TensorDesc> {
    pub(super) fn desc(chosen: Chosen<'_>) -> Predictor<TensorDesc> {
        let Chosen { fc1, fc2, bias, threshold, hidden, input } = chosen;
        let (fc1, fc2) = (fc1.map(HostRows::desc), fc2.desc());
        let bias = bias.map(|_| TensorDesc::new(1, fc2.n_rows, Format::F32));
        Predictor { fc1, fc2, bias, slots: words(1, fc2.n_rows), threshold, hidden, input }
    }
}

/// Floats as one row.
pub(super) fn vector(values: &[f32]) -> HostRows {
    let bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
    let source = Source::Owned(Arc::new(bytes));
    HostRows::new(source, 1, values.len(), Format::F32).expect("as many bytes as values")
}

impl Predictor<Tensor> {
    /// Loads the predictor of a layer onto its home.
    pub(super) fn import(
        home: &Device,
        layer: usize,
        chosen: Chosen<'_>,
        placed: &LayerPlacement,
    ) -> Result<Predictor<Tensor>> {
        let import = |part: &str, rows: &HostRows| {
            home.import(&format!("blk.{layer}.{part}"), &PackDesc::whole(rows.desc()), rows)
        };
        let slots = slots(placed, chosen.fc2.desc().n_rows);
        let bias = chosen.bias.map(|bias| import("predictor_bias", &vector(bias)));
        Ok(Predictor {
            fc1: chosen.fc1.map(|fc1| import("fc1", fc1)).transpose()?,
            fc2: import("fc2", chosen.fc2)?,
            bias: bias.transpose()?,
            slots: import("slots", &slots)?,
            threshold: chosen.threshold,
            hidden: chosen.hidden,
            input: chosen.input,
        })
    }
}

impl Predictor<Tensor> {
    /// Updates the slots after neurons were exchanged.
    pub(super) fn place(&self, queue: &mut Queue, placed: &LayerPlacement) -> Result<()> {
        let slots = slots(placed, self.slots.desc().n_cols);
        Ok(queue.write(&self.slots, &slots.rows(0..1)?)?)
    }
}

impl<T: Clone> Predictor<T> {
    /// The same predictor over some of the neurons: their rows, biases and slots.
    pub(super) fn over(&self, fc2: T, bias: T, slots: T) -> Predictor<T> {
        Predictor { fc2, bias: Some(bias), slots, ..self.clone() }
    }
}

impl<T: Operand> Predictor<T> {
    /// The op for its input `x`.
    pub(super) fn op(&self, x: T, resident: RowSet<T>, absent: Option<RowSet<T>>) -> Predict<T> {
        let Predictor { fc1, fc2, bias, slots, threshold, hidden, .. } = self.clone();
        Predict { x, fc1, fc2, bias, slots, resident, absent, threshold, hidden }
    }
}

/// The slots of a layer's `n_ff` neurons from the home's view. The rows of all other devices are
/// numbered consecutively, in the order of the shares.
fn slots(placed: &LayerPlacement, n_ff: usize) -> HostRows {
    let mut slots = vec![0u32; n_ff];
    let mut n_absent = 0;
    for share in &placed.shares {
        let here = share.device == placed.home;
        let first = if here { 0 } else { n_absent };
        let slot = |row: u32| match here {
            true => Slot::Resident(row).encode(),
            false => Slot::Absent(first + row).encode(),
        };
        let n = share.neurons.len(n_ff);
        match &share.neurons {
            Neurons::All => (0..).zip(&mut slots).for_each(|(row, to)| *to = slot(row)),
            Neurons::List(list) => {
                (0..)
                    .zip(list.iter())
                    .for_each(|(row, &neuron)| slots[neuron as usize] = slot(row));
            }
        }
        if !here {
            n_absent += n as u32;
        }
    }
    let bytes: Vec<u8> = bytemuck::cast_slice(&slots).to_vec();
    let source = Source::Owned(Arc::new(bytes));
    HostRows::new(source, 1, n_ff, Format::U32).expect("as many bytes as words")
}

/// Sizes of the lists of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListShape {
    pub(super) n_ff: usize,
    pub(super) n_layer: usize,
    /// Whether layers can be split with other devices.
    pub(super) shared: bool,
}

impl ListShape {
    /// Words of membership per row, for each rung of the ladder.
    fn member_words(rungs: &[usize]) -> impl Iterator<Item = usize> {
        rungs.iter().map(|n| n.div_ceil(32))
    }

    /// Sizes of the transfers in which lists arrive from other devices, and of the counts.
    fn staging(&self, rungs: &[usize]) -> BTreeSet<usize> {
        let mut lens = BTreeSet::from([4 * self.n_layer]);
        if self.shared {
            lens.insert(4);
            let powers = (0..).map(|i| FEWEST << i).take_while(|&n| n < self.n_ff);
            for n in powers.chain([self.n_ff]) {
                lens.insert(4 * n);
                lens.extend(Self::member_words(rungs).map(|words| 4 * n * words));
            }
        }
        lens
    }

    /// Bytes on `device`, staging included.
    pub(super) fn size(&self, device: &Device, rungs: &[usize]) -> Bytes {
        let resident = List::size(device, self.n_ff, self.n_layer, rungs);
        let absent = match self.shared {
            true => List::size(device, self.n_ff, 1, rungs),
            false => Bytes(0),
        };
        resident + absent + Bytes(self.staging(rungs).iter().sum::<usize>() as u64)
    }
}

/// Lists on one device, reused by every layer.
#[derive(Debug)]
pub(super) struct Lists {
    /// Resident rows; the counts are kept per layer, `[n_layer, 1]`.
    resident: List,
    /// Rows on other devices; `None` if there are no other devices.
    absent: Option<List>,
}

#[derive(Debug)]
struct List {
    ids: Tensor,
    counts: Tensor,
    /// One for each rung of the ladder.
    members: Vec<Tensor>,
}

impl List {
    /// Bytes of a list of up to `n` rows.
    fn size(device: &Device, n: usize, n_counts: usize, rungs: &[usize]) -> Bytes {
        let size = |rows, cols| device.alloc_size(&words(rows, cols));
        let members: BTreeSet<usize> = ListShape::member_words(rungs).collect();
        let members: Bytes = members.into_iter().map(|words| size(n, words)).sum();
        size(1, n) + size(n_counts, 1) + members
    }

    fn new(device: &Device, n_ff: usize, n_counts: usize, rungs: &[usize]) -> Result<List> {
        let mut members: Vec<Tensor> = Vec::new();
        for n_words in ListShape::member_words(rungs) {
            match members.last() {
                Some(last) if last.desc().n_cols == n_words => members.push(last.clone()),
                _ => members.push(device.alloc("members", words(n_ff, n_words))?),
            }
        }
        Ok(List {
            ids: device.alloc("ids", words(1, n_ff))?,
            counts: device.alloc("counts", words(n_counts, 1))?,
            members,
        })
    }

    fn set(&self, count: usize, rung: usize) -> RowSet<Tensor> {
        RowSet {
            ids: self.ids.clone(),
            count: self.counts.rows(count..count + 1),
            members: self.members[rung].clone(),
        }
    }
}

impl Lists {
    pub(super) fn new(
        device: &Device,
        queue: &mut Queue,
        shape: &ListShape,
        rungs: &[usize],
    ) -> Result<Lists> {
        for len in shape.staging(rungs) {
            queue.reserve(len)?;
        }
        let absent = shape.shared.then(|| List::new(device, shape.n_ff, 1, rungs)).transpose()?;
        Ok(Lists { resident: List::new(device, shape.n_ff, shape.n_layer, rungs)?, absent })
    }

    /// The resident rows of `layer` that a step of the `rung` selects.
    pub(super) fn resident(&self, layer: usize, rung: usize) -> RowSet<Tensor> {
        self.resident.set(layer, rung)
    }

    /// The rows of other devices.
    pub(super) fn absent(&self, rung: usize) -> Option<RowSet<Tensor>> {
        self.absent.as_ref().map(|list| list.set(0, rung))
    }

    /// Number of resident rows selected per layer, `[n_layer, 1]`.
    pub(super) fn counts(&self) -> &Tensor {
        &self.resident.counts
    }
}

/// The lists of the neurons that a predictor selects among a streamed chunk: all of them are in
/// the device's slots, in order.
#[derive(Debug)]
pub(super) struct PieceLists {
    slots: Tensor,
    list: List,
}

impl PieceLists {
    /// For chunks of `n` neurons, in steps of these numbers of tokens.
    pub(super) fn new(device: &Device, n: usize, rungs: &[usize]) -> Result<PieceLists> {
        let order: Vec<u32> = (0..n as u32).map(|slot| Slot::Resident(slot).encode()).collect();
        let bytes: Vec<u8> = bytemuck::cast_slice(&order).to_vec();
        let rows = HostRows::new(Source::Owned(Arc::new(bytes)), 1, n, Format::U32)?;
        let slots = device.import("streamed slots", &PackDesc::whole(rows.desc()), &rows)?;
        Ok(PieceLists { slots, list: List::new(device, n, 1, rungs)? })
    }

    /// Its bytes on `device`.
    pub(super) fn size(device: &Device, n: usize, rungs: &[usize]) -> Bytes {
        let slots = device.pack_size(&PackDesc::whole(words(1, n)), false);
        slots + List::size(device, n, 1, rungs)
    }

    /// The slots of its neurons.
    pub(super) fn slots(&self) -> Tensor {
        self.slots.clone()
    }

    /// The neurons of a chunk that a step of the `rung` selects.
    pub(super) fn set(&self, rung: usize) -> RowSet<Tensor> {
        self.list.set(0, rung)
    }
}

/// A list being sent to a device, kept between steps.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    ids: Vec<u32>,
    members: Vec<u32>,
    order: Vec<u32>,
}

impl Parcel {
    /// Copies the rows in `rows` from a home's posted list, renumbered from 0, with `words` of
    /// membership each.
    pub(super) fn take(&mut self, posted: &HostRowSet, rows: std::ops::Range<u32>, words: usize) {
        self.ids.clear();
        self.members.clear();
        for (i, id) in posted.ids.iter().enumerate().filter(|(_, id)| rows.contains(id)) {
            self.ids.push(id - rows.start);
            let first = self.members.len();
            self.members.extend_from_slice(&posted.members[i * posted.words..][..posted.words]);
            // A padded step has membership bits for padded tokens.
            self.members.resize(first + words, 0);
        }
        self.sort(words);
    }

    /// Sorts by row: exchanged neurons are out of order, and ascending rows read faster.
    fn sort(&mut self, words: usize) {
        if self.ids.is_sorted() {
            return;
        }
        self.order.clear();
        self.order.extend(0..self.ids.len() as u32);
        let ids = &self.ids;
        self.order.sort_unstable_by_key(|&i| ids[i as usize]);
        let old = self.members.clone();
        for (to, &from) in self.members.chunks_exact_mut(words.max(1)).zip(&self.order) {
            to.copy_from_slice(&old[from as usize * words..][..words]);
        }
        self.ids.sort_unstable();
    }

    /// Writes it into a device's list.
    pub(super) fn write(&mut self, queue: &mut Queue, set: &RowSet<Tensor>) -> Result<()> {
        let (capacity, words) = (set.ids.desc().n_cols, set.members.desc().n_cols);
        let count = self.ids.len() as u32;
        let n = self.ids.len().max(FEWEST).next_power_of_two().min(capacity);
        self.ids.resize(n, 0);
        self.members.resize(n * words, 0);
        queue.write(&set.count, bytemuck::bytes_of(&count))?;
        queue.write(&set.ids, bytemuck::cast_slice(&self.ids))?;
        queue.write(&set.members, bytemuck::cast_slice(&self.members))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::Share;

    #[test]
    fn the_rows_of_other_devices_are_numbered_one_device_after_the_other() {
        let share =
            |device, neurons: &[u32]| Share { device, neurons: Neurons::List(neurons.into()) };
        let placed = LayerPlacement {
            home: 1,
            shares: vec![share(2, &[1, 4]), share(1, &[0, 3]), share(0, &[2, 5, 6])],
        };
        let slots = slots(&placed, 7);
        let bytes = slots.rows(0..1).unwrap();
        let decoded: Vec<Slot> = bytes
            .chunks(4)
            .map(|b| Slot::decode(u32::from_le_bytes(b.try_into().unwrap())))
            .collect();
        use Slot::{Absent, Resident};
        let expected =
            [Resident(0), Absent(0), Absent(2), Resident(1), Absent(1), Absent(3), Absent(4)];
        assert_eq!(decoded, expected);
        let mut parcel = Parcel::default();
        let posted = HostRowSet { ids: vec![0, 2, 1, 4], members: vec![1, 2, 3, 4], words: 1 };
        parcel.take(&posted, 2..5, 2);
        assert_eq!((&parcel.ids, &parcel.members), (&vec![0, 2], &vec![2, 0, 4, 0]));
        let posted = HostRowSet { ids: vec![7, 0, 4, 3], members: vec![1, 2, 3, 4], words: 1 };
        parcel.take(&posted, 0..8, 1);
        assert_eq!((parcel.ids, parcel.members), (vec![0, 3, 4, 7], vec![2, 4, 3, 1]));
    }
}
