//! Ops on rows: embedding, output selection, norms, sums, gates, soft caps, copies of heads.

use hal::op::{
    Add, AddPositions, CopyHeads, Gather, GetRows, Mul, Norm, NormKind, ScaleByPosition, SoftCap,
};
use hal::{Operand, Tensor};

use super::Memory;
use super::activation::gate;
use super::operands::{Step, optional_floats, row, write_row};

pub(super) fn get_rows(op: &GetRows<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    for t in 0..step.n_tokens(op.y.desc().n_rows) {
        let mut values = row(memory, &op.table, step.view().ids()[t] as usize);
        values.iter_mut().for_each(|v| *v *= op.scale);
        write_row(memory, &op.y, t, &values);
    }
}

pub(super) fn gather(op: &Gather<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    for i in 0..step.view().n_out().min(op.y.desc().n_rows) {
        let values = row(memory, &op.x, step.view().outputs()[i] as usize);
        write_row(memory, &op.y, i, &values);
    }
}

pub(super) fn norm(op: &Norm<Tensor>, memory: &dyn Memory) {
    let weight = optional_floats(memory, op.weight.as_ref());
    let bias = optional_floats(memory, op.bias.as_ref());
    for t in 0..op.x.desc().n_rows {
        let mut values = row(memory, &op.x, t);
        for run in values.chunks_exact_mut(op.width) {
            let n = op.width as f64;
            let mean = match op.kind {
                NormKind::Rms | NormKind::L2 => 0.0,
                NormKind::Layer => run.iter().map(|&v| f64::from(v)).sum::<f64>() / n,
            };
            let square = run.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>();
            let root = match op.kind {
                NormKind::Rms | NormKind::Layer => (square / n + f64::from(op.eps)).sqrt(),
                NormKind::L2 => square.sqrt().max(f64::from(op.eps)),
            };
            for (i, v) in run.iter_mut().enumerate() {
                let factor = weight.as_ref().map_or(1.0, |w| f64::from(w[i]));
                let offset = bias.as_ref().map_or(0.0, |b| f64::from(b[i]));
                *v = ((f64::from(*v) - mean) / root * factor + offset) as f32;
            }
        }
        write_row(memory, &op.y, t, &values);
    }
}

pub(super) fn add(op: &Add<Tensor>, memory: &dyn Memory) {
    for t in 0..op.x.desc().n_rows {
        let mut values = row(memory, &op.x, t);
        for (v, a) in values.iter_mut().zip(row(memory, &op.a, t)) {
            *v += a;
        }
        write_row(memory, &op.x, t, &values);
    }
}

pub(super) fn mul(op: &Mul<Tensor>, memory: &dyn Memory) {
    let g = op.g.desc();
    for t in 0..op.x.desc().n_rows {
        let gates = row(memory, &op.g, t.min(g.n_rows - 1));
        let mut values = row(memory, &op.x, t);
        let per_gate = values.len() / gates.len();
        for (run, g) in values.chunks_exact_mut(per_gate).zip(gates) {
            let factor = gate(op.activation, f64::from(g));
            run.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
        }
        write_row(memory, &op.x, t, &values);
    }
}

pub(super) fn add_positions(op: &AddPositions<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    let last = op.table.desc().n_rows - 1;
    for t in 0..step.n_tokens(op.x.desc().n_rows) {
        let pos = step.view().positions()[t] as usize;
        let mut values = row(memory, &op.x, t);
        for (v, a) in values.iter_mut().zip(row(memory, &op.table, last.min(op.offset + pos))) {
            *v += a;
        }
        write_row(memory, &op.x, t, &values);
    }
}

pub(super) fn scale_by_position(op: &ScaleByPosition<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    for t in 0..step.n_tokens(op.x.desc().n_rows) {
        let n = (step.view().positions()[t] + op.offset) / op.length;
        let scale = 1.0 + f64::from(op.factor) * f64::from(n).ln_1p();
        let mut values = row(memory, &op.x, t);
        values.iter_mut().for_each(|v| *v = (f64::from(*v) * scale) as f32);
        write_row(memory, &op.x, t, &values);
    }
}

pub(super) fn soft_cap(op: &SoftCap<Tensor>, memory: &dyn Memory) {
    let cap = f64::from(op.cap);
    for t in 0..op.x.desc().n_rows {
        let mut values = row(memory, &op.x, t);
        let capped = |v: f32| {
            if op.hard {
                v.clamp(-op.cap, op.cap)
            } else {
                (cap * (f64::from(v) / cap).tanh()) as f32
            }
        };
        values.iter_mut().for_each(|v| *v = capped(*v));
        write_row(memory, &op.x, t, &values);
    }
}

pub(super) fn copy_heads(op: &CopyHeads<Tensor>, memory: &dyn Memory) {
    for t in 0..op.y.desc().n_rows {
        let (x, mut y) = (row(memory, &op.x, t), row(memory, &op.y, t));
        for h in 0..op.n_head {
            for i in 0..op.width {
                let [from, to] = [op.from, op.to].map(|at| at.first + h * at.step + i);
                y[to] = x[from];
            }
        }
        write_row(memory, &op.y, t, &y);
    }
}
