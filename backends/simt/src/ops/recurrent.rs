//! Recurrent layers. Each independent part of the state belongs to one thread, or to a few threads
//! of a block, which process the tokens in order.

use hal::op::{GatedDelta, HeadMapping, MIN_KEY_NORM, ShortConv, SsmScan, WKV7_DECAY, Wkv6, Wkv7};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Maximum kernel size of a convolution (`short_conv_32`): a thread holds that many weights and
/// inputs.
const MAX_KERNEL_SIZE: usize = 32;

/// Maximum number of rows of a head's state (`gated_delta_512`).
const MAX_D_K: usize = 512;

/// Columns of a head's state per block of `gated_delta`, `wkv6` and `wkv7`.
const DELTA_COLUMNS: usize = 32;

/// Maximum number of states per channel.
const MAX_STATES: usize = 512;
/// Number of states that a thread of `ssm_scan` can hold.
const STATES_HELD: usize = 16;

/// Maximum number of columns of a head of `wkv6`; models of RWKV-6 have 64, of QRWKV 64 or 128.
const MAX_WKV6_HEAD: usize = 128;

/// Maximum number of columns of a head of `wkv7`; all models of RWKV-7 have 64.
const MAX_WKV7_HEAD: usize = 64;

/// Threads per block of `short_conv` and `ssm_scan`.
const BLOCK: u32 = 128;

/// Refuses `n` above `max`.
fn plan_limited(n: usize, max: usize, what: &str) -> Plan {
    if n > max { Plan::No(format!("{n} {what}; at most {max} are supported")) } else { Plan::yes() }
}

pub(crate) fn plan_short_conv(op: &ShortConv<TensorDesc>, _facts: &Facts) -> Plan {
    plan_limited(op.weight.n_cols, MAX_KERNEL_SIZE, "weights per channel")
}

pub(crate) fn short_conv(op: &ShortConv<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (desc, shape, kernel_size) = (op.x.desc(), &op.batch.shape, op.weight.desc().n_cols);
    let args = [
        ptr(plain(&op.x)?),
        ptr(plain(&op.weight)?),
        ptr(out.plain_or_null(op.bias.as_ref())?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.state)?),
        ptr(plain(&op.y)?),
        word(shape.max_tokens),
        word(desc.n_rows),
        word(desc.n_cols),
        word(kernel_size),
        Arg::U32(u32::from(op.silu)),
    ];
    let kernel = if kernel_size <= 4 { "short_conv_4" } else { "short_conv_32" };
    let grid = [desc.n_cols.div_ceil(BLOCK as usize), shape.max_seqs, 1];
    out.launch(Unit::plain("short_conv"), kernel, grid, BLOCK, &args);
    Ok(())
}

pub(crate) fn plan_gated_delta(op: &GatedDelta<TensorDesc>, _facts: &Facts) -> Plan {
    plan_limited(op.head_dims()[0], MAX_D_K, "values per key head")
}

pub(crate) fn gated_delta(op: &GatedDelta<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let shape = &op.batch.shape;
    let [d_k, d_v] = op.head_dims();
    let [modulo, divisor] = match op.heads {
        HeadMapping::Modulo => [op.n_head_k, 1],
        HeadMapping::Grouped => [op.n_head_v, op.n_head_v / op.n_head_k],
    };
    let args = [
        ptr(plain(&op.q)?),
        ptr(plain(&op.k)?),
        ptr(plain(&op.v)?),
        ptr(plain(&op.decay)?),
        ptr(plain(&op.beta)?),
        ptr(plain(&op.dt_bias)?),
        ptr(plain(&op.a)?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.state)?),
        ptr(plain(&op.y)?),
        word(shape.max_tokens),
        word(op.q.desc().n_rows),
        word(op.n_head_k),
        word(op.n_head_v),
        word(modulo),
        word(divisor),
        word(d_k),
        word(d_v),
        Arg::F32(op.curve.bound()),
        Arg::F32(op.scale),
    ];
    let kernel = match (d_k, op.n_factors()) {
        (0..=64, 1) => "gated_delta_64",
        (65..=128, 1) => "gated_delta_128",
        (_, 1) => "gated_delta_512",
        (0..=64, _) => "gated_delta_rows_64",
        (65..=128, _) => "gated_delta_rows_128",
        (_, _) => "gated_delta_rows_512",
    };
    let grid = [d_v.div_ceil(DELTA_COLUMNS), op.n_head_v, shape.max_seqs];
    out.launch(Unit::plain("gated_delta"), kernel, grid, 256, &args);
    Ok(())
}

