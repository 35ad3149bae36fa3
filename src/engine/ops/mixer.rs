//! The mixers of layers as ops, and their scratch.

use hal::op::{
    Add, Attention as AttentionOp, CopyHeads, GateActivation, HeadColumns, HeadMatMul, Mul, Norm,
    Op, Rope, ScaleByPosition, SoftCap, StoreKv,
};
use hal::{Operand, TensorDesc};

use model::{
    Affine, Attention, AttentionSizes, HeadNorm, Kv, Latent, LowRank, Mamba1, Mamba2, Mixer,
    OutputGate, Temperature,
};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;
use super::{compressed, indexer, rwkv6, rwkv7};

/// Scratch that a mixer needs in addition to the scratch of all layers, as roles and numbers of
/// columns, in sequences of `n_positions`.
pub(crate) fn scratch_of(mixer: &Mixer<TensorDesc>, n_positions: usize) -> Vec<(Role, usize)> {
    match mixer {
        Mixer::None => Vec::new(),
        Mixer::Attention(by) => attention_scratch(by, n_positions),
        Mixer::ShortConv(by) => {
            let n = by.conv.n_rows;
            vec![(Role::Query, n), (Role::Value, n), (Role::Mixed, n)]
        }
        Mixer::GatedDelta(by) => {
            let (n_k, n_v) = (by.sizes.n_k(), by.sizes.n_v());
            let mut all = vec![
                (Role::Query, n_k),
                (Role::QueryConv, n_k),
                (Role::Key, n_k),
                (Role::KeyConv, n_k),
                (Role::Value, n_v),
                (Role::Mixed, n_v),
                (Role::Decay, by.alpha.w.n_rows),
                (Role::Beta, by.sizes.n_head_v),
            ];
            let ranks = [&by.alpha_in, &by.z_in].into_iter().flatten();
            all.extend(ranks.map(|first| (Role::LowRank, first.w.n_rows)));
            all
        }
        Mixer::Mamba1(by) => mamba1_scratch(by),
        Mixer::Mamba2(by) => mamba2_scratch(by),
        Mixer::Rwkv6(by) => rwkv6::scratch_of(by),
        Mixer::Rwkv7(by) => rwkv7::scratch_of(by),
        Mixer::Parallel { attention, mamba } => {
            let mut all = attention_scratch(attention, n_positions);
            all.extend(mamba2_scratch(mamba));
            all.push((Role::Summand, attention.o.w.n_rows));
            all
        }
    }
}

fn attention_scratch(by: &Attention<TensorDesc>, n_positions: usize) -> Vec<(Role, usize)> {
    let sizes = &by.sizes;
    let mut all = vec![(Role::Query, sizes.n_q()), (Role::Mixed, sizes.n_out())];
    match &by.gate {
        OutputGate::None => {}
        OutputGate::Joint => {
            all.extend([(Role::QueryGate, 2 * sizes.n_q()), (Role::Gate, sizes.n_q())]);
        }
        OutputGate::Matrix { by, .. } => all.push((Role::Gate, by.w.n_rows)),
    }
    if let Some(LowRank { a, .. }) = &by.q_a {
        all.extend([(Role::LatentQuery, a.w.n_rows), (Role::LatentQueryNormed, a.w.n_rows)]);
    }
    if let Some(sparse) = &by.sparse {
        all.extend(indexer::scratch_of(sparse, n_positions));
    }
    match &by.kv {
        Kv::Direct { .. } => {}
        Kv::Single(by) => {
            all.extend(compressed::scratch_of(sizes, by, n_positions));
            return all;
        }
        Kv::Latent(_) => {
            all.extend(latent_scratch(sizes));
            if sizes.n_rot > 0 {
                all.push((Role::KeyRope, sizes.n_rot));
            }
            return all;
        }
        Kv::Shared { .. } => return all,
    }
    all.extend([(Role::Key, sizes.n_k()), (Role::Value, sizes.n_v())]);
    if by.v_normed {
        all.push((Role::ValueNormed, sizes.n_v()));
    }
    all
}

fn mamba1_scratch(by: &Mamba1<TensorDesc>) -> Vec<(Role, usize)> {
    let (n_x, n_b, rank) = (by.sizes.d_inner, by.sizes.d_state, by.dt_in.w.n_rows);
    let mut all = vec![
        (Role::Value, n_x),
        (Role::Mixed, n_x),
        (Role::Gate, n_x),
        (Role::Decay, by.sizes.n_head),
        (Role::Query, n_b),
        (Role::Key, n_b),
        (Role::Step, rank),
    ];
    if by.norms.is_some() {
        all.extend([(Role::QueryConv, n_b), (Role::KeyConv, n_b), (Role::StepNormed, rank)]);
    }
    all
}

