//! Norms over runs of columns.

use hal::op::{Norm, NormKind};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};
use lower::{FusedWork, WordFill};

use crate::buffer::{Span, plain};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Maximum length of a run that 32 threads share; the threads of a block share a longer run.
const SHORT_RUN: usize = 256;

pub(crate) fn plan(_op: &Norm<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

/// Whether the norm's runs are long and all operands, including `add`, are aligned for vector
/// loads. Other work can only be fused with such a norm.
pub(super) fn is_wide(op: &Norm<Tensor>, add: Option<&Tensor>) -> Result<bool> {
    let operands = [Some(&op.x), Some(&op.y), op.weight.as_ref(), op.bias.as_ref(), add];
    for operand in operands.into_iter().flatten() {
        if !plain(operand)?.at.is_multiple_of(16) {
            return Ok(false);
        }
    }
    Ok(op.width > SHORT_RUN && op.width.is_multiple_of(4))
}

/// `fused` may be non-empty only if [`is_wide`] holds.
pub(super) fn lower(
    op: &Norm<Tensor>,
    fused: &FusedWork<'_, Span>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let desc = op.x.desc();
    let n_runs = desc.n_rows * (desc.n_cols / op.width);
    let x = ptr(plain(&op.x)?);
    let affine =
        [ptr(out.plain_or_null(op.weight.as_ref())?), ptr(out.plain_or_null(op.bias.as_ref())?)];
    let y = ptr(plain(&op.y)?);
    // The codes of `norm_factor` in `kernels-cuda/norm.cu`.
    let kind = Arg::U32(match op.kind {
        NormKind::Rms => 0,
        NormKind::Layer => 1,
        NormKind::L2 => 2,
    });
    let numbers = [word(op.width), kind, Arg::F32(op.eps)];
    let unit = Unit::plain("norm");
    let threads = (op.width / 4).next_multiple_of(64).min(256) as u32;
    if is_wide(op, fused.add)? {
        let none = WordFill { span: Span::NONE, n: 0, n_zero: 0, word: 0 };
        let clear = fused.clear.unwrap_or(none);
        let mut args = vec![x, ptr(out.plain_or_null(fused.add)?)];
        args.extend(affine);
        args.extend([y, ptr(fused.quantized.unwrap_or(Span::NONE)), ptr(clear.span)]);
        args.extend([word(clear.n), Arg::U32(clear.word), word(clear.n_zero)]);
        args.extend(numbers);
        let prefetch = out.prefetch(n_runs, threads);
        args.push(word(n_runs));
        args.extend(prefetch.args);
        out.launch(unit, "norm_wide", [n_runs + prefetch.n_blocks, 1, 1], threads, &args);
    } else if op.width <= SHORT_RUN {
        let args = [&[x], &affine[..], &[y, word(n_runs)], &numbers].concat();
        out.launch(unit, "norm_near", [n_runs.div_ceil(8), 1, 1], 256, &args);
    } else {
        let args = [&[x], &affine[..], &[y], &numbers].concat();
        out.launch(unit, "norm_rows", [n_runs, 1, 1], threads, &args);
    }
    Ok(())
}
