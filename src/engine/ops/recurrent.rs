//! The recurrent mixers as ops: short convolution, gated delta rule, Mamba-1, Mamba-2.

use hal::Operand;
use hal::op::{
    GateActivation, GatedDelta as GatedDeltaOp, Mul, Norm, NormKind, Op, ShortConv as ShortConvOp,
    SsmScan,
};

use model::{Affine, GatedDelta, Mamba1, Mamba2, ShortConv};

use super::layer::{LayerOps, matmul};
use super::scratch::Role;

impl<T: Operand> LayerOps<'_, T> {
    /// LFM2's gated short convolution: `y = out . (c * conv(b * x))`.
    pub(super) fn short_conv(&self, ops: &mut Vec<Op<T>>, by: &ShortConv<T>) {
        let (s, n) = (self.scratch, by.conv.desc().n_rows);
        let [x, gate, mixed] =
            [Role::Query, Role::Value, Role::Mixed].map(|role| s.at(role, n).clone());
        let activation = GateActivation::None;
        ops.push(matmul(&by.x, &s.h, &x));
        ops.push(matmul(&by.b, &s.h, &gate));
        ops.push(Mul { g: gate.clone(), x: x.clone(), activation }.into());
        let [state] = self.memory.states.as_slice() else { return };
        ops.push(self.conv(&x, &by.conv, state, &mixed, false).into());
        ops.push(matmul(&by.c, &s.h, &gate));
        ops.push(Mul { g: gate, x: mixed.clone(), activation }.into());
        ops.push(matmul(&by.out, &mixed, &s.y));
    }

    /// A short convolution without a bias.
    pub(super) fn conv(&self, x: &T, weight: &T, state: &T, y: &T, silu: bool) -> ShortConvOp<T> {
        ShortConvOp {
            x: x.clone(),
            weight: weight.clone(),
            bias: None,
            batch: self.batch.clone(),
            state: state.clone(),
            y: y.clone(),
            silu,
        }
    }

    /// A gated delta net: `y = out . (norm(delta(q, k, v)) * gate(z))`, where queries, keys and
    /// values are convolved, and queries and keys are normalised to length 1.
    pub(super) fn gated_delta(&self, ops: &mut Vec<Op<T>>, by: &GatedDelta<T>) {
        let (s, sizes) = (self.scratch, &by.sizes);
        let [q_state, k_state, v_state, state] = self.memory.states.as_slice() else { return };
        let at = |role, n| s.at(role, n).clone();
        let (n_k, n_v, n_decay) = (sizes.n_k(), sizes.n_v(), by.alpha.w.desc().n_rows);
        let (q, q_conv) = (at(Role::Query, n_k), at(Role::QueryConv, n_k));
        let (k, k_conv) = (at(Role::Key, n_k), at(Role::KeyConv, n_k));
        let (v, v_conv) = (at(Role::Value, n_v), at(Role::Mixed, n_v));
        let (decay, beta) = (at(Role::Decay, n_decay), at(Role::Beta, sizes.n_head_v));
        let convolved = [
            (&by.q, &by.q_conv, q_state, &q, &q_conv),
            (&by.k, &by.k_conv, k_state, &k, &k_conv),
            (&by.v, &by.v_conv, v_state, &v, &v_conv),
        ];
        for (by, filter, state, x, y) in convolved {
            ops.push(matmul(by, &s.h, x));
            ops.push(self.conv(x, filter, state, y, true).into());
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
        self.low_rank(ops, by.alpha_in.as_ref(), &by.alpha, &decay);
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
            curve: by.curve,
            scale: (sizes.d_k as f32).sqrt().recip(),
        };
        ops.push(delta.into());
        ops.push(self.norm(&v, &by.norm, &v_conv));
        self.low_rank(ops, by.z_in.as_ref(), &by.z, &v);
        ops.push(Mul { g: v, x: v_conv.clone(), activation: by.gate }.into());
        ops.push(matmul(&by.out, &v_conv, &s.y));
    }

    /// `y = by . h`, or `y = by . first . h` with a first matrix.
    fn low_rank(&self, ops: &mut Vec<Op<T>>, first: Option<&Affine<T>>, by: &Affine<T>, y: &T) {
        let s = self.scratch;
        let x = match first {
            Some(first) => {
                let x = s.at(Role::LowRank, first.w.desc().n_rows);
                ops.push(matmul(first, &s.h, x));
                x
            }
            None => &s.h,
        };
        ops.push(matmul(by, x, y));
    }

    /// A Mamba-1 block: `y = out . (scan(x, b, c, dt) * silu(z))`, where `x` is convolved, and `b`,
    /// `c` and `dt` are computed from it.
    pub(super) fn mamba1(&self, ops: &mut Vec<Op<T>>, by: &Mamba1<T>) {
        let (s, sizes) = (self.scratch, &by.sizes);
        let [conv_state, state] = self.memory.states.as_slice() else { return };
        let at = |role, n| s.at(role, n).clone();
        let (n_x, n_b, rank) = (sizes.d_inner, sizes.d_state, by.dt_in.w.desc().n_rows);
        let (x, x_conv) = (at(Role::Value, n_x), at(Role::Mixed, n_x));
        let dt = at(Role::Decay, sizes.n_head);
        let z = at(Role::Gate, n_x);
        ops.push(matmul(&by.x, &s.h, &x));
        ops.push(matmul(&by.z, &s.h, &z));
        let conv = self.conv(&x, &by.x_conv.w, conv_state, &x_conv, true);
        ops.push(ShortConvOp { bias: by.x_conv.bias.clone(), ..conv }.into());
        let norms = by.norms.as_ref();
        let parts = [
            (&by.dt_in, norms.map(|by| &by.dt), [Role::Step, Role::StepNormed], rank),
            (&by.b, norms.map(|by| &by.b), [Role::Key, Role::KeyConv], n_b),
            (&by.c, norms.map(|by| &by.c), [Role::Query, Role::QueryConv], n_b),
        ];
        let [dt_in, b, c] = parts.map(|(by, norm, roles, n)| {
            let [raw, normed] = roles;
            let y = at(raw, n);
            ops.push(matmul(by, &x_conv, &y));
            let Some(norm) = norm else { return y };
            let normed = at(normed, n);
            ops.push(self.norm(&y, norm, &normed));
            normed
        });
        ops.push(matmul(&Affine { w: by.dt.clone(), bias: None }, &dt_in, &dt));
        // The scan's output reuses the scratch of `x`.
        let y = x;
        let scan = SsmScan {
            x: x_conv,
            dt,
            dt_bias: by.dt_bias.clone(),
            a: by.a.clone(),
            b,
            c,
            d: by.d.clone(),
            batch: self.batch.clone(),
            state: state.clone(),
            y: y.clone(),
            n_group: 1,
        };
        ops.push(scan.into());
        ops.push(Mul { g: z, x: y.clone(), activation: GateActivation::Silu }.into());
        ops.push(matmul(&by.out, &y, &s.y));
    }

    /// A Mamba-2 block: `y = out . norm(scan(x, b, c, dt) * silu(z))`, where `x`, `b` and `c` are
    /// convolved.
    pub(super) fn mamba2(&self, ops: &mut Vec<Op<T>>, by: &Mamba2<T>) {
        let (s, sizes) = (self.scratch, &by.sizes);
        let [x_state, b_state, c_state, state] = self.memory.states.as_slice() else { return };
        let at = |role, n| s.at(role, n).clone();
        let (n_x, n_b) = (sizes.d_inner, sizes.n_b());
        let (x, x_conv) = (at(Role::Value, n_x), at(Role::Mixed, n_x));
        let (b, b_conv) = (at(Role::Key, n_b), at(Role::KeyConv, n_b));
        let (c, c_conv) = (at(Role::Query, n_b), at(Role::QueryConv, n_b));
        let dt = at(Role::Decay, sizes.n_head);
        let convolved = [
            (&by.x, &by.x_conv, x_state, &x, &x_conv),
            (&by.b, &by.b_conv, b_state, &b, &b_conv),
            (&by.c, &by.c_conv, c_state, &c, &c_conv),
        ];
        for (by, filter, state, x, y) in convolved {
            ops.push(matmul(by, &s.h, x));
            let conv = self.conv(x, &filter.w, state, y, true);
            ops.push(ShortConvOp { bias: filter.bias.clone(), ..conv }.into());
        }
        ops.push(matmul(&by.dt, &s.h, &dt));
        // The scan's output reuses the scratch of `x`; the gate reuses the scratch of `x_conv`.
        let (y, free) = (x, x_conv.clone());
        let scan = SsmScan {
            x: x_conv,
            dt,
            dt_bias: by.dt_bias.clone(),
            a: by.a.clone(),
            b: b_conv,
            c: c_conv,
            d: by.d.clone(),
            batch: self.batch.clone(),
            state: state.clone(),
            y: y.clone(),
            n_group: sizes.n_group,
        };
        ops.push(scan.into());
        ops.push(matmul(&by.z, &s.h, &free));
        ops.push(Mul { g: free.clone(), x: y.clone(), activation: GateActivation::Silu }.into());
        let Some(weight) = &by.norm else {
            ops.push(matmul(&by.out, &y, &s.y));
            return;
        };
        // `Norm` applies one weight vector to all groups. With several groups, whose weights
        // differ, a `Mul` applies the weights.
        let one_group = sizes.n_group == 1;
        let norm = Norm {
            x: y,
            weight: one_group.then(|| weight.clone()),
            bias: None,
            y: free.clone(),
            kind: NormKind::Rms,
            eps: self.model.hyper.eps,
            width: n_x / sizes.n_group,
        };
        ops.push(norm.into());
        if !one_group {
            let (g, x) = (weight.clone(), free.clone());
            ops.push(Mul { g, x, activation: GateActivation::None }.into());
        }
        ops.push(matmul(&by.out, &free, &s.y));
    }
}