pub(crate) fn plan_ssm_scan(op: &SsmScan<TensorDesc>, _facts: &Facts) -> Plan {
    plan_limited(op.b.n_cols / op.n_group, MAX_STATES, "states per channel")
}

pub(crate) fn ssm_scan(op: &SsmScan<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let shape = &op.batch.shape;
    let (x, n_head) = (op.x.desc(), op.dt.desc().n_cols);
    let (d_head, d_state) = (x.n_cols / n_head, op.b.desc().n_cols / op.n_group);
    // Lanes that share a channel: one per four states, up to 32, to read states in parallel; more
    // lanes only if a lane would hold more than `STATES_HELD` states.
    let lanes = d_state.div_ceil(STATES_HELD).max(d_state.div_ceil(4).min(32)).next_power_of_two();
    let args = [
        ptr(plain(&op.x)?),
        ptr(plain(&op.dt)?),
        ptr(plain(&op.dt_bias)?),
        ptr(plain(&op.a)?),
        ptr(plain(&op.b)?),
        ptr(plain(&op.c)?),
        ptr(plain(&op.d)?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.state)?),
        ptr(plain(&op.y)?),
        word(shape.max_tokens),
        word(x.n_rows),
        word(n_head),
        word(op.n_group),
        word(d_head),
        word(d_state),
        word(lanes),
        word(op.n_rates()),
    ];
    let grid = [x.n_cols.div_ceil(BLOCK as usize / lanes), shape.max_seqs, 1];
    out.launch(Unit::plain("ssm_scan"), "ssm_scan", grid, BLOCK, &args);
    Ok(())
}

pub(crate) fn plan_wkv6(op: &Wkv6<TensorDesc>, _facts: &Facts) -> Plan {
    plan_limited(op.d_head(), MAX_WKV6_HEAD, "values per head")
}

pub(crate) fn wkv6(op: &Wkv6<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (shape, d) = (&op.batch.shape, op.d_head());
    let args = [
        ptr(plain(&op.r)?),
        ptr(plain(&op.w)?),
        ptr(plain(&op.k)?),
        ptr(plain(&op.v)?),
        ptr(out.plain_or_null(op.first.as_ref())?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.state)?),
        ptr(plain(&op.y)?),
        word(shape.max_tokens),
        word(op.r.desc().n_rows),
        word(op.n_head),
        word(d),
    ];
    let grid = [d.div_ceil(DELTA_COLUMNS), op.n_head, shape.max_seqs];
    out.launch(Unit::plain("wkv6"), "wkv6", grid, 256, &args);
    Ok(())
}

pub(crate) fn plan_wkv7(op: &Wkv7<TensorDesc>, _facts: &Facts) -> Plan {
    plan_limited(op.d_head(), MAX_WKV7_HEAD, "values per head")
}

pub(crate) fn wkv7(op: &Wkv7<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (shape, d) = (&op.batch.shape, op.d_head());
    let args = [
        ptr(plain(&op.r)?),
        ptr(plain(&op.w)?),
        ptr(plain(&op.k)?),
        ptr(plain(&op.v)?),
        ptr(plain(&op.a)?),
        ptr(out.plain_or_null(op.first.as_ref())?),
        ptr(out.plain_or_null(op.mix.as_ref())?),
        ptr(plain(&op.vectors)?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.state)?),
        ptr(plain(&op.y)?),
        ptr(plain(&op.bonus)?),
        word(shape.max_tokens),
        word(op.r.desc().n_rows),
        word(op.n_head),
        word(d),
        Arg::F32(WKV7_DECAY),
        Arg::F32(MIN_KEY_NORM),
    ];
    let grid = [d.div_ceil(DELTA_COLUMNS), op.n_head, shape.max_seqs];
    out.launch(Unit::plain("wkv7"), "wkv7", grid, 256, &args);
    Ok(())
}
