//! Copies, saves and restores the rows of sequences on the devices: keys and values in cache
//! blocks, and recurrent state.

use std::ops::Range;

use hal::{Bytes, KvCache, Operand, Tensor};

use placement::Placement;

use crate::error::Result;
use crate::load::lane::Lane;
use crate::load::{Layer, LoadedModel, lane_mut};

impl Layer {
    /// Tensors of the layer's own KV cache. A cache that several layers read is listed once, for
    /// its owner.
    pub(crate) fn caches(&self) -> impl Iterator<Item = &Tensor> {
        self.memory.own_kv().into_iter().flat_map(|KvCache { k, v }| [k, v])
    }

    /// Tensors of the recurrent state of the layer, `[n_seq + n_checkpoint, width]` F32 each.
    pub(crate) fn states(&self) -> impl Iterator<Item = &Tensor> {
        self.memory.states.iter()
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
                lane.queue.copy_rows(&cache.rows(from.clone()), &cache.rows(to.clone()))?;
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
    /// to `out`: per layer keys, values, states.
    pub(crate) fn save(
        &mut self,
        placement: &Placement,
        blocks: &[Range<usize>],
        state: Option<usize>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        self.each_layer(placement, &mut |lane, layer| {
            for cache in layer.caches() {
                blocks.iter().try_for_each(|rows| fetch(lane, &cache.rows(rows.clone()), out))?;
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
                    bytes = send(lane, &cache.rows(rows.clone()), bytes)?;
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
        let caches = self.layers.iter().flat_map(Layer::caches).map(|cache| rows(cache, n));
        let states = self.layers.iter().flat_map(Layer::states);
        caches.chain(states.map(|state| rows(state, n.min(1)))).sum()
    }
}

/// Appends the bytes of rows on a device. The staging memory is released at once, so that it does
/// not stay in the budget.
fn fetch(lane: &mut Lane, rows: &Tensor, out: &mut Vec<u8>) -> Result<()> {
    let staging = lane.device.staging(rows.desc().bytes().unwrap_or(Bytes(0)))?;
    let staging = lane.queue.download(rows, staging)?.wait()?;
    out.extend_from_slice(staging.bytes());
    Ok(())
}

/// Writes the first bytes to rows on a device and returns the other bytes.
fn send<'a>(lane: &mut Lane, rows: &Tensor, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let len = rows.desc().bytes().unwrap_or(Bytes(0));
    let (these, rest) = bytes.split_at(len.0 as usize);
    let mut staging = lane.device.staging(len)?;
    staging.bytes_mut().copy_from_slice(these);
    drop(lane.queue.upload(staging, rows)?.wait()?);
    Ok(rest)
}
