//! A down matrix stored with one row per neuron, without loss.
//!
//! In a file the blocks of a down matrix `[n_out, n_ff]` run along the neurons, so the weights of
//! one neuron are one value from each of `n_out` blocks. The transposed layout gives each stored
//! neuron (a *slot*) its own row of codes. The scales of the blocks stay shared: group g of the
//! neurons has one scale (and minimum) per output.
//! `value(out, neuron) = scale[g][out] * code[neuron][out] - min[g][out]` has the same bits as the
//! file's value, because nothing is rounded again.
//!
//! One buffer holds these sections, each at a multiple of 64 bytes: the rows of codes; a u32 per
//! slot with the group number of its neuron; the scale table `[n_groups, n_cols]`; and, for formats
//! with minimums, the minimum table. Float formats have rows of plain values and no tables.

use half::f16;

use super::Format;
use super::block::Code;
use super::transpose::{self, TransposedPart};

/// Outputs per tile. Rows of quantised formats are padded to whole tiles.
pub(super) const TILE: usize = 32;

/// Offsets and sizes of the sections of a transposed matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransposedLayout {
    /// The format of the matrix in the file.
    pub format: Format,
    /// Number of rows, including spare ones.
    pub n_slots: usize,
    /// Neurons of the whole matrix.
    pub n_ff: usize,
    /// Outputs: the length of a dequantised row.
    pub n_out: usize,
    /// Entries per row and per table row: `n_out`, rounded up to a multiple of 32 for quantised
    /// formats.
    pub n_cols: usize,
    /// Neurons that share a row of the tables; 0 if there are no tables.
    pub group: usize,
    /// Number of rows of each table. They cover all neurons of the matrix, whether stored or not.
    pub n_groups: usize,
    /// Bytes of one slot's codes. Slot s begins at `s * row_bytes`.
    pub row_bytes: usize,
    /// Bytes of one row of a table.
    pub table_row_bytes: usize,
    /// Offset of the slots' group numbers.
    pub groups_at: usize,
    /// Offset of the scale table.
    pub scales_at: usize,
    /// Offset of the minimum table.
    pub mins_at: usize,
    /// Bytes of the whole buffer.
    pub n_bytes: usize,
}

/// Why a matrix cannot be transposed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum TransposedError {
    #[error("{n_ff} neurons are not a whole number of {format} blocks")]
    Blocks { format: Format, n_ff: usize },
    #[error("{n_out} outputs of {n_ff} neurons do not fit in memory")]
    TooLarge { n_out: usize, n_ff: usize },
    #[error("expected a matrix of {expected} bytes, got {found}")]
    Source { expected: usize, found: usize },
    #[error("expected a transposed matrix of {expected} bytes, got {found}")]
    Target { expected: usize, found: usize },
    #[error("{found} neurons do not fit in {n_slots} slots")]
    Slots { n_slots: usize, found: usize },
    #[error("neuron {neuron} is out of order or out of range (0..{n_ff})")]
    Neuron { neuron: u32, n_ff: usize },
}

impl TransposedLayout {
    /// The layout for `n_slots` neurons out of a matrix `[n_out, n_ff]`.
    ///
    /// # Errors
    /// If `n_ff` is not a whole number of blocks, or the size overflows.
    pub fn new(
        format: Format,
        n_slots: usize,
        n_ff: usize,
        n_out: usize,
    ) -> Result<Self, TransposedError> {
        if !n_ff.is_multiple_of(format.block_values()) {
            return Err(TransposedError::Blocks { format, n_ff });
        }
        Self::try_new(format, n_slots, n_ff, n_out).ok_or(TransposedError::TooLarge { n_out, n_ff })
    }

    fn try_new(format: Format, n_slots: usize, n_ff: usize, n_out: usize) -> Option<Self> {
        let align = |n: usize| n.checked_next_multiple_of(64);
        let (n_cols, group, row_bytes, table_row_bytes, n_tables) = match format.quants() {
            None => (n_out, 0, n_out.checked_mul(format.block_bytes())?, 0, 0),
            Some(quants) => {
                let n_cols = n_out.checked_next_multiple_of(TILE)?;
                let row_bytes = match quants.code {
                    Code::Nibble { .. } => n_cols / 2,
                    Code::Byte => n_cols,
                };
                let entry = if quants.wide_scales { 4 } else { 2 };
                let n_tables = 1 + usize::from(quants.has_min);
                (n_cols, quants.group, row_bytes, n_cols.checked_mul(entry)?, n_tables)
            }
        };
        let n_groups = n_ff.checked_div(group).unwrap_or(0);
        // `pack` computes the size of the source matrix, which must not overflow.
        n_out.checked_mul(format.row_bytes(n_ff)?)?;
        let table_bytes = align(n_groups.checked_mul(table_row_bytes)?)?;
        let groups_at = align(n_slots.checked_mul(row_bytes)?)?;
        let scales_at = align(groups_at.checked_add(n_slots.checked_mul(4)?)?)?;
        let mins_at = scales_at.checked_add(table_bytes)?;
        let n_bytes = scales_at.checked_add(table_bytes.checked_mul(n_tables)?)?;
        Some(Self {
            format,
            n_slots,
            n_ff,
            n_out,
            n_cols,
            group,
            n_groups,
            row_bytes,
            table_row_bytes,
            groups_at,
            scales_at,
            mins_at,
            n_bytes,
        })
    }

