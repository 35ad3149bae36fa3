//! Random matrices in every format, without searching for the scales of each block again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use hal::format::Format;
use hal::{HostRows, Result, RowStore, Source};

use crate::rng::Rng;

/// Formats that weights are stored in.
pub(crate) fn weight_formats() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| format.is_weight())
}

/// Bytes of a random matrix.
pub(crate) fn random_bytes(rng: &mut Rng, n_rows: usize, n_cols: usize, format: Format) -> Vec<u8> {
    let n_blocks = n_rows * n_cols / format.block_values();
    match pool().get(&format) {
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

/// Ready-made blocks of every quantised format: of all magnitudes, off centre, and one of zeros.
fn pool() -> &'static HashMap<Format, Vec<Vec<u8>>> {
    static POOL: OnceLock<HashMap<Format, Vec<Vec<u8>>>> = OnceLock::new();
    POOL.get_or_init(|| {
        let quantised = weight_formats().filter(|format| format.quants().is_some());
        quantised.map(|format| (format, blocks(format))).collect()
    })
}

fn blocks(format: Format) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(Rng::seed_of(format.name()));
    let block = |i: usize| {
        let (size, offset) = (0.01 + 0.4 * rng.float().abs(), 0.1 * rng.float());
        let value = |v: f32| if i == 0 { 0.0 } else { size * v + offset };
        let values: Vec<f32> = rng.floats(format.block_values()).into_iter().map(value).collect();
        let mut bytes = vec![0; format.block_bytes()];
        format.quantize(&values, &mut bytes);
        bytes
    };
    (0..61).map(block).collect()
}

/// Where the bytes of a test matrix come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Owned,
    Mapped,
    Paged,
}

/// A matrix on the host.
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
            Source::Paged(Arc::new(Store { bytes, row_bytes }))
        }
    };
    HostRows::new(source, n_rows, n_cols, format)
}

#[derive(Debug)]
struct Store {
    bytes: Vec<u8>,
    row_bytes: usize,
}

impl RowStore for Store {
    fn read(&self, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&self.bytes[rows.start * self.row_bytes..rows.end * self.row_bytes]);
        Ok(())
    }
}
