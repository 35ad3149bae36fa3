//! The mixers of layers as ops, with their scratch, KV caches and recurrent states.

use hal::op::{
    Attention as AttentionOp, CopyHeads, GateActivation, GatedDelta as GatedDeltaOp, HeadColumns,
    Mul, Norm, NormKind, Op, Rope, ShortConv as ShortConvOp, StoreKv,
};
use hal::{Bytes, HostRows, KV_BLOCK, KvCache, Operand, TensorDesc};

use model::{
    Affine, Attention, AttentionSizes, GatedDelta, Kv, Latent, LayerWeights, Mixer, Positions,
    ShortConv,
};

use super::EngineOptions;
use super::lane::Role;
use super::layer::{LayerOps, matmul};

/// Per-sequence data that a layer keeps between steps.
#[derive(Clone, Debug)]
pub(super) enum Memory<T> {
    /// Nothing.
    None,
    /// Keys and values of every position.
    Kv(KvCache<T>),
    /// Recurrent states, `[n_seq + n_checkpoint, width]` each: the row of a sequence is its number
    /// in the batch; the rows after those hold checkpoints.
    Recurrent(Vec<T>),
}

impl<T> Memory<T> {
    /// Keys and values, if the layer has attention.
    pub(super) fn kv(&self) -> Option<&KvCache<T>> {
        match self {
            Memory::Kv(cache) => Some(cache),
            Memory::None | Memory::Recurrent(_) => None,
        }
    }

    /// Recurrent states; empty for attention layers.
    pub(super) fn states(&self) -> &[T] {
        match self {
            Memory::Recurrent(states) => states,
            Memory::None | Memory::Kv(_) => &[],
        }
    }

    /// Its tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &T> {
        self.kv().into_iter().flat_map(|cache| [&cache.k, &cache.v]).chain(self.states())
    }
}

/// The shapes of a layer's mixer.
pub(super) fn shapes(layer: &LayerWeights) -> Mixer<TensorDesc> {
    layer.frame.map(&mut HostRows::desc).mixer
}

