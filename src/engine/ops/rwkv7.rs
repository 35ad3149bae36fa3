//! The time mix of RWKV-7 as ops, and the token shift of its feed-forward block.

use hal::op::{
    Add, CopyHeads, GateActivation, HeadColumns, Mul, Norm, NormKind, Op, ShortConv, SoftCap, Wkv7,
};
use hal::{Operand, TensorDesc};

use model::{Gate, Mixer, Rwkv7};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;

/// Epsilon of the norm of a head's output.
pub(super) const HEAD_EPS: f32 = 64e-5;

/// Scratch of a time mix, as roles and numbers of columns.
pub(super) fn scratch_of(by: &Rwkv7<TensorDesc>) -> Vec<(Role, usize)> {
    let (n, n_embd) = (by.n_head * by.d_head, by.out.w.n_rows);
    let mut all = vec![
        (Role::Shifted, n_embd),
        (Role::Query, n),
        (Role::QueryConv, n),
        (Role::Decay, n),
        (Role::Key, n),
        (Role::KeyConv, n),
        (Role::Value, n),
        (Role::FirstValue, n),
        (Role::Beta, n),
        (Role::Gate, n),
        (Role::Mixed, n),
        (Role::Step, by.w.by.w.n_rows),
        (Role::Step, by.a.by.w.n_rows),
    ];
    all.extend(by.mix.iter().map(|[v1, _]| (Role::Step, v1.w.n_rows)));
    let gate = by.gate.iter().map(|gate| gate.input.by.w.n_rows);
    all.extend(gate.flat_map(|rank| [(Role::Step, rank), (Role::StepNormed, rank)]));
    all
}

impl<T: Operand> LayerOps<'_, T> {
    /// `y = out . ((norm(wkv(r, w, k, v, a)) + bonus) * gate)`.
    pub(super) fn time_mix_7(&self, ops: &mut Vec<Op<T>>, by: &Rwkv7<T>) {
        let (s, n) = (self.scratch, by.n_head * by.d_head);
        let at = |role, n| s.at(role, n).clone();
        let [r, w, k, a] =
            [Role::Query, Role::Decay, Role::Key, Role::Gate].map(|role| at(role, n));
        let shifted = at(Role::Shifted, by.out.w.desc().n_rows);
        let mut states = self.memory.states.iter();
        let mut shift = |ops: &mut Vec<Op<T>>, weight: &T| {
            let Some(state) = states.next() else { return };
            ops.push(self.shift(&s.h, weight, state, &shifted));
        };
        let step = |by: &model::Affine<T>| at(Role::Step, by.w.desc().n_rows);
        shift(ops, &by.r.shift);
        ops.push(matmul(&by.r.by, &shifted, &r));
        shift(ops, &by.w.shift);
        let decay = step(&by.w.by);
        ops.push(matmul(&by.w.by, &shifted, &decay));
        // A soft cap of 1 is a tanh.
        ops.push(SoftCap { x: decay.clone(), cap: 1.0, hard: false }.into());
        ops.push(matmul(&by.w_out, &decay, &w));
        shift(ops, &by.k.shift);
        ops.push(matmul(&by.k.by, &shifted, &k));
        shift(ops, &by.v.shift);
        let first = at(Role::FirstValue, n);
        let (v, mix) = match &by.mix {
            None => (first.clone(), None),
            Some([v1, v2]) => {
                let (low, mix) = (step(v1), at(Role::Beta, n));
                ops.push(matmul(v1, &shifted, &low));
                ops.push(matmul(v2, &low, &mix));
                (at(Role::Value, n), Some(mix))
            }
        };
        ops.push(matmul(&by.v.by, &shifted, &v));
        shift(ops, &by.a.shift);
        let rate = step(&by.a.by);
        ops.push(matmul(&by.a.by, &shifted, &rate));
        ops.push(matmul(&by.a_out, &rate, &a));
        let gate = by.gate.as_ref().map(|gate| {
            shift(ops, &gate.input.shift);
            let low = step(&gate.input.by);
            ops.push(matmul(&gate.input.by, &shifted, &low));
            (gate, low)
        });
        let Some(state) = self.memory.states.last() else { return };
        let [y, bonus, normed] =
            [Role::Mixed, Role::KeyConv, Role::QueryConv].map(|role| at(role, n));
        let wkv = Wkv7 {
            r: r.clone(),
            w,
            k,
            v,
            a,
            first: mix.is_some().then_some(first),
            mix,
            vectors: by.vectors.clone(),
            batch: self.batch.clone(),
            state: state.clone(),
            y: y.clone(),
            bonus: bonus.clone(),
            n_head: by.n_head,
        };
        ops.push(wkv.into());
        let norm = Norm {
            x: y,
            weight: None,
            bias: None,
            y: normed.clone(),
            kind: NormKind::Layer,
            eps: HEAD_EPS,
            width: by.d_head,
        };
        ops.push(norm.into());
        let (g, x, activation) = (by.norm.clone(), normed.clone(), GateActivation::None);
        ops.push(Mul { g, x, activation }.into());
        ops.push(Add { a: bonus, x: normed.clone() }.into());
        if let Some((gate, low)) = gate {
            // The receptance is no longer used.
            self.gate(ops, gate, &low, [&r, &normed]);
        }
        ops.push(matmul(&by.out, &normed, &s.y));
    }

    /// `x *= gate.out . sigmoid(low)`; `free` holds the product.
    fn gate(&self, ops: &mut Vec<Op<T>>, gate: &Gate<T>, low: &T, [free, x]: [&T; 2]) {
        let width = low.desc().n_cols;
        let sigmoid = self.scratch.at(Role::StepNormed, width);
        let ones = Norm {
            x: low.clone(),
            weight: Some(gate.zeros.clone()),
            bias: Some(gate.ones.clone()),
            y: sigmoid.clone(),
            kind: NormKind::Rms,
            eps: 1.0,
            width,
        };
        ops.push(ones.into());
        let activation = GateActivation::Sigmoid;
        ops.push(Mul { g: low.clone(), x: sigmoid.clone(), activation }.into());
        ops.push(matmul(&gate.out, sigmoid, free));
        let (g, x) = (free.clone(), x.clone());
        ops.push(Mul { g, x, activation: GateActivation::None }.into());
    }

    /// Shifts the input `h` of the feed-forward block.
    pub(super) fn shift_channels(&self, ops: &mut Vec<Op<T>>) {
        let Mixer::Rwkv7(by) = &self.frame.mixer else { return };
        let [.., state, _] = self.memory.states.as_slice() else { return };
        self.shift_input(ops, &by.channel_shift, state);
    }

    /// Shifts `h` in place.
    pub(super) fn shift_input(&self, ops: &mut Vec<Op<T>>, weight: &T, state: &T) {
        let s = self.scratch;
        let width = s.h.desc().n_cols;
        let shifted = s.at(Role::Shifted, width);
        ops.push(self.shift(&s.h, weight, state, shifted));
        let columns = HeadColumns { first: 0, step: width };
        let (x, y) = (shifted.clone(), s.h.clone());
        ops.push(CopyHeads { x, y, n_head: 1, width, from: columns, to: columns }.into());
    }

    /// A token shift as a convolution over two tokens.
    pub(super) fn shift(&self, x: &T, weight: &T, state: &T, y: &T) -> Op<T> {
        ShortConv {
            x: x.clone(),
            weight: weight.clone(),
            bias: None,
            batch: self.batch.clone(),
            state: state.clone(),
            y: y.clone(),
            silu: false,
        }
        .into()
    }
}
