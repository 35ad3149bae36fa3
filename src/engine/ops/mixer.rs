//! The mixers of layers as ops, and their scratch.

use hal::op::{
    Add, Attention as AttentionOp, CopyHeads, GateActivation, HeadColumns, Mul, Norm, Op, Rope,
    ScaleByPosition, SoftCap, StoreKv,
};
use hal::{Operand, TensorDesc};

use model::{
    Affine, Attention, AttentionSizes, HeadNorm, Kv, Latent, LowRank, Mamba1, Mamba2, Mixer,
    OutputGate, Temperature,
};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;
use super::{rwkv6, rwkv7};

/// Scratch that a mixer needs in addition to the scratch of all layers, as roles and numbers of
/// columns.
pub(crate) fn scratch_of(mixer: &Mixer<TensorDesc>) -> Vec<(Role, usize)> {
    match mixer {
        Mixer::None => Vec::new(),
        Mixer::Attention(by) => attention_scratch(by),
        Mixer::ShortConv(by) => {
            let n = by.conv.n_rows;
            vec![(Role::Query, n), (Role::Value, n), (Role::Mixed, n)]
        }
        Mixer::GatedDelta(by) => {
            let (n_k, n_v, n_head) = (by.sizes.n_k(), by.sizes.n_v(), by.sizes.n_head_v);
            vec![
                (Role::Query, n_k),
                (Role::QueryConv, n_k),
                (Role::Key, n_k),
                (Role::KeyConv, n_k),
                (Role::Value, n_v),
                (Role::Mixed, n_v),
                (Role::Decay, n_head),
                (Role::Beta, n_head),
            ]
        }
        Mixer::Mamba1(by) => mamba1_scratch(by),
        Mixer::Mamba2(by) => mamba2_scratch(by),
        Mixer::Rwkv6(by) => rwkv6::scratch_of(by),
        Mixer::Rwkv7(by) => rwkv7::scratch_of(by),
        Mixer::Parallel { attention, mamba } => {
            let mut all = attention_scratch(attention);
            all.extend(mamba2_scratch(mamba));
            all.push((Role::Summand, attention.o.w.n_rows));
            all
        }
    }
}

fn attention_scratch(by: &Attention<TensorDesc>) -> Vec<(Role, usize)> {
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
    match &by.kv {
        Kv::Direct { .. } => {}
        Kv::Latent(latent) => all.extend(latent_scratch(latent)),
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

fn latent_scratch<T: Operand>(by: &Latent<T>) -> [(Role, usize); 4] {
    let rows = |by: &Affine<T>| by.w.desc().n_rows;
    [
        (Role::LatentKv, rows(&by.kv_a_proj)),
        (Role::LatentKvNormed, rows(&by.kv_a_proj)),
        (Role::KeyRope, rows(&by.k_rope)),
        (Role::LatentExpanded, rows(&by.kv_b_proj)),
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
        let (q, mixed) = (s.at(Role::Query, sizes.n_q()), s.at(Role::Mixed, sizes.n_out()));
        self.queries(ops, by);
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
            let (k, v, batch) = (k.clone(), v.clone(), self.batch.clone());
            ops.push(StoreKv { k, v, batch, cache: cache.clone() }.into());
        }
        let attention = AttentionOp {
            q: q.clone(),
            cache: cache.clone(),
            batch: self.batch.clone(),
            slopes: by.slopes.clone(),
            sinks: by.sinks.clone(),
            y: mixed.clone(),
            n_head: sizes.n_head,
            n_head_kv: sizes.n_head_kv,
            scale: sizes.scale,
            window: sizes.window,
            softcap: sizes.softcap,
        };
        ops.push(attention.into());
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
    /// earlier layer's KV cache.
    fn keys_and_values(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>) -> Option<(&T, &T)> {
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
            Kv::Latent(latent) => {
                self.latent(ops, sizes, latent);
                own()
            }
            Kv::Shared { .. } => return None,
        };
        if !by.v_normed {
            return Some((k, v));
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
        Some((k, normed))
    }

    /// Applies RoPE to the heads in `x`, if the layer has RoPE.
    fn rotate(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>, x: &T) {
        let (Some(freqs), Some(rope)) = (self.freqs, &by.rope) else { return };
        let AttentionSizes { d_head, n_rot, .. } = by.sizes;
        let rope = Rope {
            freqs: freqs.clone(),
            batch: self.batch.clone(),
            x: x.clone(),
            d_head,
            first: match by.kv {
                Kv::Direct { .. } | Kv::Shared { .. } => 0,
                Kv::Latent(_) => d_head - n_rot,
            },
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

    /// Computes the keys and values of all heads through a latent vector (MLA).
    fn latent(&self, ops: &mut Vec<Op<T>>, sizes: &AttentionSizes, by: &Latent<T>) {
        let s = self.scratch;
        let [latent, normed, k_rope, expanded] =
            latent_scratch(by).map(|(role, width)| s.at(role, width));
        let (k, v) = (s.at(Role::Key, sizes.n_k()), s.at(Role::Value, sizes.n_v()));
        let AttentionSizes { n_head, n_rot, d_head, d_value, .. } = *sizes;
        let n_unrotated = d_head - n_rot;
        let n_per_head = n_unrotated + d_value;
        ops.push(matmul(&by.kv_a_proj, &s.h, latent));
        ops.push(self.norm(latent, &by.kv_a_norm, normed));
        ops.push(matmul(&by.k_rope, &s.h, k_rope));
        ops.push(matmul(&by.kv_b_proj, normed, expanded));
        let columns = |first, step| HeadColumns { first, step };
        let mut copy = |x: &T, from, y: &T, to, width| {
            let (x, y) = (x.clone(), y.clone());
            ops.push(CopyHeads { x, y, n_head, width, from, to }.into());
        };
        let to_key = |first| columns(first, d_head);
        if n_unrotated > 0 {
            copy(expanded, columns(0, n_per_head), k, to_key(0), n_unrotated);
        }
        copy(k_rope, columns(0, 0), k, to_key(n_unrotated), n_rot);
        copy(expanded, columns(n_unrotated, n_per_head), v, columns(0, d_value), d_value);
    }
}
