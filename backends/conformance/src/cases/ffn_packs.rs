//! Cases of SparseFfn on parts of matrices: selected neurons, refilled slots, column blocks of a
//! down matrix, views.

use std::sync::Arc;

use hal::format::Format;
use hal::op::SparseFfn;
use hal::{Bytes, HostRows, PackDesc, Result, Rows, Select, SharedBytes, Tensor};

use super::ffn::{DownLayout, ROUNDED, Spec, build, finish};
use crate::Case;
use crate::rig::Rig;
use crate::weights::weight_formats;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        for layout in [DownLayout::Stored, DownLayout::Transposed] {
            let body = move |rig: &mut Rig| run_selected_slots(rig, format, layout);
            cases.push(Case::new(format!("SparseFfn/{format}/selected/{layout:?}"), body));
            let body = move |rig: &mut Rig| run_views(rig, format, layout);
            cases.push(Case::new(format!("SparseFfn/{format}/views/{layout:?}"), body));
        }
        for n_tokens in [1, 5, 40] {
            let body = move |rig: &mut Rig| run_side_by_side(rig, format, n_tokens);
            cases.push(Case::new(format!("SparseFfn/{format}/side by side/{n_tokens}"), body));
        }
        for layout in [DownLayout::Stored, DownLayout::Transposed] {
            for n_tokens in [5, 40] {
                let body = move |rig: &mut Rig| run_repacked(rig, format, layout, n_tokens);
                let name = format!("SparseFfn/{format}/repacked/{layout:?}/t{n_tokens}");
                cases.push(Case::new(name, body));
            }
        }
        let body = move |rig: &mut Rig| run_adopted_pack(rig, format);
        cases.push(Case::new(format!("SparseFfn/{format}/adopted"), body));
        let body = move |rig: &mut Rig| run_shares(rig, format);
        let case = Case::new(format!("SparseFfn/{format}/shares"), body);
        let rounded = format.quants().is_some();
        cases.push(if rounded { case.with_tolerance(1e-5, ROUNDED) } else { case });
    }
    cases
}

/// Some neurons are resident. Two spare slots and one occupied slot are refilled, and a row list
/// selects slots of all kinds.
fn run_selected_slots(rig: &mut Rig, format: Format, layout: DownLayout) -> Result<()> {
    let spec = Spec::new(format, layout);
    let (n_ff, n_embd, n_out) = (spec.n_rows(), spec.n_embd(), spec.n_out());
    let base = build(rig, &spec)?;
    let gate = rig.matrix(n_ff, n_embd, format)?;
    let up = rig.matrix(n_ff, n_embd, format)?;
    let down = match layout {
        DownLayout::Stored => rig.matrix(n_ff, n_out, format)?,
        DownLayout::Transposed | DownLayout::Across => rig.matrix(n_out, n_ff, format)?,
    };
    let chosen = rig.rng.choose(n_ff / 2, n_ff);
    let n_chosen = chosen.len();
    let absent: Vec<u32> = (0..n_ff as u32).filter(|id| !chosen.contains(id)).collect();
    // Two consecutive spare slots, and one occupied slot.
    let refills = [(n_chosen, absent[0]..absent[0] + 2), (4, absent[9]..absent[9] + 1)];
    let packed = |rig: &mut Rig, source: &HostRows, transpose: bool| -> Result<Tensor> {
        let select = Select::Rows(chosen.clone().into());
        let pack = PackDesc { select, transpose, spare: 2, ..PackDesc::whole(source.desc()) };
        let tensor = rig.device.import("pack", &pack, source)?;
        for (slot, rows) in refills.clone() {
            let bytes = rig.device.pack_rows(&pack, source, rows.clone())?;
            if pack.transpose && pack.source.format.quants().is_some() {
                let plain = hal::pack::pack_rows_plain(&pack, source, rows.clone())?;
                rig.same_bytes("transposed rows in the plain layout", &plain, &bytes);
            }
            rig.queue.refill(&tensor, slot..slot + rows.len(), &bytes)?;
        }
        Ok(tensor)
    };
    let n_slots = n_chosen + 2;
    let ids: Vec<u32> = (0..n_slots as u32).filter(|slot| slot % 3 != 1).collect();
    let wants = |i: usize, t: usize| !(i + t).is_multiple_of(4);
    let op = SparseFfn {
        gate: Some(packed(rig, &gate, false)?),
        up: packed(rig, &up, false)?,
        down: packed(rig, &down, layout == DownLayout::Transposed)?,
        rows: Rows::Active(rig.row_set(n_slots, 5, &ids, 5, &wants)?),
        ..base
    };
    finish(rig, op)
}

