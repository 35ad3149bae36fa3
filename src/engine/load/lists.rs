//! Lists of active rows on a device, and the predictor that fills them on the home device of a
//! layer.

use std::sync::Arc;

use hal::format::Format;
use hal::{Device, HostRows, Operand, PackDesc, Queue, RowSet, Slot, Source, Tensor};

use placement::{LayerPlacement, Neurons};

use super::Loader;
use crate::error::Result;
use crate::ops::predict::{Predictor, PredictorData, u32_desc, vector as values};
use crate::paging::Owner;
use crate::size::lists::ListShape;

impl Loader<'_> {
    /// Loads a layer's predictor onto its home.
    pub(crate) fn predictor(
        &self,
        layer: usize,
        data: PredictorData<'_>,
        placed: &LayerPlacement,
    ) -> Result<Predictor<Tensor>> {
        let home = &self.sizing.devices[placed.home];
        let import = |part: &str, rows: &HostRows| {
            self.import_whole(home, Owner::Predictor(layer), &format!("blk.{layer}.{part}"), rows)
        };
        let vector = |part: &str, rows: &HostRows| {
            self.import_unpaged(home, &format!("blk.{layer}.{part}"), rows)
        };
        let slots = slots(placed, data.fc2.desc().n_rows);
        let bias = data.bias.map(|bias| vector("predictor_bias", &values(bias)));
        Ok(Predictor {
            fc1: data.fc1.map(|fc1| import("fc1", fc1)).transpose()?,
            fc2: import("fc2", data.fc2)?,
            bias: bias.transpose()?,
            slots: vector("slots", &slots)?,
            threshold: data.threshold,
            hidden: data.hidden,
            input: data.input,
        })
    }
}

impl Predictor<Tensor> {
    /// Writes the slots of the neurons to the device after an exchange.
    pub(crate) fn write_slots(&self, queue: &mut Queue, placed: &LayerPlacement) -> Result<()> {
        let slots = slots(placed, self.slots.desc().n_cols);
        Ok(queue.write(&self.slots, &slots.rows(0..1)?)?)
    }
}

/// For each of the `n_ff` neurons of a layer, its slot as seen from the home device. Rows on other
/// devices are numbered consecutively over all of these devices, in the order of the shares.
fn slots(placed: &LayerPlacement, n_ff: usize) -> HostRows {
    let mut slots = vec![0u32; n_ff];
    let mut n_absent = 0;
    for share in &placed.shares {
        let here = share.device == placed.home;
        let first = if here { 0 } else { n_absent };
        let slot = |row: u32| {
            if here { Slot::Resident(row).encode() } else { Slot::Absent(first + row).encode() }
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
    HostRows::new(source, 1, n_ff, Format::U32).expect("each word has four bytes")
}

/// The lists of one device, which every layer reuses.
#[derive(Debug)]
pub(crate) struct RowLists {
    /// Resident rows. Each layer has its own count, `[n_layer, 1]`.
    resident: RowList,
    /// Rows on other devices; `None` if there are no other devices.
    absent: Option<RowList>,
    /// Rows that the next layer is likely to select; `None` if nothing is read ahead.
    guessed: Option<RowList>,
}

#[derive(Debug)]
struct RowList {
    ids: Tensor,
    counts: Tensor,
    /// Membership bits, one tensor for each recorded token count.
    members: Vec<Tensor>,
}

impl RowList {
    fn new(device: &Device, n_ff: usize, n_counts: usize, buckets: &[usize]) -> Result<RowList> {
        let mut members: Vec<Tensor> = Vec::new();
        for n_words in ListShape::member_words(buckets) {
            match members.last() {
                Some(last) if last.desc().n_cols == n_words => members.push(last.clone()),
                _ => members.push(device.alloc("members", u32_desc(n_ff, n_words))?),
            }
        }
        Ok(RowList {
            ids: device.alloc("ids", u32_desc(1, n_ff))?,
            counts: device.alloc("counts", u32_desc(n_counts, 1))?,
            members,
        })
    }

    fn set(&self, count: usize, bucket: usize) -> RowSet<Tensor> {
        RowSet {
            ids: self.ids.clone(),
            count: self.counts.rows(count..count + 1),
            members: self.members[bucket].clone(),
        }
    }
}

impl RowLists {
    pub(crate) fn new(
        device: &Device,
        queue: &mut Queue,
        shape: &ListShape,
        buckets: &[usize],
    ) -> Result<RowLists> {
        for len in shape.staging(buckets) {
            queue.reserve(len)?;
        }
        let absent =
            shape.shared.then(|| RowList::new(device, shape.n_ff, 1, buckets)).transpose()?;
        let guessed =
            shape.guesses.then(|| RowList::new(device, shape.n_ff, 1, buckets)).transpose()?;
        let resident = RowList::new(device, shape.n_ff, shape.n_layer, buckets)?;
        Ok(RowLists { resident, absent, guessed })
    }

    /// The resident rows of `layer` that a step selects; `bucket` is the index of its token count.
    pub(crate) fn resident(&self, layer: usize, bucket: usize) -> RowSet<Tensor> {
        self.resident.set(layer, bucket)
    }

    /// The rows on other devices that a step selects; `None` without other devices.
    pub(crate) fn absent(&self, bucket: usize) -> Option<RowSet<Tensor>> {
        self.absent.as_ref().map(|list| list.set(0, bucket))
    }

    /// The rows that the next layer is likely to select; `None` if nothing is read ahead.
    pub(crate) fn guessed(&self, bucket: usize) -> Option<RowSet<Tensor>> {
        self.guessed.as_ref().map(|list| list.set(0, bucket))
    }

    /// Number of resident rows selected per layer, `[n_layer, 1]`.
    pub(crate) fn counts(&self) -> &Tensor {
        &self.resident.counts
    }
}

/// The list of neurons that a predictor selects in a streamed chunk. Neuron `i` of the chunk is in
/// slot `i` of the device.
#[derive(Debug)]
pub(crate) struct ChunkLists {
    slots: Tensor,
    list: RowList,
}

impl ChunkLists {
    /// Allocates the list for chunks of `n` neurons, in steps with the token counts `buckets`.
    pub(crate) fn new(device: &Device, n: usize, buckets: &[usize]) -> Result<ChunkLists> {
        let order: Vec<u32> = (0..n as u32).map(|slot| Slot::Resident(slot).encode()).collect();
        let bytes: Vec<u8> = bytemuck::cast_slice(&order).to_vec();
        let rows = HostRows::new(Source::Owned(Arc::new(bytes)), 1, n, Format::U32)?;
        let slots = device.import("streamed slots", &PackDesc::whole(rows.desc()), &rows)?;
        Ok(ChunkLists { slots, list: RowList::new(device, n, 1, buckets)? })
    }

    pub(crate) fn slots(&self) -> Tensor {
        self.slots.clone()
    }

    /// The neurons of a chunk that a step selects; `bucket` is the index of its token count.
    pub(crate) fn set(&self, bucket: usize) -> RowSet<Tensor> {
        self.list.set(0, bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use placement::Share;

    #[test]
    fn absent_rows_are_numbered_device_by_device() {
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
    }
}
