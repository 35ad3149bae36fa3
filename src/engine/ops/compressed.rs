//! Attention with one KV head over a window and compressed keys (DeepSeek-V4) as ops.

use hal::op::{
    BlockList, CompressKeys, HeadMatMul, LightningIndexer, ListBlocks, Op, Rope, block_rows,
};
use hal::{KV_BLOCK, KvRows, Operand, TensorDesc};

use model::{
    Attention, AttentionSizes, BlockIndexer, CompressedBlocks, Compressor, LowRank, SingleKv,
};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;

/// Scratch of the keys and the output, in sequences of `n_positions`, as roles and numbers of columns.
pub(super) fn scratch_of(
    sizes: &AttentionSizes,
    by: &SingleKv<TensorDesc>,
    n_positions: usize,
) -> Vec<(Role, usize)> {
    let mut all = vec![
        (Role::LatentKv, sizes.d_head),
        (Role::Key, sizes.d_head),
        (Role::GroupedOutput, by.out.n_rows),
    ];
    let Some(blocks) = &by.blocks else { return all };
    let compressors = [Some(&blocks.keys), blocks.indexer.as_ref().map(|by| &by.keys)];
    for Compressor { values, .. } in compressors.into_iter().flatten() {
        all.extend([Role::BlockValues, Role::BlockGates].map(|role| (role, values.w.n_rows)));
    }
    if let Some(BlockIndexer { n_head, d_head, .. }) = blocks.selecting(n_positions) {
        all.extend([(Role::IndexQuery, n_head * d_head), (Role::IndexWeights, *n_head)]);
    }
    all.push((Role::BlockList, n_listed(sizes, blocks, n_positions)));
    all
}

/// Number of entries in the list of what a token attends to.
fn n_listed<T>(sizes: &AttentionSizes, by: &CompressedBlocks<T>, n_positions: usize) -> usize {
    window(sizes, n_positions) + by.n_selected(n_positions)
}

/// Positions of the window, of which a context of `n_positions` has no more.
fn window(sizes: &AttentionSizes, n_positions: usize) -> usize {
    sizes.window.map_or(1, |window| window.size().min(n_positions))
}

/// Number of values of each state: values and gates of the positions that a key is made from.
pub(super) fn state_widths(by: &CompressedBlocks<TensorDesc>) -> Vec<usize> {
    let indexer = by.indexer.as_ref().map(|by| &by.keys);
    let width = |keys: &Compressor<TensorDesc>| {
        let (w, d) = (keys.ape.n_cols, keys.norm.n_cols);
        by.ratio * (w / d) * 2 * w
    };
    [Some(&by.keys), indexer].into_iter().flatten().map(width).collect()
}

/// Number of rows of a cache of `n_blocks` KV blocks: those of the positions, then those of compressed
/// keys.
pub(super) fn cache_rows<T>(by: Option<&CompressedBlocks<T>>, n_blocks: usize) -> usize {
    n_blocks * (KV_BLOCK + by.map_or(0, |by| block_rows(by.ratio)))
}