    /// Transposes the rows of `neurons` out of `source`, the matrix `[n_out, n_ff]` as in the file.
    ///
    /// Slot s receives `neurons[s]`; slots without a neuron are zeroed. The tables receive the
    /// scales of all groups, so that any neuron's row can be written to any slot later.
    ///
    /// # Errors
    /// If a length does not fit, or the neurons are not ascending and below `n_ff`.
    pub fn pack(
        &self,
        source: &[u8],
        neurons: &[u32],
        out: &mut [u8],
    ) -> Result<(), TransposedError> {
        self.parts(source, neurons, out)?.into_iter().for_each(TransposedPart::pack);
        Ok(())
    }

    /// Divides [`TransposedLayout::pack`] into parts that threads may run in any order, and zeroes
    /// the bytes that belong to no part.
    ///
    /// # Errors
    /// See [`TransposedLayout::pack`].
    pub fn parts<'a>(
        &self,
        source: &'a [u8],
        neurons: &'a [u32],
        out: &'a mut [u8],
    ) -> Result<Vec<TransposedPart<'a>>, TransposedError> {
        self.check(source, neurons, out)?;
        Ok(transpose::parts(*self, source, neurons, out))
    }

    /// The codes of one neuron, [`TransposedLayout::row_bytes`] long, and its group number. Reads
    /// only the blocks that contain the neuron.
    ///
    /// # Errors
    /// See [`TransposedLayout::pack`].
    pub fn pack_one(&self, source: &[u8], neuron: u32) -> Result<(Vec<u8>, u32), TransposedError> {
        let expected = self.source_row_bytes() * self.n_out;
        if source.len() != expected {
            return Err(TransposedError::Source { expected, found: source.len() });
        }
        if neuron as usize >= self.n_ff {
            return Err(TransposedError::Neuron { neuron, n_ff: self.n_ff });
        }
        Ok(transpose::pack_row(*self, source, neuron))
    }

    fn check(&self, source: &[u8], neurons: &[u32], out: &[u8]) -> Result<(), TransposedError> {
        let n_ff = self.n_ff;
        let expected = self.source_row_bytes() * self.n_out;
        if source.len() != expected {
            return Err(TransposedError::Source { expected, found: source.len() });
        }
        if out.len() != self.n_bytes {
            return Err(TransposedError::Target { expected: self.n_bytes, found: out.len() });
        }
        if neurons.len() > self.n_slots {
            return Err(TransposedError::Slots { n_slots: self.n_slots, found: neurons.len() });
        }
        if let Some(pair) = neurons.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(TransposedError::Neuron { neuron: pair[1], n_ff });
        }
        match neurons.last() {
            Some(&neuron) if neuron as usize >= n_ff => {
                Err(TransposedError::Neuron { neuron, n_ff })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether an untrusted buffer has the length of this layout, and each slot has the group
    /// number of its neuron. All other bytes are only values and need no check.
    #[must_use]
    pub fn accepts(&self, neurons: &[u32], bytes: &[u8]) -> bool {
        if bytes.len() != self.n_bytes || neurons.len() != self.n_slots {
            return false;
        }
        let groups = bytes[self.groups_at..].as_chunks::<4>().0;
        let group = |neuron: u32| neuron.checked_div(self.group as u32).unwrap_or(0);
        neurons
            .iter()
            .zip(groups)
            .all(|(&neuron, found)| u32::from_le_bytes(*found) == group(neuron))
    }

    pub(super) fn source_row_bytes(&self) -> usize {
        self.format.row_bytes(self.n_ff).expect("`new` checked the sizes")
    }

    /// Dequantises the row of `slot` into `out` `[n_out]`.
    ///
    /// # Panics
    /// If `bytes` is not a buffer of this layout, `slot` is out of range, or `out` has another
    /// length.
    pub fn row(&self, bytes: &[u8], slot: usize, out: &mut [f32]) {
        assert_eq!((bytes.len(), out.len()), (self.n_bytes, self.n_out));
        let row = &bytes[slot * self.row_bytes..][..self.row_bytes];
        let Some(quants) = self.format.quants() else {
            return self.format.dequantize(row, out);
        };
        let at = self.groups_at + 4 * slot;
        let group = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("it has 4 bytes"));
        let entry = |table: usize, e: usize| {
            let table = &bytes[table + group as usize * self.table_row_bytes..];
            if quants.wide_scales {
                f32::from_le_bytes(table[4 * e..4 * e + 4].try_into().expect("it has 4 bytes"))
            } else {
                f16::from_le_bytes([table[2 * e], table[2 * e + 1]]).to_f32()
            }
        };
        for (e, out) in out.iter_mut().enumerate() {
            let code = match quants.code {
                Code::Byte => row[e] as i8,
                Code::Nibble { offset } => {
                    let pair = row[e / TILE * 16 + e % 16];
                    (pair >> (e % TILE / 16 * 4) & 15) as i8 - offset
                }
            };
            let min = if quants.has_min { entry(self.mins_at, e) } else { 0.0 };
            *out = entry(self.scales_at, e) * f32::from(code) - min;
        }
    }
}
