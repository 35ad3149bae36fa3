//! The time mix of RWKV-6 and QRWKV as ops, and the inputs and the gate of RWKV-6's feed-forward
//! block.

use hal::op::{
    Add, AddPositions, CopyHeads, GateActivation, HeadColumns, Mul, Norm, NormKind, Op, SoftCap,
    Wkv6,
};
use hal::{Operand, TensorDesc};

use model::{GroupNorm, Mixed, Mixer, Rwkv6};

use super::layer::{LayerOps, matmul};
use super::rwkv7::HEAD_EPS;
use super::scratch::Role;

/// Scratch of a time mix, as roles and numbers of columns.
pub(super) fn scratch_of(by: &Rwkv6<TensorDesc>) -> Vec<(Role, usize)> {
    let (n, n_kv, n_embd) = (by.n_head * by.d_head, by.n_head_kv * by.d_head, by.out.w.n_rows);
    let mut all = vec![
        (Role::Difference, n_embd),
        (Role::Shifted, n_embd),
        (Role::MixedInput, n_embd),
        (Role::Step, by.w.low.w.n_rows),
        (Role::Step, by.w.by.w.n_rows),
        (Role::Query, n),
        (Role::QueryConv, n),
        (Role::Decay, n),
        (Role::Key, n_kv),
        (Role::KeyConv, n),
        (Role::Value, n_kv),
        (Role::Gate, n),
        (Role::Mixed, n),
    ];
    all.extend(by.channels.iter().map(|by| (Role::ChannelGate, by.r.by.w.n_rows)));
    all
}

