//! The lightning indexer of sparse attention (DSA, QSA) as ops.

use hal::op::{CopyHeads, HeadColumns, LightningIndexer, Norm, Op, PoolKeys, Rope, StoreKv};
use hal::{KV_BLOCK, KvRows, Operand, TensorDesc};

use model::{Affine, Attention, BlockKeys, Indexer, KeyPool, LowRank, Sparse};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;

/// Scratch of sparse attention in sequences of `n_positions`, as roles and numbers of columns.
pub(super) fn scratch_of(sparse: &Sparse<TensorDesc>, n_positions: usize) -> Vec<(Role, usize)> {
    let mut all = Vec::new();
    if let Some(Indexer { n_head, d_head, q_norm, weights, blocks, .. }) = &sparse.indexer {
        all.extend([(Role::IndexKey, *d_head), (Role::IndexKeyNormed, *d_head)]);
        if matches!(blocks, Some(BlockKeys::Gated(_))) {
            all.push((Role::IndexKeyGate, 2 * d_head));
        }
        if sparse.selects(n_positions) {
            all.push((Role::IndexQuery, n_head * d_head));
            all.extend(q_norm.is_some().then_some((Role::IndexQueryNormed, n_head * d_head)));
            all.extend(weights.is_some().then_some((Role::IndexWeights, *n_head)));
        }
    }
    if sparse.selects(n_positions) {
        all.push((Role::Selected, sparse.n_selected()));
    }
    all
}

impl<T: Operand> LayerOps<'_, T> {
    /// Stores the indexer's keys of the normed `h`, and selects the positions that attention reads.
    /// `None` if attention reads all positions, as it does in sequences that are no longer than the
    /// selection.
    pub(super) fn select_positions(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>) -> Option<&T> {
        let sparse = by.sparse.as_ref()?;
        let selects = sparse.selects(self.batch.shape.max_blocks * KV_BLOCK);
        let selected = selects.then(|| self.scratch.at(Role::Selected, sparse.n_selected()));
        let Some((indexer, cache)) = sparse.indexer.as_ref().zip(self.memory.index.as_ref()) else {
            return selected;
        };
        let cache = &KvRows { k: cache.k.clone(), v: None };
        self.store_index_keys(ops, by, indexer, cache);
        let (s, selected, n_head) = (self.scratch, selected?, indexer.n_head);
        let width = n_head * indexer.d_head;
        let raw = s.at(Role::IndexQuery, width);
        // Attention's queries have the same input.
        let x = match &by.q_a {
            Some(LowRank { a, .. }) => s.at(Role::LatentQueryNormed, a.w.desc().n_rows),
            None => &s.h,
        };
        ops.push(matmul(&indexer.q, x, raw));
        let q = match &indexer.q_norm {
            Some(norm) => {
                let normed = s.at(Role::IndexQueryNormed, width);
                ops.push(self.norm_index(indexer, raw, norm, normed));
                normed
            }
            None => raw,
        };
        self.rotate_index(ops, by, indexer, q);
        let weights = indexer.weights.as_ref().map(|by| {
            let weights = s.at(Role::IndexWeights, n_head);
            ops.push(matmul(by, &s.h, weights));
            weights.clone()
        });
        let select = LightningIndexer {
            q: q.clone(),
            weights,
            cache: cache.clone(),
            batch: self.batch.clone(),
            selected: selected.clone(),
            n_head,
            pool: sparse.pool,
            list: None,
        };
        ops.push(select.into());
        Some(selected)
    }

    /// Computes the indexer's keys of the normed `h` and stores them: a key per position, or, at
    /// the last position of each block, the key of the block. In the latter case, keys at other
    /// positions are never read.
    fn store_index_keys(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &Attention<T>,
        indexer: &Indexer<T>,
        cache: &KvRows<T>,
    ) {
        let (s, d_head) = (self.scratch, indexer.d_head);
        let (raw, normed) = (s.at(Role::IndexKey, d_head), s.at(Role::IndexKeyNormed, d_head));
        ops.push(matmul(&indexer.k, &s.h, raw));
        let k = match (&indexer.blocks, self.memory.states.first()) {
            (Some(BlockKeys::Mean(pooled)), Some(state)) => {
                let (mean, turned) = (normed, normed);
                ops.push(self.conv(raw, &pooled.mean, state, mean, false).into());
                ops.push(self.norm_index(indexer, mean, &indexer.k_norm, raw));
                let turn = Affine { w: pooled.turn.clone(), bias: None };
                ops.push(matmul(&turn, raw, turned));
                turned
            }
            (Some(BlockKeys::Mean(_) | BlockKeys::Gated(_)) | None, _) => {
                ops.push(self.norm_index(indexer, raw, &indexer.k_norm, normed));
                normed
            }
        };
        self.rotate_index(ops, by, indexer, k);
        let k = match &indexer.blocks {
            Some(BlockKeys::Gated(pool)) => self.pooled(ops, indexer, pool, [k, raw]),
            Some(BlockKeys::Mean(_)) | None => k,
        };
        let (k, batch) = (k.clone(), self.batch.clone());
        ops.push(StoreKv { k, v: None, batch, cache: cache.clone() }.into());
    }

    /// Stores the normed key `k` of a position with its gate, and computes the keys of the blocks that
    /// end in this step. Uses `free`, which then holds these keys.
    fn pooled<'a>(
        &self,
        ops: &mut Vec<Op<T>>,
        indexer: &Indexer<T>,
        by: &KeyPool<T>,
        [k, free]: [&'a T; 2],
    ) -> &'a T {
        let Some(rows) = self.memory.index.as_ref().and_then(|index| index.v.as_ref()) else {
            return k;
        };
        let d_head = indexer.d_head;
        let both = self.scratch.at(Role::IndexKeyGate, 2 * d_head);
        let copy = |x: &T, first| {
            let from = HeadColumns { first: 0, step: d_head };
            let to = HeadColumns { first, step: d_head };
            CopyHeads { x: x.clone(), y: both.clone(), n_head: 1, width: d_head, from, to }
        };
        ops.push(copy(k, 0).into());
        ops.push(matmul(&by.gate, &self.scratch.h, free));
        ops.push(copy(free, d_head).into());
        let (cache, batch) = (KvRows { k: rows.clone(), v: None }, self.batch.clone());
        let (k, pool) = (both.clone(), by.ape.desc().n_rows);
        ops.push(StoreKv { k, v: None, batch: batch.clone(), cache: cache.clone() }.into());
        let (ape, y) = (Some(by.ape.clone()), free.clone());
        ops.push(PoolKeys { cache, batch, ape, y, pool }.into());
        free
    }

    /// `y = norm(x)` for each head of the indexer in `x`.
    fn norm_index(&self, indexer: &Indexer<T>, x: &T, by: &Affine<T>, y: &T) -> Op<T> {
        let norm = Norm {
            x: x.clone(),
            weight: Some(by.w.clone()),
            bias: by.bias.clone(),
            y: y.clone(),
            kind: indexer.norm,
            eps: indexer.eps,
            width: indexer.d_head,
        };
        norm.into()
    }

    /// Applies RoPE to the first values of the indexer's heads in `x`.
    fn rotate_index(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>, indexer: &Indexer<T>, x: &T) {
        let (Some(freqs), Some(rope)) = (self.freqs, &by.rope) else { return };
        let rope = Rope {
            freqs: freqs.clone(),
            batch: self.batch.clone(),
            x: x.clone(),
            d_head: indexer.d_head,
            first: 0,
            n_rot: by.sizes.n_rot,
            pairing: indexer.pairing,
            scale: rope.scale,
        };
        ops.push(rope.into());
    }
}
