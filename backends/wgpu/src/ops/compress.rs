//! Compressed keys of blocks of positions.

use hal::format::Format;
use hal::op::CompressKeys;
use hal::{KV_BLOCK, Operand, Plan, Result, Tensor, TensorDesc};
use lower::RopePairs;

use super::cache::{refusal, row_words, store_source, values_per_store};
use super::elementwise::each_value;
use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Maximum number of values of a key (`k_x` in `compress_keys.wgsl`).
const MAX_VALUES: usize = 1024;

pub(super) fn plan(op: &CompressKeys<TensorDesc>, facts: &Facts) -> Plan {
    if op.norm.n_cols > MAX_VALUES {
        let n = op.norm.n_cols;
        return Plan::No(format!("{n} values per key; at most {MAX_VALUES} are supported"));
    }
    let operands = [("values", &op.values), ("gates", &op.gates), ("state", &op.state)];
    refusal(&operands, &op.cache, facts).map_or_else(Plan::yes, Plan::No)
}

pub(super) fn lower(op: &CompressKeys<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (values, keys, shape) = (op.values.desc(), op.cache.k.desc(), &op.batch.shape);
    let pairs = RopePairs::new(op.pairing, op.freqs.desc().n_cols);
    let sizes = [
        shape.max_tokens,
        values.n_rows,
        values.n_cols,
        keys.n_cols,
        op.ratio,
        op.n_positions(),
        pairs.n,
        pairs.step,
        pairs.distance,
        keys.n_cols.div_ceil(values_per_store(keys.format)),
        row_words(&keys),
        op.ratio.min(KV_BLOCK),
    ];
    let mut numbers: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
    numbers.push(op.eps.to_bits());
    let [x, gates, batch] = [plain(&op.values)?, plain(&op.gates)?, plain(&op.batch.words)?];
    let bound = [
        x.clone(),
        gates.clone(),
        plain(&op.ape)?,
        plain(&op.norm)?,
        plain(&op.freqs)?,
        plain(&op.state)?,
        batch.clone(),
        plain(&op.cache.k)?,
    ];
    let source = key_source(keys.format).set("ROW", out.facts().tuning.row);
    let grid = out.facts().grid(values.n_rows);
    out.dispatch(&source, &bound, &numbers, grid)?;
    let bound = [x, gates, batch, plain(&op.state)?];
    let numbers = [shape.max_tokens, values.n_rows, values.n_cols, op.n_positions()];
    let n = values.n_cols * shape.max_seqs;
    each_value(Source::new("compress_state"), n, &bound, &numbers, out)
}

/// The shader that stores keys in a format.
fn key_source(format: Format) -> Source {
    store_source(Source::new("compress_keys"), "k", format)
}

#[cfg(test)]
mod tests {
    use hal::op::KV_FORMATS;

    use super::*;
    use crate::translate::{sizes, translate};

    #[test]
    fn shaders_of_every_cache_translate() {
        for [_, row] in sizes() {
            for &format in KV_FORMATS {
                let source = key_source(format).set("ROW", row);
                translate(&source, false).unwrap_or_else(|error| panic!("{format}: {error}"));
            }
        }
    }
}