/// Streams neurons through slots that are repacked between runs of one program, in queue order. The
/// last chunk is shorter, and unused slots must add nothing.
fn run_repacked(rig: &mut Rig, format: Format, layout: DownLayout, n_tokens: usize) -> Result<()> {
    let spec = Spec { accumulate: true, n_tokens, ..Spec::new(format, layout) };
    let (n_ff, n_embd, n_out) = (spec.n_rows(), spec.n_embd(), spec.n_out());
    let base = build(rig, &spec)?;
    let gate = rig.matrix(n_ff, n_embd, format)?;
    let up = rig.matrix(n_ff, n_embd, format)?;
    let down = match layout {
        DownLayout::Stored => rig.matrix(n_ff, n_out, format)?,
        DownLayout::Transposed | DownLayout::Across => rig.matrix(n_out, n_ff, format)?,
    };
    let n_slots = n_ff / 3 + 1;
    let chosen = rig.rng.choose(n_ff - 5, n_ff);
    let sources = [(&gate, false), (&up, false), (&down, layout == DownLayout::Transposed)];
    let pack = |(source, transpose): (&HostRows, bool), rows: &[u32]| PackDesc {
        select: Select::Rows(rows.into()),
        transpose,
        spare: n_slots - rows.len(),
        ..PackDesc::whole(source.desc())
    };
    let first: Vec<u32> = (0..n_slots as u32).collect();
    let mut slots = Vec::new();
    for from in sources {
        slots.push(rig.device.import("slots", &pack(from, &first), from.0)?);
    }
    let [gate, up, down] = [&slots[0], &slots[1], &slots[2]].map(Tensor::clone);
    let program = rig.program([SparseFfn { gate: Some(gate), up, down, ..base.clone() }.into()])?;
    let (mut runs, mut copies) = (Vec::new(), Vec::new());
    for chunk in chosen.chunks(n_slots) {
        for (from, slots) in sources.into_iter().zip(&slots) {
            let pack = pack(from, chunk);
            let Some(len) = rig.device.packed_len(&pack.packed_desc()?) else {
                return Err(rig.unsupported("repack", "the device does not replace packs"));
            };
            let mut staging = rig.device.staging(Bytes(len as u64))?;
            staging.bytes_mut().fill(0xA5);
            rig.device.pack_into(&pack, from.0, staging.bytes_mut())?;
            copies.push(rig.queue.repack(staging, slots)?);
        }
        runs.push(rig.queue.replay(&program)?);
    }
    runs.into_iter().try_for_each(hal::Run::wait)?;
    copies.into_iter().try_for_each(|copy| copy.wait().map(drop))?;
    let short = rig.device.staging(Bytes(4))?;
    if rig.queue.repack(short, &slots[0]).is_ok() {
        rig.faults.push("bytes of another length were accepted as a pack".to_owned());
    }
    rig.watch("y", &base.y)?;
    rig.watch("active", &base.active)
}

/// On devices that support it, gate, up and down are columns of one matrix. A row list selects some
/// rows.
fn run_side_by_side(rig: &mut Rig, format: Format, n_tokens: usize) -> Result<()> {
    let spec = Spec { n_tokens, ..Spec::new(format, DownLayout::Stored) };
    let (n_rows, n_embd, n_out) = (spec.n_rows(), spec.n_embd(), spec.n_out());
    let base = build(rig, &spec)?;
    let widths = [n_embd, n_embd, n_out];
    let wide = rig.matrix(n_rows, widths.iter().sum(), format)?;
    let bundle = rig.device.import("bundle", &PackDesc::whole(wide.desc()), &wide)?;
    let mut at = 0;
    let mut parts = Vec::new();
    for n in widths {
        let cols = at..at + n;
        at += n;
        if rig.device.supports_column_views() {
            parts.push(bundle.columns(cols));
            continue;
        }
        let block = format.block_values() as u32;
        let blocks = (cols.start as u32 / block..cols.end as u32 / block).collect();
        let select = Select::ColumnBlocks(blocks);
        let pack = PackDesc { select, ..PackDesc::whole(wide.desc()) };
        parts.push(rig.device.import("columns", &pack, &wide)?);
    }
    let view = |part: &Tensor| part.rows(3..n_rows - 5);
    let ids: Vec<u32> = (0..n_rows as u32 - 8).filter(|row| row % 3 != 1).collect();
    let wants = |i: usize, t: usize| !(i + t).is_multiple_of(4);
    let op = SparseFfn {
        gate: Some(view(&parts[0])),
        up: view(&parts[1]),
        down: view(&parts[2]),
        rows: Rows::Active(rig.row_set(n_rows - 8, n_tokens, &ids, n_tokens, &wants)?),
        ..base
    };
    finish(rig, op)
}