impl<T: Operand> LayerOps<'_, T> {
    /// Computes the keys of the blocks that end in this step from the normed `h`, and lists what each
    /// token attends to. `None` in a layer without compressed keys.
    pub(super) fn compress(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>) -> Option<&T> {
        let (blocks, cache) = (by.blocks()?, self.memory.compressed.as_ref()?);
        let (s, sizes) = (self.scratch, &by.sizes);
        let [state, index_states @ ..] = self.memory.states.as_slice() else { return None };
        self.compress_keys(ops, by, &blocks.keys, state, cache);
        let n_positions = self.batch.shape.max_blocks * KV_BLOCK;
        let selected = s.at(Role::BlockList, n_listed(sizes, blocks, n_positions));
        let first_row = self.memory.own_kv()?.k.desc().n_rows - cache.k.desc().n_rows;
        let list = BlockList { window: window(sizes, n_positions), first_row };
        let (batch, ratio) = (self.batch.clone(), blocks.ratio);
        let index = index_states.first().zip(self.memory.index.as_ref());
        if let Some((indexer, (state, cache))) = blocks.indexer.as_ref().zip(index) {
            self.compress_keys(ops, by, &indexer.keys, state, cache);
        }
        match blocks.selecting(n_positions).zip(index) {
            Some((indexer, (_, cache))) => {
                self.select_blocks(ops, by, indexer, cache, (selected, ratio, list));
            }
            None => {
                ops.push(ListBlocks { batch, selected: selected.clone(), ratio, list }.into());
            }
        }
        Some(selected)
    }

    fn compress_keys(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &Attention<T>,
        keys: &Compressor<T>,
        state: &T,
        cache: &KvRows<T>,
    ) {
        let (Some(freqs), Some(rope)) = (self.freqs, &by.rope) else { return };
        let (s, width) = (self.scratch, keys.ape.desc().n_cols);
        let [values, gates] = [Role::BlockValues, Role::BlockGates].map(|role| s.at(role, width));
        ops.push(matmul(&keys.values, &s.h, values));
        ops.push(matmul(&keys.gates, &s.h, gates));
        let compress = CompressKeys {
            values: values.clone(),
            gates: gates.clone(),
            ape: keys.ape.clone(),
            norm: keys.norm.clone(),
            freqs: freqs.clone(),
            batch: self.batch.clone(),
            state: state.clone(),
            cache: cache.clone(),
            ratio: keys.ape.desc().n_rows,
            eps: self.model.hyper.eps,
            pairing: rope.pairing,
        };
        ops.push(compress.into());
    }

    /// Computes the queries of an indexer and selects blocks with them.
    fn select_blocks(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &Attention<T>,
        indexer: &BlockIndexer<T>,
        cache: &KvRows<T>,
        (selected, pool, list): (&T, usize, BlockList),
    ) {
        let (Some(freqs), Some(rope), Some(LowRank { a, .. })) = (self.freqs, &by.rope, &by.q_a)
        else {
            return;
        };
        let (s, n_head, d_head) = (self.scratch, indexer.n_head, indexer.d_head);
        let q = s.at(Role::IndexQuery, n_head * d_head);
        let weights = s.at(Role::IndexWeights, n_head);
        ops.push(matmul(&indexer.q, s.at(Role::LatentQueryNormed, a.w.desc().n_rows), q));
        let n_rot = by.sizes.n_rot;
        let rotate = Rope {
            freqs: freqs.clone(),
            batch: self.batch.clone(),
            x: q.clone(),
            d_head,
            first: d_head - n_rot,
            n_rot,
            pairing: rope.pairing,
            scale: rope.scale,
        };
        ops.push(rotate.into());
        ops.push(matmul(&indexer.weights, &s.h, weights));
        let select = LightningIndexer {
            q: q.clone(),
            weights: Some(weights.clone()),
            cache: cache.clone(),
            batch: self.batch.clone(),
            selected: selected.clone(),
            n_head,
            pool,
            list: Some(list),
        };
        ops.push(select.into());
    }

    /// Computes the key (before RoPE), which is also the value, from the normed `h`.
    pub(super) fn single_key(
        &self,
        ops: &mut Vec<Op<T>>,
        sizes: &AttentionSizes,
        by: &SingleKv<T>,
    ) -> &T {
        let [raw, key] =
            [Role::LatentKv, Role::Key].map(|role| self.scratch.at(role, sizes.d_head));
        ops.push(matmul(&by.kv, &self.scratch.h, raw));
        ops.push(self.norm(raw, &by.norm, key));
        key
    }

    /// Rotates the heads' outputs `x` back, and computes the input of the output matrix from them.
    pub(super) fn grouped_output(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &Attention<T>,
        single: &SingleKv<T>,
        x: &T,
    ) -> &T {
        if let Some(rope) = &by.rope {
            let back = Rope {
                freqs: single.back.clone(),
                batch: self.batch.clone(),
                x: x.clone(),
                d_head: by.sizes.d_head,
                first: by.sizes.first_rotated(),
                n_rot: by.sizes.n_rot,
                pairing: rope.pairing,
                scale: rope.scale,
            };
            ops.push(back.into());
        }
        let y = self.scratch.at(Role::GroupedOutput, single.out.desc().n_rows);
        let (w, x) = (single.out.clone(), x.clone());
        ops.push(HeadMatMul { w, x, y: y.clone(), n_head: single.n_group }.into());
        y
    }
}
