//! Synthetic weights, for which the input determines the active neurons.

use std::sync::Arc;

use hal::format::Format;
use hal::{Device, HostRows, PackDesc, Source, Tensor};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::{Result, Shape};

/// Number of distinct rows of random weights; the other rows are copies.
const N_DISTINCT: usize = 16;

/// Gate, up and down: columns of one matrix on devices that support columns, otherwise three
/// matrices.
pub(crate) fn bundle(device: &Device, shape: Shape, parts: [&HostRows; 3]) -> Result<[Tensor; 3]> {
    let Shape { n_embd, n_ff } = shape;
    if !device.supports_column_views() {
        let whole = |rows: &HostRows| device.import("part", &PackDesc::whole(rows.desc()), rows);
        let [gate, up, down] = parts.map(whole);
        return Ok([gate?, up?, down?]);
    }
    let mut bytes = Vec::new();
    for row in 0..n_ff {
        for part in parts {
            bytes.extend_from_slice(&part.rows(row..row + 1)?);
        }
    }
    let wide = rows(bytes, n_ff, 3 * n_embd, parts[0].desc().format)?;
    let wide = device.import("bundle", &PackDesc::whole(wide.desc()), &wide)?;
    Ok([0, 1, 2].map(|i| wide.columns(i * n_embd..(i + 1) * n_embd)))
}

pub(crate) fn rows(
    bytes: Vec<u8>,
    n_rows: usize,
    n_cols: usize,
    format: Format,
) -> Result<HostRows> {
    Ok(HostRows::new(Source::Owned(Arc::new(bytes)), n_rows, n_cols, format)?)
}

/// Rows of `n_cols` values; each pair of `values` fills the first and the second half of a row.
/// Formats without a quantiser get random rows.
pub(crate) fn halves(
    format: Format,
    n_cols: usize,
    values: impl Iterator<Item = (f32, f32)>,
) -> Result<HostRows> {
    if !format.quantizes() {
        let n_rows = values.count();
        let distinct = conformance::random_weights(format, N_DISTINCT * n_cols, 1);
        return rows(distinct.repeat(n_rows / N_DISTINCT), n_rows, n_cols, format);
    }
    let block = |value: f32| {
        let mut bytes = vec![0; format.block_bytes()];
        format.quantize(&vec![value; format.block_values()], &mut bytes);
        bytes
    };
    let (n_blocks, mut n_rows) = (n_cols / format.block_values(), 0);
    let mut bytes = Vec::new();
    for (first, second) in values {
        bytes.extend(block(first).repeat(n_blocks / 2));
        bytes.extend(block(second).repeat(n_blocks - n_blocks / 2));
        n_rows += 1;
    }
    rows(bytes, n_rows, n_cols, format)
}

/// [`N_DISTINCT`] random rows, repeated to `n_rows` rows.
pub(crate) fn random(
    format: Format,
    n_rows: usize,
    n_cols: usize,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<u8>> {
    if !format.quantizes() {
        let distinct = conformance::random_weights(format, N_DISTINCT * n_cols, rng.random());
        return Ok(distinct.repeat(n_rows / N_DISTINCT));
    }
    let values: Vec<f32> =
        (0..N_DISTINCT * n_cols).map(|_| rng.random_range(-0.02..0.02)).collect();
    let mut bytes =
        vec![0; N_DISTINCT * format.row_bytes(n_cols).ok_or("rows must be whole blocks")?];
    format.quantize(&values, &mut bytes);
    Ok(bytes.repeat(n_rows / N_DISTINCT))
}