impl<T: Operand> LayerOps<'_, T> {
    /// `y = out . (norm(wkv(r, w, k, v)) * gate)`.
    pub(super) fn time_mix_6(&self, ops: &mut Vec<Op<T>>, by: &Rwkv6<T>) {
        let (s, n, n_kv) = (self.scratch, by.n_head * by.d_head, by.n_head_kv * by.d_head);
        let at = |role, n| s.at(role, n).clone();
        let n_embd = by.out.w.desc().n_rows;
        let [difference, shifted] = [Role::Difference, Role::Shifted].map(|role| at(role, n_embd));
        let [difference_state, shift_state, .., state] = self.memory.states.as_slice() else {
            return;
        };
        ops.push(self.shift(&s.h, &by.difference, difference_state, &difference));
        ops.push(self.shift(&s.h, &by.shift, shift_state, &shifted));
        let low = at(Role::Step, by.w.by.w.desc().n_rows);
        self.mixed(ops, &by.w, &low);
        // A soft cap of 1 is a tanh.
        ops.push(SoftCap { x: low.clone(), cap: 1.0, hard: false }.into());
        let w = at(Role::Decay, n);
        ops.push(matmul(&by.w_out, &low, &w));
        let (r, k, v) = (at(Role::Query, n), at(Role::Key, n_kv), at(Role::Value, n_kv));
        let [free, normed] = [Role::KeyConv, Role::QueryConv].map(|role| at(role, n));
        let (gate, y) = (at(Role::Gate, n), at(Role::Mixed, n));
        for (part, out) in [(&by.r, &r), (&by.k, &k), (&by.v, &v), (&by.gate, &gate)] {
            self.mixed(ops, part, out);
        }
        let [k, v] = [(k, &free), (v, &normed)].map(|(x, to)| repeat(ops, by, x, to));
        let wkv = Wkv6 {
            r,
            w,
            k,
            v,
            first: by.first.clone(),
            batch: self.batch.clone(),
            state: state.clone(),
            y: y.clone(),
            n_head: by.n_head,
        };
        ops.push(wkv.into());
        let x = match &by.norm {
            Some(norm) => {
                self.group_norm(ops, norm, by.d_head, [&y, &normed]);
                normed
            }
            None => y,
        };
        ops.push(Mul { g: gate, x: x.clone(), activation: by.gate_activation }.into());
        if let Some(scale) = &by.scale {
            let (g, x) = (scale.clone(), x.clone());
            ops.push(Mul { g, x, activation: GateActivation::None }.into());
        }
        ops.push(matmul(&by.out, &x, &s.y));
    }

    /// `out = by . (h + share(shifted) * difference)`.
    fn mixed(&self, ops: &mut Vec<Op<T>>, part: &Mixed<T>, out: &T) {
        let s = self.scratch;
        let (n_embd, rank) = (s.h.desc().n_cols, part.low.w.desc().n_rows);
        let low = s.at(Role::Step, rank);
        let input = s.at(Role::MixedInput, n_embd);
        ops.push(matmul(&part.low, s.at(Role::Shifted, n_embd), low));
        ops.push(SoftCap { x: low.clone(), cap: 1.0, hard: false }.into());
        ops.push(matmul(&part.share, low, input));
        let (g, x) = (s.at(Role::Difference, n_embd).clone(), input.clone());
        ops.push(Mul { g, x, activation: GateActivation::None }.into());
        ops.push(Add { a: s.h.clone(), x: input.clone() }.into());
        ops.push(matmul(&part.by, input, out));
    }

    /// `y = norm(x) * weight + bias` for each head of `d_head` columns.
    fn group_norm(&self, ops: &mut Vec<Op<T>>, by: &GroupNorm<T>, d_head: usize, [x, y]: [&T; 2]) {
        let norm = Norm {
            x: x.clone(),
            weight: None,
            bias: None,
            y: y.clone(),
            kind: NormKind::Layer,
            eps: HEAD_EPS,
            width: d_head,
        };
        let (g, x, batch) = (by.weight.clone(), y.clone(), self.batch.clone());
        ops.push(norm.into());
        ops.push(Mul { g, x: x.clone(), activation: GateActivation::None }.into());
        // All positions past the only row of the table use this row.
        ops.push(AddPositions { table: by.bias.clone(), batch, x, offset: 0 }.into());
    }

    /// Computes the gate of the feed-forward block, and shifts the block's input `h`.
    pub(super) fn mix_channels(&self, ops: &mut Vec<Op<T>>) {
        let s = self.scratch;
        let Mixer::Rwkv6(by) = &self.frame.mixer else { return };
        let [.., shift, gate_shift, _] = self.memory.states.as_slice() else { return };
        let Some(channels) = &by.channels else { return };
        let width = s.h.desc().n_cols;
        let shifted = s.at(Role::Shifted, width);
        ops.push(self.shift(&s.h, &channels.r.shift, gate_shift, shifted));
        let gate = s.at(Role::ChannelGate, channels.r.by.w.desc().n_rows);
        ops.push(matmul(&channels.r.by, shifted, gate));
        self.shift_input(ops, &channels.shift, shift);
    }

    /// Multiplies the output `y` of the feed-forward block by its gate.
    pub(super) fn gate_channels(&self, ops: &mut Vec<Op<T>>) {
        let Mixer::Rwkv6(by) = &self.frame.mixer else { return };
        let Some(channels) = &by.channels else { return };
        let g = self.scratch.at(Role::ChannelGate, channels.r.by.w.desc().n_rows).clone();
        let x = self.scratch.y.clone();
        ops.push(Mul { g, x, activation: GateActivation::Sigmoid }.into());
    }
}

/// The keys or values `x` of all heads: those of fewer heads are repeated into `to`.
fn repeat<T: Operand>(ops: &mut Vec<Op<T>>, by: &Rwkv6<T>, x: T, to: &T) -> T {
    let (width, n_shared) = (by.d_head, by.n_head / by.n_head_kv);
    if n_shared == 1 {
        return x;
    }
    for i in 0..n_shared {
        let copy = CopyHeads {
            x: x.clone(),
            y: to.clone(),
            n_head: by.n_head_kv,
            width,
            from: HeadColumns { first: 0, step: width },
            to: HeadColumns { first: i * width, step: n_shared * width },
        };
        ops.push(copy.into());
    }
    to.clone()
}
