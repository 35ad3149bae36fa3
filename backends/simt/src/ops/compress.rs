//! Compressed keys of blocks of positions.

use hal::op::CompressKeys;
use hal::{Operand, Plan, Result, Tensor, TensorDesc};
use lower::RopePairs;

use super::attention::row_words;
use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::{Unit, cache_format};

/// Threads per block of both kernels.
const THREADS: u32 = 128;

/// Maximum number of values of a key (`MOST` in `compress_keys.cu`).
const MAX_VALUES: usize = 1024;

pub(crate) fn plan(op: &CompressKeys<TensorDesc>, _facts: &Facts) -> Plan {
    match op.norm.n_cols {
        n if n > MAX_VALUES => {
            Plan::No(format!("{n} values per key; at most {MAX_VALUES} are supported"))
        }
        _ => Plan::yes(),
    }
}

pub(crate) fn lower(op: &CompressKeys<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (values, keys, shape) = (op.values.desc(), op.cache.k.desc(), &op.batch.shape);
    let pairs = RopePairs::new(op.pairing, op.freqs.desc().n_cols);
    let args = [
        ptr(plain(&op.values)?),
        ptr(plain(&op.gates)?),
        ptr(plain(&op.ape)?),
        ptr(plain(&op.norm)?),
        ptr(plain(&op.freqs)?),
        ptr(plain(&op.state)?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.cache.k)?),
        word(shape.max_tokens),
        word(values.n_rows),
        word(values.n_cols),
        word(keys.n_cols),
        word(op.ratio),
        word(op.n_positions()),
        word(pairs.n),
        word(pairs.step),
        word(pairs.distance),
        word(row_words(&keys)),
        Arg::F32(op.eps),
        Arg::U32(cache_format(keys.format)),
    ];
    let unit = Unit::cache("compress_keys", keys.format, keys.format);
    out.launch(unit, "compress_keys", [values.n_rows, 1, 1], THREADS, &args);
    let args = [
        ptr(plain(&op.values)?),
        ptr(plain(&op.gates)?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.state)?),
        word(shape.max_tokens),
        word(values.n_rows),
        word(values.n_cols),
        word(op.n_positions()),
    ];
    let grid = [values.n_cols.div_ceil(THREADS as usize), shape.max_seqs, 1];
    out.launch(Unit::plain("compress_state"), "compress_state", grid, THREADS, &args);
    Ok(())
}
