//! Random matrices in every format, made of precomputed blocks because quantising is slow.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use hal::format::Format;
use hal::{HostRows, Result, RowStore, Source};

use crate::rng::Rng;

/// All formats that a weight may have.
pub(crate) fn weight_formats() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| format.is_weight())
}

pub(crate) fn random_bytes(rng: &mut Rng, n_rows: usize, n_cols: usize, format: Format) -> Vec<u8> {
    let n_blocks = n_rows * n_cols / format.block_values();
    match block_pool().get(&format) {
        Some(blocks) => {
            (0..n_blocks).flat_map(|_| &blocks[rng.below(blocks.len())]).copied().collect()
        }
        None => {
            let values: Vec<f32> = rng.floats(n_blocks).iter().map(|v| v / 4.0).collect();
            let mut bytes = vec![0; n_blocks * format.block_bytes()];
            format.quantize(&values, &mut bytes);
            bytes
        }
    }
}

/// Precomputed blocks of every quantised format. The first block is all zeros; the others differ in
/// magnitude and offset.
fn block_pool() -> &'static HashMap<Format, Vec<Vec<u8>>> {
    static BLOCKS: OnceLock<HashMap<Format, Vec<Vec<u8>>>> = OnceLock::new();
    BLOCKS.get_or_init(|| {
        let quantised = weight_formats().filter(|format| format.quants().is_some());
        quantised.map(|format| (format, blocks(format))).collect()
    })
}

fn blocks(format: Format) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(Rng::seed_of(format.name()));
    let block = |i: usize| {
        if format.quantizes() {
            quantised_block(&mut rng, format, i == 0)
        } else if i == 0 {
            vec![0; format.block_bytes()]
        } else {
            random_block(&mut rng, format)
        }
    };
    (0..61).map(block).collect()
}

fn quantised_block(rng: &mut Rng, format: Format, zeros: bool) -> Vec<u8> {
    let (size, offset) = (0.01 + 0.4 * rng.float().abs(), 0.1 * rng.float());
    let value = |v: f32| if zeros { 0.0 } else { size * v + offset };
    let values: Vec<f32> = rng.floats(format.block_values()).into_iter().map(value).collect();
    let mut bytes = vec![0; format.block_bytes()];
    format.quantize(&values, &mut bytes);
    bytes
}

/// Draws random bytes until their values have about the magnitude of [`quantised_block`]'s values.
/// All bit patterns with such values are equally likely.
fn random_block(rng: &mut Rng, format: Format) -> Vec<u8> {
    let mut values = vec![0.0; format.block_values()];
    loop {
        let bytes: Vec<u8> = (0..format.block_bytes()).map(|_| rng.word() as u8).collect();
        format.dequantize(&bytes, &mut values);
        let largest = values.iter().map(|v| v.abs()).fold(0.0, f32::max);
        if values.iter().all(|v| v.is_finite()) && (0.01..0.5).contains(&largest) {
            return bytes;
        }
    }
}

/// Random weights of ordinary magnitude in `format`, for tests and measurements of formats without
/// a quantiser ([`Format::quantizes`]).
///
/// # Panics
/// If `n_values` is not a whole number of blocks.
#[must_use]
pub fn random_weights(format: Format, n_values: usize, seed: u64) -> Vec<u8> {
    assert!(
        format.row_bytes(n_values).is_some(),
        "{n_values} values are not whole blocks of {format}"
    );
    random_bytes(&mut Rng::new(seed), 1, n_values, format)
}

/// Where the bytes of a test matrix come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Owned,
    Mapped,
    Paged,
}

pub(crate) fn host_rows(
    bytes: Vec<u8>,
    n_rows: usize,
    n_cols: usize,
    format: Format,
    origin: Origin,
) -> Result<HostRows> {
    let source = match origin {
        Origin::Owned => Source::Owned(Arc::new(bytes)),
        Origin::Mapped => Source::Mapped(Arc::new(bytes)),
        Origin::Paged => {
            let row_bytes = format.row_bytes(n_cols).unwrap_or_default();
            Source::Paged(Arc::new(PagedRows { bytes, row_bytes }))
        }
    };
    HostRows::new(source, n_rows, n_cols, format)
}

#[derive(Debug)]
struct PagedRows {
    bytes: Vec<u8>,
    row_bytes: usize,
}

impl RowStore for PagedRows {
    fn read(&self, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&self.bytes[rows.start * self.row_bytes..rows.end * self.row_bytes]);
        Ok(())
    }
}
