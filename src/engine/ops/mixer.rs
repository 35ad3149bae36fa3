//! The mixers of layers as ops, and their scratch, KV caches and recurrent states.

use hal::op::{
    Attention as AttentionOp, CopyHeads, GateActivation, HeadColumns, Mul, Norm, Op, Rope,
    ScaleByPosition, SoftCap, StoreKv,
};
use hal::{Bytes, HostRows, KV_BLOCK, KvCache, Operand, TensorDesc};

use model::{
    Affine, Attention, AttentionSizes, HeadNorm, Kv, Latent, LayerWeights, LowRank, Mixer,
    OutputGate, Temperature,
};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;
use crate::options::EngineOptions;

/// Per-sequence data that a layer keeps between steps.
#[derive(Clone, Debug)]
pub(crate) enum Memory<T> {
    /// No data.
    None,
    /// Keys and values of every position.
    Kv(KvCache<T>),
    /// Keys and values in an earlier layer's cache, which this layer only reads.
    SharedKv(KvCache<T>),
    /// Recurrent states, `[n_seq + n_checkpoint, width]` each. Row `i` belongs to sequence `i` of
    /// the batch; the rows from `n_seq` on hold checkpoints.
    Recurrent(Vec<T>),
}

impl<T> Memory<T> {
    /// The KV cache that the layer attends to: its own cache or an earlier layer's; `None` in
    /// layers without attention.
    pub(crate) fn kv(&self) -> Option<&KvCache<T>> {
        match self {
            Memory::Kv(cache) | Memory::SharedKv(cache) => Some(cache),
            Memory::None | Memory::Recurrent(_) => None,
        }
    }

    pub(crate) fn own_kv(&self) -> Option<&KvCache<T>> {
        match self {
            Memory::Kv(cache) => Some(cache),
            Memory::None | Memory::SharedKv(_) | Memory::Recurrent(_) => None,
        }
    }

    /// Recurrent states; empty for attention layers.
    pub(crate) fn states(&self) -> &[T] {
        match self {
            Memory::Recurrent(states) => states,
            Memory::None | Memory::Kv(_) | Memory::SharedKv(_) => &[],
        }
    }

    /// The tensors to allocate for the layer. An earlier layer's cache is not included.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &T> {
        self.own_kv().into_iter().flat_map(|cache| [&cache.k, &cache.v]).chain(self.states())
    }

    /// The tensors that a step reads, including an earlier layer's cache.
    pub(crate) fn read_tensors(&self) -> impl Iterator<Item = &T> {
        self.kv().into_iter().flat_map(|cache| [&cache.k, &cache.v]).chain(self.states())
    }
}

pub(crate) fn shapes(layer: &LayerWeights) -> Mixer<TensorDesc> {
    layer.frame.map(&mut HostRows::desc).mixer
}

/// The per-sequence data of a layer with `mixer`.
pub(crate) fn memory(mixer: &Mixer<TensorDesc>, options: &EngineOptions) -> Memory<TensorDesc> {
    match mixer {
        Mixer::None => Memory::None,
        Mixer::Attention(Attention { sizes, kv, .. }) => {
            let (formats, rows) = (options.kv_formats, options.n_blocks() * KV_BLOCK);
            let cache = KvCache {
                k: TensorDesc::new(rows, sizes.n_k(), formats.k),
                v: TensorDesc::new(rows, sizes.n_v(), formats.v),
            };
            match kv {
                Kv::Direct { .. } | Kv::Latent(_) => Memory::Kv(cache),
                Kv::Shared { .. } => Memory::SharedKv(cache),
            }
        }
        Mixer::ShortConv(_) | Mixer::GatedDelta(_) | Mixer::Mamba2(_) => {
            let rows = options.n_seq + options.n_checkpoint;
            let state = |width| TensorDesc::new(rows, width, hal::format::Format::F32);
            Memory::Recurrent(state_widths(mixer).into_iter().map(state).collect())
        }
    }
}

/// Bytes of the recurrent state of one sequence in `layer`; 0 in a layer without recurrence.
#[must_use]
pub fn state_bytes(layer: &LayerWeights) -> Bytes {
    let values: usize = state_widths(&shapes(layer)).into_iter().sum();
    Bytes(4 * values as u64)
}

/// Number of values of each recurrent state of one sequence.
fn state_widths(mixer: &Mixer<TensorDesc>) -> Vec<usize> {
    let conv = |weight: &TensorDesc| {
        let TensorDesc { n_rows, n_cols, .. } = *weight;
        (n_cols - 1) * n_rows
    };
    match mixer {
        Mixer::None | Mixer::Attention(_) => Vec::new(),
        Mixer::ShortConv(by) => vec![conv(&by.conv)],
        Mixer::GatedDelta(by) => {
            let sizes = &by.sizes;
            let delta = sizes.n_head_v * sizes.d_k * sizes.d_v;
            vec![conv(&by.q_conv), conv(&by.k_conv), conv(&by.v_conv), delta]
        }
        Mixer::Mamba2(by) => {
            let filters = [&by.x_conv, &by.b_conv, &by.c_conv].map(|filter| conv(&filter.w));
            let scan = by.sizes.d_inner * by.sizes.d_state;
            filters.into_iter().chain([scan]).collect()
        }
    }
}

/// Scratch that a mixer needs in addition to the scratch of all layers, as roles and numbers of
/// columns.
pub(crate) fn scratch_of(mixer: &Mixer<TensorDesc>) -> Vec<(Role, usize)> {
    match mixer {
        Mixer::None => Vec::new(),
        Mixer::Attention(by) => {
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
                all.extend([
                    (Role::LatentQuery, a.w.n_rows),
                    (Role::LatentQueryNormed, a.w.n_rows),
                ]);
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
        Mixer::Mamba2(by) => {
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
    }
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
            Mixer::Attention(by) => self.attention(ops, by),
            Mixer::ShortConv(by) => self.short_conv(ops, by),
            Mixer::GatedDelta(by) => self.gated_delta(ops, by),
            Mixer::Mamba2(by) => self.mamba2(ops, by),
        }
    }

    fn attention(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>) {
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
        ops.push(matmul(&by.o, mixed, &s.y));
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
