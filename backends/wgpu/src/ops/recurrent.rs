//! Recurrent layers. One invocation, or [`SHARED`] invocations of a workgroup, own each independent
//! part of the state and process the tokens in order.

use hal::op::{GatedDelta, HeadMapping, MIN_KEY_NORM, ShortConv, SsmScan, WKV7_DECAY, Wkv6, Wkv7};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use super::elementwise::{each_value, each_value_u32, plan_bindings};
use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Invocations that share a column in `gated_delta`, or a channel in `ssm_scan`.
const SHARED: usize = 8;

/// Maximum kernel size of a convolution: an invocation holds that many inputs in registers.
const MAX_KERNEL_SIZE: usize = 32;

/// Maximum number of decay factors of a head of `gated_delta`.
const MAX_FACTORS: usize = 512;

pub(super) fn plan_short_conv(op: &ShortConv<TensorDesc>, facts: &Facts) -> Plan {
    if op.weight.n_cols > MAX_KERNEL_SIZE {
        return Plan::No(format!(
            "{} weights per channel; at most {MAX_KERNEL_SIZE} are supported",
            op.weight.n_cols
        ));
    }
    plan_bindings(&[("x", &op.x), ("weight", &op.weight), ("state", &op.state)], facts)
}

fn conv_source(kernel_size: usize) -> Source {
    Source::new("short_conv").set("TAPS", kernel_size - 1)
}

pub(super) fn short_conv(op: &ShortConv<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (desc, shape) = (op.x.desc(), &op.batch.shape);
    let numbers = [
        shape.max_tokens,
        desc.n_rows,
        desc.n_cols,
        usize::from(op.bias.is_some()),
        usize::from(op.silu),
    ];
    let spans = [
        plain(&op.x)?,
        plain(&op.weight)?,
        out.plain_or_dummy(op.bias.as_ref())?,
        plain(&op.batch.words)?,
        plain(&op.state)?,
        plain(&op.y)?,
    ];
    let source = conv_source(op.weight.desc().n_cols);
    each_value(source, shape.max_seqs * desc.n_cols, &spans, &numbers, out)
}

pub(super) fn plan_gated_delta(op: &GatedDelta<TensorDesc>, facts: &Facts) -> Plan {
    // WebGPU guarantees 16 KB of memory per workgroup, which the shader's sums and products use too.
    if op.n_factors() > MAX_FACTORS {
        let n = op.n_factors();
        return Plan::No(format!(
            "{n} decay factors per head; at most {MAX_FACTORS} are supported"
        ));
    }
    let [q, v, decay, state] = [&op.q, &op.v, &op.decay, &op.state];
    plan_bindings(&[("q", q), ("v", v), ("decay", decay), ("state", state)], facts)
}

/// An invocation keeps its rows of a column in registers; if a device has too few, its compiler
/// spills them to private memory. A workgroup shares the `n_factors` decay factors of a token.
fn delta_source(d_k: usize, n_factors: usize) -> Source {
    let rows = d_k.div_ceil(SHARED);
    Source::new("gated_delta").set("SHARED", SHARED).set("ROWS", rows).set("FACTORS", n_factors)
}

pub(super) fn gated_delta(op: &GatedDelta<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let shape = &op.batch.shape;
    let q = op.q.desc();
    let [d_k, d_v] = op.head_dims();
    let [modulo, divisor] = match op.heads {
        HeadMapping::Modulo => [op.n_head_k, 1],
        HeadMapping::Grouped => [op.n_head_v, op.n_head_v / op.n_head_k],
    };
    let heads = [op.n_head_k, op.n_head_v, modulo, divisor];
    let sizes = [&[shape.max_tokens, q.n_rows], &heads[..], &[d_k, d_v]].concat();
    let mut numbers: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
    numbers.extend([op.curve.bound().to_bits(), op.scale.to_bits()]);
    let spans = [
        plain(&op.q)?,
        plain(&op.k)?,
        plain(&op.v)?,
        plain(&op.decay)?,
        plain(&op.beta)?,
        plain(&op.dt_bias)?,
        plain(&op.a)?,
        plain(&op.batch.words)?,
        plain(&op.state)?,
        plain(&op.y)?,
    ];
    let flat = out.facts().tuning.flat as usize;
    let n_workgroups = shape.max_seqs * op.n_head_v * d_v.div_ceil(flat / SHARED);
    each_value_u32(delta_source(d_k, op.n_factors()), n_workgroups * flat, &spans, &numbers, out)
}

pub(super) fn plan_ssm_scan(op: &SsmScan<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x), ("b", &op.b), ("state", &op.state)], facts)
}