/// On devices that support it, the down matrix is adopted from bytes that were packed earlier.
fn run_adopted_pack(rig: &mut Rig, format: Format) -> Result<()> {
    let spec = Spec::new(format, DownLayout::Transposed);
    let base = build(rig, &spec)?;
    let source = rig.matrix(spec.n_out(), spec.n_rows(), format)?;
    let pack = PackDesc { transpose: true, ..PackDesc::whole(source.desc()) };
    let down = match rig.device.stored_pack(&pack, &source) {
        None => rig.device.import("down", &pack, &source)?,
        Some(stored) => {
            let mut packed = AlignedBytes::new(stored.len);
            rig.device.pack_into(&pack, &source, packed.bytes_mut())?;
            let used = rig.device.ledger().used();
            let short: SharedBytes = Arc::new(AlignedBytes::new(stored.len - 1));
            if rig.device.adopt(&pack, short).is_ok() {
                rig.faults.push("bytes of another length were adopted".to_owned());
            }
            let tensor = rig.device.adopt(&pack, Arc::new(packed))?;
            if rig.device.ledger().used() != used {
                rig.faults.push("adopted bytes counted against the budget".to_owned());
            }
            tensor
        }
    };
    finish(rig, SparseFfn { down, ..base })
}

/// Bytes aligned to 64, as in a mapped file, with poison around them.
#[derive(Debug)]
struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    fn new(len: usize) -> AlignedBytes {
        let bytes = vec![0xA5; len + 64];
        let start = bytes.as_ptr().align_offset(64);
        AlignedBytes { bytes, start, len }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

/// All matrices are views that begin inside their buffers.
fn run_views(rig: &mut Rig, format: Format, layout: DownLayout) -> Result<()> {
    let spec = Spec::new(format, layout);
    let op = build(rig, &spec)?;
    let view = |tensor: &Tensor| tensor.rows(3..spec.n_rows() - 5);
    let op = SparseFfn {
        gate: op.gate.as_ref().map(view),
        up: view(&op.up),
        down: view(&op.down),
        ..op
    };
    finish(rig, op)
}

/// Two ops each compute half of the neurons, split at whole blocks of the down matrix, and add to
/// the same `y`. A layer split between devices does the same if its down matrix is not transposed.
fn run_shares(rig: &mut Rig, format: Format) -> Result<()> {
    let spec = Spec { accumulate: true, ..Spec::new(format, DownLayout::Across) };
    let (n_ff, block) = (spec.n_rows(), format.block_values());
    let base = build(rig, &spec)?;
    let gate = rig.matrix(n_ff, spec.n_embd(), format)?;
    let up = rig.matrix(n_ff, spec.n_embd(), format)?;
    let down = rig.matrix(spec.n_out(), n_ff, format)?;
    let mut ops = Vec::new();
    for half in 0..2 {
        let blocks: Vec<u32> = (0..(n_ff / block) as u32).filter(|b| b % 2 == half).collect();
        let neurons = blocks.iter().flat_map(|&b| {
            let first = b * block as u32;
            first..first + block as u32
        });
        let rows = Select::Rows(neurons.collect());
        let take = |rig: &Rig, source: &HostRows, select: Select| {
            let pack = PackDesc { select, ..PackDesc::whole(source.desc()) };
            rig.device.import("share", &pack, source)
        };
        ops.push(SparseFfn {
            gate: Some(take(rig, &gate, rows.clone())?),
            up: take(rig, &up, rows)?,
            down: take(rig, &down, Select::ColumnBlocks(blocks.into()))?,
            ..base.clone()
        });
    }
    rig.run(ops.into_iter().map(Into::into))?;
    rig.watch("y", &base.y)?;
    rig.watch("active", &base.active)
}