fn mamba2_scratch(by: &Mamba2<TensorDesc>) -> Vec<(Role, usize)> {
    let (n_b, n_x) = (by.sizes.n_b(), by.sizes.d_inner);
    vec![
        (Role::Query, n_b),
        (Role::QueryConv, n_b),
        (Role::Key, n_b),
        (Role::KeyConv, n_b),
        (Role::Value, n_x),
        (Role::Mixed, n_x),
        (Role::Decay, by.sizes.n_head),
    ]
}

/// Scratch of latent attention: the latent vector before and after its norm, the cache row, and for all
/// heads the queries of such rows and the weighted sums of latent vectors.
fn latent_scratch(sizes: &AttentionSizes) -> [(Role, usize); 5] {
    let AttentionSizes { n_head, n_rot, d_latent, .. } = *sizes;
    [
        (Role::LatentKv, d_latent),
        (Role::LatentKvNormed, d_latent),
        (Role::Key, d_latent + n_rot),
        (Role::AbsorbedQuery, n_head * (d_latent + n_rot)),
        (Role::LatentSum, n_head * d_latent),
    ]
}

impl<T: Operand> LayerOps<'_, T> {
    /// Computes the mixer from the normed `h` into `y`.
    pub(crate) fn mix(&self, ops: &mut Vec<Op<T>>) {
        match &self.frame.mixer {
            Mixer::None => {}
            Mixer::Attention(by) => self.attention(ops, by, &self.scratch.y),
            Mixer::ShortConv(by) => self.short_conv(ops, by),
            Mixer::GatedDelta(by) => self.gated_delta(ops, by),
            Mixer::Mamba1(by) => self.mamba1(ops, by),
            Mixer::Mamba2(by) => self.mamba2(ops, by),
            Mixer::Rwkv6(by) => self.time_mix_6(ops, by),
            Mixer::Rwkv7(by) => self.time_mix_7(ops, by),
            Mixer::Parallel { attention, mamba } => {
                let sum = self.scratch.at(Role::Summand, self.model.hyper.n_embd);
                self.attention(ops, attention, sum);
                self.mamba2(ops, mamba);
                ops.push(Add { a: sum.clone(), x: self.scratch.y.clone() }.into());
            }
        }
    }

    /// Attention of the normed `h`, into `out`.
    fn attention(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>, out: &T) {
        let (s, sizes) = (self.scratch, &by.sizes);
        let mixed = s.at(Role::Mixed, sizes.n_out());
        // Latent attention is attention to cache rows with queries of their width; its output is
        // then multiplied by a matrix per head.
        let (q, attended, n_head_kv) = match &by.kv {
            Kv::Direct { .. } | Kv::Shared { .. } | Kv::Single(_) => {
                (s.at(Role::Query, sizes.n_q()), mixed, sizes.n_head_kv)
            }
            Kv::Latent(_) => {
                let [.., q, sums] = latent_scratch(sizes).map(|(role, width)| s.at(role, width));
                (q, sums, 1)
            }
        };
        self.queries(ops, by);
        let blocks = self.compress(ops, by);
        let selected = blocks.or_else(|| self.select_positions(ops, by));
        let own = self.keys_and_values(ops, by);
        let rotated = |norm: &Option<HeadNorm<T>>| by.norms_after_rope && norm.is_some();
        if !rotated(&by.q_norm) {
            self.rotate(ops, by, q);
        }
        if let Some(Temperature { factor, length, offset }) = sizes.temperature {
            let (batch, x) = (self.batch.clone(), q.clone());
            ops.push(ScaleByPosition { batch, x, factor, length, offset }.into());
        }
        let Some(cache) = self.memory.kv() else { return };
        // These ops are adjacent, because devices fuse both RoPE ops and the store.
        if let Some((k, v)) = own {
            if !rotated(&by.k_norm) {
                self.rotate(ops, by, k);
            }
            let (k, v, batch) = (k.clone(), v.cloned(), self.batch.clone());
            ops.push(StoreKv { k, v, batch, cache: cache.clone() }.into());
        }
        let attention = AttentionOp {
            q: q.clone(),
            cache: cache.clone(),
            batch: self.batch.clone(),
            slopes: by.slopes.clone(),
            sinks: by.sinks.clone(),
            selected: selected.cloned(),
            y: attended.clone(),
            n_head: sizes.n_head,
            n_head_kv,
            scale: sizes.scale,
            // A list of blocks begins with the window.
            window: sizes.window.filter(|_| blocks.is_none()),
            softcap: sizes.softcap,
        };
        ops.push(attention.into());
        let mixed = match &by.kv {
            Kv::Direct { .. } | Kv::Shared { .. } => mixed,
            Kv::Single(single) => self.grouped_output(ops, by, single, mixed),
            Kv::Latent(latent) => {
                let (w, x, y) = (latent.v_b.clone(), attended.clone(), mixed.clone());
                ops.push(HeadMatMul { w, x, y, n_head: sizes.n_head }.into());
                mixed
            }
        };
        let gate = |n| s.at(Role::Gate, n).clone();
        let gate = match &by.gate {
            OutputGate::None => None,
            OutputGate::Joint => Some((gate(sizes.n_q()), GateActivation::Sigmoid)),
            OutputGate::Matrix { by, activation } => {
                let g = gate(by.w.desc().n_rows);
                ops.push(matmul(by, &s.h, &g));
                Some((g, *activation))
            }
        };
        if let Some((g, activation)) = gate {
            ops.push(Mul { g, x: mixed.clone(), activation }.into());
        }
        ops.push(matmul(&by.o, mixed, out));
    }

    /// Computes keys (before RoPE) and values from the normed `h`; `None` if the layer uses an
    /// earlier layer's KV cache. Latent attention has no values apart from its keys.
    fn keys_and_values(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>) -> Option<(&T, Option<&T>)> {
        let (s, sizes) = (self.scratch, &by.sizes);
        let own = || (s.at(Role::Key, sizes.n_k()), s.at(Role::Value, sizes.n_v()));
        let (k, v) = match &by.kv {
            Kv::Direct { k: by_k, v: by_v } => {
                let (k, v) = own();
                self.head_product(ops, by, (by_k, &s.h), by.k_norm.as_ref(), [v, k]);
                match (by_v, &by.k_norm) {
                    (Some(by_v), _) => self.product(ops, by, (by_v, &s.h), v),
                    // The unnormed keys are in `v` already.
                    (None, Some(_)) => {}
                    (None, None) => self.product(ops, by, (by_k, &s.h), v),
                }
                (k, v)
            }
            Kv::Latent(latent) => return Some((self.latent(ops, sizes, latent), None)),
            Kv::Single(single) => return Some((self.single_key(ops, sizes, single), None)),
            Kv::Shared { .. } => return None,
        };
        if !by.v_normed {
            return Some((k, Some(v)));
        }
        let normed = s.at(Role::ValueNormed, sizes.n_v());
        let norm = Norm {
            x: v.clone(),
            weight: None,
            bias: None,
            y: normed.clone(),
            kind: self.model.spec.norm,
            eps: self.model.hyper.eps,
            width: sizes.d_value,
        };
        ops.push(norm.into());
        Some((k, Some(normed)))
    }

    /// Applies RoPE to the heads in `x`, if the layer has RoPE. In latent attention, these are cache
    /// rows and their queries.
    fn rotate(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>, x: &T) {
        let (Some(freqs), Some(rope)) = (self.freqs, &by.rope) else { return };
        let (n_rot, [d_head, _]) = (by.sizes.n_rot, by.sizes.cached_heads());
        let rope = Rope {
            freqs: freqs.clone(),
            batch: self.batch.clone(),
            x: x.clone(),
            d_head,
            first: by.sizes.first_rotated(),
            n_rot,
            pairing: rope.pairing,
            scale: rope.scale,
        };
        ops.push(rope.into());
    }

    /// Computes the queries and, if the output is gated, the gates from the normed `h`.
    fn queries(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>) {
        let (s, sizes) = (self.scratch, &by.sizes);
        let (n_q, d_head) = (sizes.n_q(), sizes.d_head);
        let q = s.at(Role::Query, n_q);
        // The unnormed product is written to the attention output's scratch, which is still
        // unused.
        let free = s.at(Role::Mixed, sizes.n_out());
        if !matches!(by.gate, OutputGate::Joint) {
            let x = match &by.q_a {
                Some(LowRank { a, norm }) => {
                    let rank = a.w.desc().n_rows;
                    let [x, normed] =
                        [Role::LatentQuery, Role::LatentQueryNormed].map(|role| s.at(role, rank));
                    ops.push(matmul(a, &s.h, x));
                    ops.push(self.norm(x, norm, normed));
                    normed
                }
                None => &s.h,
            };
            self.head_product(ops, by, (&by.q, x), by.q_norm.as_ref(), [free, q]);
            return;
        }
        let joint = s.at(Role::QueryGate, 2 * n_q);
        ops.push(matmul(&by.q, &s.h, joint));
        let to = if by.q_norm.is_some() { free } else { q };
        for (first, y) in [(0, to), (d_head, s.at(Role::Gate, n_q))] {
            let copy = CopyHeads {
                x: joint.clone(),
                y: y.clone(),
                n_head: sizes.n_head,
                width: d_head,
                from: HeadColumns { first, step: 2 * d_head },
                to: HeadColumns { first: 0, step: d_head },
            };
            ops.push(copy.into());
        }
        if let Some(norm) = &by.q_norm {
            self.head_norm(ops, by, norm, [to, q]);
        }
    }

    /// Computes the product of a matrix and its input into `y`, followed by the norm of the heads
    /// if there is one; `free` holds the unnormed product.
    fn head_product(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &Attention<T>,
        (matrix, x): (&Affine<T>, &T),
        norm: Option<&HeadNorm<T>>,
        [free, y]: [&T; 2],
    ) {
        match norm {
            Some(norm) => {
                self.product(ops, by, (matrix, x), free);
                self.head_norm(ops, by, norm, [free, y]);
            }
            None => self.product(ops, by, (matrix, x), y),
        }
    }

    /// Computes the product of a matrix and its input into `y`, clamped if the model does so.
    fn product(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &Attention<T>,
        (matrix, x): (&Affine<T>, &T),
        y: &T,
    ) {
        ops.push(matmul(matrix, x, y));
        if let Some(cap) = by.sizes.clamp {
            ops.push(SoftCap { x: y.clone(), cap, hard: true }.into());
        }
    }

    /// `y = norm(x)` for the heads in `x`, to which RoPE is applied before if the norms follow it.
    fn head_norm(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &Attention<T>,
        norm: &HeadNorm<T>,
        [x, y]: [&T; 2],
    ) {
        if by.norms_after_rope {
            self.rotate(ops, by, x);
        }
        let HeadNorm { by: Affine { w, bias }, width } = norm;
        // `Norm` applies one weight vector to all heads. If their weights differ, a `Mul` applies
        // the weights.
        let shared = w.desc().n_cols == *width;
        let op = Norm {
            x: x.clone(),
            weight: shared.then(|| w.clone()),
            bias: bias.clone(),
            y: y.clone(),
            kind: self.model.spec.norm,
            eps: self.model.hyper.eps,
            width: *width,
        };
        ops.push(op.into());
        if !shared {
            let (g, x) = (w.clone(), y.clone());
            ops.push(Mul { g, x, activation: GateActivation::None }.into());
        }
    }

    /// Computes the cache rows (before RoPE) of latent attention, which it returns, and the queries of
    /// these rows (before RoPE) from the queries of all heads.
    fn latent(&self, ops: &mut Vec<Op<T>>, sizes: &AttentionSizes, by: &Latent<T>) -> &T {
        let s = self.scratch;
        let [latent, normed, key, absorbed, _] =
            latent_scratch(sizes).map(|(role, width)| s.at(role, width));
        let q = s.at(Role::Query, sizes.n_q());
        let AttentionSizes { n_head, n_rot, d_head, d_latent, .. } = *sizes;
        let columns = |first, step| HeadColumns { first, step };
        let copy = |(x, from): (&T, _), (y, to): (&T, _), n_head, width| CopyHeads {
            x: x.clone(),
            y: y.clone(),
            n_head,
            width,
            from,
            to,
        };
        let width = d_latent + n_rot;
        let (w, x, y) = (by.k_b.clone(), q.clone(), absorbed.clone());
        ops.push(HeadMatMul { w, x, y, n_head }.into());
        let rotated = columns(d_head - n_rot, d_head);
        let to = columns(d_latent, width);
        if n_rot > 0 {
            ops.push(copy((q, rotated), (absorbed, to), n_head, n_rot).into());
        }
        ops.push(matmul(&by.kv_a_proj, &s.h, latent));
        ops.push(self.norm(latent, &by.kv_a_norm, normed));
        ops.push(
            copy((normed, columns(0, d_latent)), (key, columns(0, width)), 1, d_latent).into(),
        );
        if let Some(by) = &by.k_rope {
            let k_rope = s.at(Role::KeyRope, n_rot);
            ops.push(matmul(by, &s.h, k_rope));
            ops.push(copy((k_rope, columns(0, n_rot)), (key, to), 1, n_rot).into());
        }
        key
    }
}