/// The per-sequence data of a layer with `mixer`.
pub(super) fn memory(mixer: &Mixer<TensorDesc>, options: &EngineOptions) -> Memory<TensorDesc> {
    match mixer {
        Mixer::None => Memory::None,
        Mixer::Attention(Attention { sizes, .. }) => {
            let (formats, rows) = (options.kv_formats, options.n_blocks() * KV_BLOCK);
            Memory::Kv(KvCache {
                k: TensorDesc::new(rows, sizes.n_k(), formats.k),
                v: TensorDesc::new(rows, sizes.n_v(), formats.v),
            })
        }
        Mixer::ShortConv(_) | Mixer::GatedDelta(_) => {
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
    }
}

/// The scratch that a layer needs in addition to that of all layers: its role and columns.
pub(super) fn scratch_of(mixer: &Mixer<TensorDesc>) -> Vec<(Role, usize)> {
    match mixer {
        Mixer::None => Vec::new(),
        Mixer::Attention(by) => {
            let sizes = &by.sizes;
            let mut all = vec![
                (Role::Query, sizes.n_q()),
                (Role::Key, sizes.n_k()),
                (Role::Value, sizes.n_v()),
                (Role::Mixed, sizes.n_out()),
            ];
            if by.gated {
                all.extend([(Role::QueryGate, 2 * sizes.n_q()), (Role::Gate, sizes.n_q())]);
            }
            if let Kv::Latent(latent) = &by.kv {
                all.extend(latent_scratch(latent));
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
    /// From the normed `h` to the mixer's output in `y`.
    pub(super) fn mix(&self, ops: &mut Vec<Op<T>>) {
        match &self.frame.mixer {
            Mixer::None => {}
            Mixer::Attention(by) => self.attention(ops, by),
            Mixer::ShortConv(by) => self.short_conv(ops, by),
            Mixer::GatedDelta(by) => self.gated_delta(ops, by),
        }
    }

    fn attention(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>) {
        let (s, sizes) = (self.scratch, &by.sizes);
        let [q, k, v] =
            [(Role::Query, sizes.n_q()), (Role::Key, sizes.n_k()), (Role::Value, sizes.n_v())]
                .map(|(role, n)| s.at(role, n));
        let mixed = s.at(Role::Mixed, sizes.n_out());
        self.queries(ops, by);
        match &by.kv {
            Kv::Direct { k: by_k, v: by_v } => {
                self.head_product(ops, by_k, by.k_norm.as_ref(), v, k);
                ops.push(matmul(by_v, &s.h, v));
            }
            Kv::Latent(latent) => self.latent(ops, sizes, latent),
        }
        if let (Some(freqs), Some(rope), Positions::Rotary(pairing)) =
            (self.freqs, &by.rope, self.model.spec.positions)
        {
            let first = match by.kv {
                Kv::Direct { .. } => 0,
                Kv::Latent(_) => sizes.d_head - sizes.n_rot,
            };
            for x in [q, k] {
                let rope = Rope {
                    freqs: freqs.clone(),
                    batch: self.batch.clone(),
                    x: x.clone(),
                    d_head: sizes.d_head,
                    first,
                    n_rot: sizes.n_rot,
                    pairing,
                    scale: rope.scale,
                };
                ops.push(rope.into());
            }
        }
        let Some(cache) = self.memory.kv() else { return };
        let (batch, cache) = (self.batch.clone(), cache.clone());
        let stored = cache.clone();
        ops.push(
            StoreKv { k: k.clone(), v: v.clone(), batch: batch.clone(), cache: stored }.into(),
        );
        let attention = AttentionOp {
            q: q.clone(),
            cache,
            batch,
            sinks: by.sinks.clone(),
            y: mixed.clone(),
            n_head: sizes.n_head,
            n_head_kv: sizes.n_head_kv,
            scale: sizes.scale,
            window: sizes.window,
            softcap: sizes.softcap,
        };
        ops.push(attention.into());
        if by.gated {
            let g = s.at(Role::Gate, sizes.n_q()).clone();
            let activation = GateActivation::Sigmoid;
            ops.push(Mul { g, x: mixed.clone(), activation }.into());
        }
        ops.push(matmul(&by.o, mixed, &s.y));
    }

    /// From the normed `h` to the queries and, where the output is gated, the gates.
    fn queries(&self, ops: &mut Vec<Op<T>>, by: &Attention<T>) {
        let (s, sizes) = (self.scratch, &by.sizes);
        let (n_q, d_head) = (sizes.n_q(), sizes.d_head);
        let q = s.at(Role::Query, n_q);
        // The unnormed product is written to the attention output's scratch, which is still
        // unused.
        let free = s.at(Role::Mixed, sizes.n_out());
        if !by.gated {
            self.head_product(ops, &by.q, by.q_norm.as_ref(), free, q);
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
            ops.push(self.norm(to, norm, q));
        }
    }

    /// `y = by . h`, followed by the per-head norm if there is one; `free` holds the unnormed
    /// product.
    fn head_product(
        &self,
        ops: &mut Vec<Op<T>>,
        by: &Affine<T>,
        norm: Option<&Affine<T>>,
        free: &T,
        y: &T,
    ) {
        match norm {
            Some(norm) => {
                ops.push(matmul(by, &self.scratch.h, free));
                ops.push(self.norm(free, norm, y));
            }
            None => ops.push(matmul(by, &self.scratch.h, y)),
        }
    }

    /// Keys and values through a latent vector (MLA), expanded to all heads.
    fn latent(&self, ops: &mut Vec<Op<T>>, sizes: &AttentionSizes, by: &Latent<T>) {
        let s = self.scratch;
        let [folded, normed, k_rope, expanded] =
            latent_scratch(by).map(|(role, width)| s.at(role, width));
        let (k, v) = (s.at(Role::Key, sizes.n_k()), s.at(Role::Value, sizes.n_v()));
        let AttentionSizes { n_head, n_rot, d_head, d_value, .. } = *sizes;
        let n_plain = d_head - n_rot;
        let n_each = n_plain + d_value;
        ops.push(matmul(&by.kv_a_proj, &s.h, folded));
        ops.push(self.norm(folded, &by.kv_a_norm, normed));
        ops.push(matmul(&by.k_rope, &s.h, k_rope));
        ops.push(matmul(&by.kv_b_proj, normed, expanded));
        let columns = |first, step| HeadColumns { first, step };
        let mut copy = |x: &T, from, y: &T, to, width| {
            let (x, y) = (x.clone(), y.clone());
            ops.push(CopyHeads { x, y, n_head, width, from, to }.into());
        };
        let to_key = |first| columns(first, d_head);
        copy(expanded, columns(0, n_each), k, to_key(0), n_plain);
        copy(k_rope, columns(0, 0), k, to_key(n_plain), n_rot);
        copy(expanded, columns(n_plain, n_each), v, columns(0, d_value), d_value);
    }

    /// LFM2's gated short convolution: `y = out . (c * conv(b * x))`.
    fn short_conv(&self, ops: &mut Vec<Op<T>>, by: &ShortConv<T>) {
        let (s, n) = (self.scratch, by.conv.desc().n_rows);
        let [x, gate, mixed] =
            [Role::Query, Role::Value, Role::Mixed].map(|role| s.at(role, n).clone());
        let activation = GateActivation::None;
        ops.push(matmul(&by.x, &s.h, &x));
        ops.push(matmul(&by.b, &s.h, &gate));
        ops.push(Mul { g: gate.clone(), x: x.clone(), activation }.into());
        let [state] = self.memory.states() else { return };
        ops.push(self.conv(&x, &by.conv, state, &mixed, false));
        ops.push(matmul(&by.c, &s.h, &gate));
        ops.push(Mul { g: gate, x: mixed.clone(), activation }.into());
        ops.push(matmul(&by.out, &mixed, &s.y));
    }

    fn conv(&self, x: &T, weight: &T, state: &T, y: &T, silu: bool) -> Op<T> {
        ShortConvOp {
            x: x.clone(),
            weight: weight.clone(),
            bias: None,
            batch: self.batch.clone(),
            state: state.clone(),
            y: y.clone(),
            silu,
        }
        .into()
    }

    /// A gated delta net: `y = out . (norm(delta(q, k, v)) * silu(z))`, with queries, keys and values convolved, and
    /// queries and keys of length 1.
    fn gated_delta(&self, ops: &mut Vec<Op<T>>, by: &GatedDelta<T>) {
        let (s, sizes) = (self.scratch, &by.sizes);
        let [q_state, k_state, v_state, state] = self.memory.states() else { return };
        let at = |role, n| s.at(role, n).clone();
        let (n_k, n_v, n_head) = (sizes.n_k(), sizes.n_v(), sizes.n_head_v);
        let (q, q_conv) = (at(Role::Query, n_k), at(Role::QueryConv, n_k));
        let (k, k_conv) = (at(Role::Key, n_k), at(Role::KeyConv, n_k));
        let (v, v_conv) = (at(Role::Value, n_v), at(Role::Mixed, n_v));
        let (decay, beta) = (at(Role::Decay, n_head), at(Role::Beta, n_head));
        let convolved = [
            (&by.q, &by.q_conv, q_state, &q, &q_conv),
            (&by.k, &by.k_conv, k_state, &k, &k_conv),
            (&by.v, &by.v_conv, v_state, &v, &v_conv),
        ];
        for (by, filter, state, x, y) in convolved {
            ops.push(matmul(by, &s.h, x));
            ops.push(self.conv(x, filter, state, y, true));
        }
        for (x, y) in [(&q_conv, &q), (&k_conv, &k)] {
            let norm = Norm {
                x: x.clone(),
                weight: Some(by.unit.clone()),
                bias: None,
                y: y.clone(),
                kind: NormKind::Rms,
                eps: self.model.hyper.eps / sizes.d_k as f32,
                width: sizes.d_k,
            };
            ops.push(norm.into());
        }
        ops.push(matmul(&by.alpha, &s.h, &decay));
        ops.push(matmul(&by.beta, &s.h, &beta));
        let delta = GatedDeltaOp {
            q,
            k,
            v: v_conv.clone(),
            decay,
            beta,
            dt_bias: by.dt_bias.clone(),
            a: by.a.clone(),
            batch: self.batch.clone(),
            state: state.clone(),
            y: v.clone(),
            n_head_k: sizes.n_head_k,
            n_head_v: sizes.n_head_v,
            heads: sizes.heads,
            scale: (sizes.d_k as f32).sqrt().recip(),
        };
        ops.push(delta.into());
        ops.push(self.norm(&v, &by.norm, &v_conv));
        ops.push(matmul(&by.z, &s.h, &v));
        ops.push(Mul { g: v, x: v_conv.clone(), activation: GateActivation::Silu }.into());
        ops.push(matmul(&by.out, &v_conv, &s.y));
    }
}