fn scan_source(d_state: usize) -> Source {
    Source::new("ssm_scan").set("SHARED", SHARED).set("HELD", d_state.div_ceil(SHARED))
}

pub(super) fn ssm_scan(op: &SsmScan<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let shape = &op.batch.shape;
    let (x, n_head) = (op.x.desc(), op.dt.desc().n_cols);
    let (d_head, d_state) = (x.n_cols / n_head, op.b.desc().n_cols / op.n_group);
    let numbers = [shape.max_tokens, x.n_rows, n_head, op.n_group, d_head, d_state, op.n_rates()];
    let spans = [
        plain(&op.x)?,
        plain(&op.dt)?,
        plain(&op.dt_bias)?,
        plain(&op.a)?,
        plain(&op.b)?,
        plain(&op.c)?,
        plain(&op.d)?,
        plain(&op.batch.words)?,
        plain(&op.state)?,
        plain(&op.y)?,
    ];
    let flat = out.facts().tuning.flat as usize;
    let n_workgroups = shape.max_seqs * x.n_cols.div_ceil(flat / SHARED);
    each_value(scan_source(d_state), n_workgroups * flat, &spans, &numbers, out)
}

pub(super) fn plan_wkv6(op: &Wkv6<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("r", &op.r), ("state", &op.state)], facts)
}

/// An invocation keeps its rows of a column in registers, with factors per row.
fn wkv_source(shader: &'static str, d: usize) -> Source {
    Source::new(shader).set("SHARED", SHARED).set("ROWS", d.div_ceil(SHARED))
}

pub(super) fn wkv6(op: &Wkv6<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (shape, d) = (&op.batch.shape, op.d_head());
    let has_first = usize::from(op.first.is_some());
    let numbers = [shape.max_tokens, op.r.desc().n_rows, op.n_head, d, has_first];
    let spans = [
        plain(&op.r)?,
        plain(&op.w)?,
        plain(&op.k)?,
        plain(&op.v)?,
        out.plain_or_dummy(op.first.as_ref())?,
        plain(&op.batch.words)?,
        plain(&op.state)?,
        plain(&op.y)?,
    ];
    let flat = out.facts().tuning.flat as usize;
    let n_workgroups = shape.max_seqs * op.n_head * d.div_ceil(flat / SHARED);
    each_value(wkv_source("wkv6", d), n_workgroups * flat, &spans, &numbers, out)
}

pub(super) fn plan_wkv7(op: &Wkv7<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("r", &op.r), ("state", &op.state)], facts)
}

pub(super) fn wkv7(op: &Wkv7<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (shape, d) = (&op.batch.shape, op.d_head());
    let has_first = usize::from(op.first.is_some());
    let sizes = [shape.max_tokens, op.r.desc().n_rows, op.n_head, d, has_first];
    let mut numbers: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
    numbers.extend([WKV7_DECAY.to_bits(), MIN_KEY_NORM.to_bits()]);
    let spans = [
        plain(&op.r)?,
        plain(&op.w)?,
        plain(&op.k)?,
        plain(&op.v)?,
        plain(&op.a)?,
        out.plain_or_dummy(op.first.as_ref())?,
        out.plain_or_dummy(op.mix.as_ref())?,
        plain(&op.vectors)?,
        plain(&op.batch.words)?,
        plain(&op.state)?,
        plain(&op.y)?,
        plain(&op.bonus)?,
    ];
    let flat = out.facts().tuning.flat as usize;
    let n_workgroups = shape.max_seqs * op.n_head * d.div_ceil(flat / SHARED);
    each_value_u32(wkv_source("wkv7", d), n_workgroups * flat, &spans, &numbers, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translate::{sizes, translate};

    #[test]
    fn states_of_any_size_translate() {
        for n in [1, 64, 128, 200] {
            for [flat, _] in sizes() {
                let wkv = ["wkv6", "wkv7"].map(|shader| wkv_source(shader, n));
                let delta = [delta_source(n, 1), delta_source(n, n), scan_source(n)];
                for source in delta.into_iter().chain(wkv) {
                    for shared in [false, true] {
                        let source = source.clone().set("FLAT", flat);
                        translate(&source, shared).unwrap_or_else(|error| panic!("{n}: {error}"));
                    }
                }
            }
        }
    }

    #[test]
    fn convolutions_of_any_kernel_size_translate() {
        for kernel_size in [1, 2, 4, MAX_KERNEL_SIZE] {
            for [flat, _] in sizes() {
                let source = conv_source(kernel_size).set("FLAT", flat);
                translate(&source, false)
                    .unwrap_or_else(|error| panic!("kernel size {kernel_size}: {error}"));
            }
        }
    }
}
