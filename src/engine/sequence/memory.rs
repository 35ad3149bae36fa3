//! Copies, saves and restores the rows of sequences on the devices: keys and values in cache
//! blocks, and recurrent state.

use std::ops::Range;

use hal::{KV_BLOCK, KvRows, Operand, Staging, Tensor};

use placement::Placement;

use crate::error::Result;
use crate::load::lane::Lane;
use crate::load::{Layer, LoadedModel, lane_mut};

/// A tensor with rows for each KV block.
#[derive(Clone, Debug)]
pub(crate) struct BlockRows {
    pub(crate) tensor: Tensor,
    /// Number of rows of a KV block.
    per_block: usize,
}

impl BlockRows {
    /// The rows of `positions` of the cache, which begin with a KV block and are at most one.
    pub(crate) fn rows(&self, positions: &Range<usize>) -> Tensor {
        let first = positions.start / KV_BLOCK * self.per_block;
        self.tensor.rows(first..first + self.n_rows(positions.len()))
    }

    /// Number of rows of the first `n` positions of a sequence.
    pub(crate) fn n_rows(&self, n: usize) -> usize {
        let in_block = (n % KV_BLOCK * self.per_block).div_ceil(KV_BLOCK);
        n / KV_BLOCK * self.per_block + in_block
    }
}

impl Layer {
    /// Rows of the layer's own KV cache, with the keys of its indexer. A cache that several layers read is
    /// listed once, for its owner.
    pub(crate) fn caches(&self) -> Vec<BlockRows> {
        let n_blocks = self.memory.n_blocks();
        let n_positions = n_blocks * KV_BLOCK;
        let own = self.memory.own_kv().into_iter().flat_map(KvRows::tensors);
        let own = own.map(|tensor| tensor.rows(0..n_positions));
        let others =
            self.memory.compressed.iter().chain(&self.memory.index).flat_map(KvRows::tensors);
        let all = own.chain(others.cloned());
        let rows = |tensor: Tensor| {
            let per_block = tensor.desc().n_rows / n_blocks.max(1);
            BlockRows { tensor, per_block }
        };
        all.map(rows).collect()
    }

    /// Tensors of the recurrent state of the layer, `[n_seq + n_checkpoint, width]` F32 each.
    pub(crate) fn states(&self) -> impl Iterator<Item = &Tensor> {
        self.memory.all_states()
    }
}

impl LoadedModel {
    /// Calls `f` for each layer, with the lane of its home.
    fn each_layer(
        &mut self,
        placement: &Placement,
        f: &mut dyn FnMut(&mut Lane, &Layer) -> Result<()>,
    ) -> Result<()> {
        for (layer, placed) in self.layers.iter().zip(&placement.layers) {
            f(lane_mut(&mut self.lanes, placed.home), layer)?;
        }
        Ok(())
    }

    pub(crate) fn copy_cache(
        &mut self,
        placement: &Placement,
        from: Range<usize>,
        to: Range<usize>,
    ) -> Result<()> {
        self.each_layer(placement, &mut |lane, layer| {
            for cache in layer.caches() {
                lane.queue.copy_rows(&cache.rows(&from), &cache.rows(&to))?;
            }
            Ok(())
        })
    }

    pub(crate) fn copy_state(
        &mut self,
        placement: &Placement,
        from: usize,
        to: usize,
    ) -> Result<()> {
        self.each_layer(placement, &mut |lane, layer| {
            for state in layer.states() {
                lane.queue.copy_rows(&state.rows(from..from + 1), &state.rows(to..to + 1))?;
            }
            Ok(())
        })
    }

    /// Appends the bytes of the rows `blocks` of all caches, and of the row `state` of all states,
    /// to `out`: per layer keys, values, keys of the indexer, states.
    pub(crate) fn save(
        &mut self,
        placement: &Placement,
        blocks: &[Range<usize>],
        state: Option<usize>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.each_layer(placement, &mut |lane, layer| {
            for cache in layer.caches() {
                blocks.iter().try_for_each(|rows| fetch(lane, &cache.rows(rows), out))?;
            }
            let Some(row) = state else { return Ok(()) };
            layer.states().try_for_each(|tensor| fetch(lane, &tensor.rows(row..row + 1), out))
        })
    }

    /// Writes the bytes from [`LoadedModel::save`] to other rows. The caller must have checked the
    /// length of `bytes`.
    pub(crate) fn restore(
        &mut self,
        placement: &Placement,
        blocks: &[Range<usize>],
        state: Option<usize>,
        mut bytes: &[u8],
    ) -> Result<()> {
        self.each_layer(placement, &mut |lane, layer| {
            for cache in layer.caches() {
                for rows in blocks {
                    bytes = send(lane, &cache.rows(rows), bytes)?;
                }
            }
            if let Some(row) = state {
                for tensor in layer.states() {
                    bytes = send(lane, &tensor.rows(row..row + 1), bytes)?;
                }
            }
            Ok(())
        })
    }

    /// Number of bytes that [`LoadedModel::save`] appends for `n` positions.
    pub(crate) fn saved_len(&self, n: usize) -> usize {
        let rows = |tensor: &Tensor, n: usize| {
            let desc = tensor.desc();
            n * desc.format.row_bytes(desc.n_cols).unwrap_or(0)
        };
        let caches = self.layers.iter().flat_map(Layer::caches);
        let caches = caches.map(|cache| rows(&cache.tensor, cache.n_rows(n)));
        let states = self.layers.iter().flat_map(Layer::states);
        caches.chain(states.map(|state| rows(state, n.min(1)))).sum()
    }
}

/// Appends the bytes of rows on a device. The staging memory is released at once, so that it does
/// not stay in the budget.
fn fetch(lane: &mut Lane, rows: &Tensor, out: &mut Vec<u8>) -> Result<()> {
    let mut done = 0;
    while done < rows.desc().n_rows {
        let (part, staging) = first_rows(lane, &rows.rows(done..rows.desc().n_rows))?;
        let staging = lane.queue.download(&part, staging)?.wait()?;
        out.extend_from_slice(staging.bytes());
        done += part.desc().n_rows;
    }
    Ok(())
}

/// Writes the first bytes to rows on a device and returns the other bytes.
fn send<'a>(lane: &mut Lane, rows: &Tensor, mut bytes: &'a [u8]) -> Result<&'a [u8]> {
    let mut done = 0;
    while done < rows.desc().n_rows {
        let (part, mut staging) = first_rows(lane, &rows.rows(done..rows.desc().n_rows))?;
        let (these, rest) = bytes.split_at(staging.bytes().len());
        staging.bytes_mut().copy_from_slice(these);
        drop(lane.queue.upload(staging, &part)?.wait()?);
        (bytes, done) = (rest, done + part.desc().n_rows);
    }
    Ok(bytes)
}

/// Rows that a copy may have at least: their bytes are whole words in every cache type.
const LEAST_ROWS: usize = 4;

/// The rows, and staging memory for them; fewer of the first rows if the budget of the device has
/// no memory for all.
fn first_rows(lane: &Lane, rows: &Tensor) -> Result<(Tensor, Staging)> {
    let mut n = rows.desc().n_rows;
    loop {
        let part = rows.rows(0..n);
        match lane.device.staging(part.desc().bytes().unwrap_or_default()) {
            Err(hal::Error::OutOfMemory { .. }) if n > LEAST_ROWS => {
                n = (n / 2).next_multiple_of(LEAST_ROWS);
            }
            staging => return Ok((part, staging?)),
        }
    }
}
