//! Builds a [`TransposedLayout`]: one row of codes per neuron, and tables of scales.
//!
//! The work is cut into runs of neurons. A run reads a short range of each row of the file and
//! writes whole rows of the result, so that no two runs write to the same memory. It unpacks the
//! codes of 32 outputs at a time and transposes them in squares of 16 by 16 bytes, so that
//! source and result stay in the L1 cache.

use std::ops::Range;

use half::f16;

use super::block::{Code, Quants, UnpackedBlock};
use super::transposed::{TILE, TransposedLayout};

/// Neurons per run: a whole number of blocks in every format.
const RUN: usize = 256;
/// Bytes per row of the squares that are transposed.
const SQUARE: usize = 16;

/// One run of neurons of a matrix that is being transposed.
#[derive(Debug)]
pub struct TransposedPart<'a> {
    layout: TransposedLayout,
    source: &'a [u8],
    /// Neurons of this run in the file, whether they are stored or not.
    run: Range<usize>,
    /// The neurons of this run that are stored, ascending.
    neurons: &'a [u32],
    /// Rows of codes or values of the stored neurons.
    rows: &'a mut [u8],
    /// Group numbers of the stored neurons.
    groups: &'a mut [u8],
    scales: &'a mut [u8],
    mins: &'a mut [u8],
}

/// Divides a transposition into runs and zeroes the bytes that belong to no run. The caller has
/// checked all lengths.
pub(super) fn parts<'a>(
    layout: TransposedLayout,
    source: &'a [u8],
    neurons: &'a [u32],
    out: &'a mut [u8],
) -> Vec<TransposedPart<'a>> {
    let (rows, rest) = out.split_at_mut(layout.groups_at);
    let (groups, rest) = rest.split_at_mut(layout.scales_at - layout.groups_at);
    let (scales, mins) = rest.split_at_mut(layout.mins_at - layout.scales_at);
    let (mut rows, mut groups, mut scales, mut mins) = (rows, groups, scales, mins);
    let mut parts = Vec::with_capacity(layout.n_ff.div_ceil(RUN));
    let mut left = neurons;
    for first in (0..layout.n_ff).step_by(RUN) {
        let run = first..(first + RUN).min(layout.n_ff);
        let n_slots = left.partition_point(|&neuron| (neuron as usize) < run.end);
        let (neurons, after) = left.split_at(n_slots);
        left = after;
        let n_groups = run.len().checked_div(layout.group).unwrap_or(0);
        let table = n_groups * layout.table_row_bytes;
        let with_mins = layout.format.quants().is_some_and(|quants| quants.has_min);
        parts.push(TransposedPart {
            layout,
            source,
            run,
            neurons,
            rows: split_off(&mut rows, n_slots * layout.row_bytes),
            groups: split_off(&mut groups, n_slots * 4),
            scales: split_off(&mut scales, table),
            mins: split_off(&mut mins, if with_mins { table } else { 0 }),
        });
    }
    for padding in [rows, groups, scales, mins] {
        padding.fill(0);
    }
    parts
}

/// The row and the group number of one neuron.
pub(super) fn pack_row(layout: TransposedLayout, source: &[u8], neuron: u32) -> (Vec<u8>, u32) {
    let n_values = layout.format.block_values();
    let first = neuron as usize / n_values * n_values;
    let n_groups = n_values.checked_div(layout.group).unwrap_or(0);
    let (mut rows, mut groups) = (vec![0; layout.row_bytes], [0; 4]);
    let mut tables = vec![0; 2 * n_groups * layout.table_row_bytes];
    let (scales, mins) = tables.split_at_mut(n_groups * layout.table_row_bytes);
    let neurons = &[neuron];
    let (run, row) = (first..first + n_values, &mut rows);
    TransposedPart { layout, source, run, neurons, rows: row, groups: &mut groups, scales, mins }
        .pack();
    (rows, u32::from_le_bytes(groups))
}

fn split_off<'a>(bytes: &mut &'a mut [u8], len: usize) -> &'a mut [u8] {
    let (first, rest) = std::mem::take(bytes).split_at_mut(len);
    *bytes = rest;
    first
}

impl TransposedPart<'_> {
    /// Transposes this run.
    pub fn pack(mut self) {
        match (self.layout.format.quants(), self.layout.format.block_bytes()) {
            (Some(quants), _) => self.pack_quants(quants),
            (None, 2) => self.pack_plain::<2>(),
            (None, _) => self.pack_plain::<4>(),
        }
    }

    /// Transposes squares of 64 by 64 values, so that the rows read and the rows written stay in
    /// the L1 cache.
    fn pack_plain<const SIZE: usize>(&mut self) {
        self.groups.fill(0);
        let TransposedLayout { n_out, n_ff, .. } = self.layout;
        let source = self.source.as_chunks::<SIZE>().0;
        let out = self.rows.as_chunks_mut::<SIZE>().0;
        for first in (0..n_out).step_by(64) {
            let end = (first + 64).min(n_out);
            for (part, neurons) in self.neurons.chunks(64).enumerate() {
                for (i, &neuron) in neurons.iter().enumerate() {
                    let column = source[first * n_ff + neuron as usize..].iter();
                    let row = &mut out[(64 * part + i) * n_out..][first..end];
                    for (to, from) in row.iter_mut().zip(column.step_by(n_ff)) {
                        *to = *from;
                    }
                }
            }
        }
    }

    fn pack_quants(&mut self, quants: &Quants) {
        for (group, &neuron) in self.groups.chunks_exact_mut(4).zip(self.neurons) {
            group.copy_from_slice(&(neuron / quants.group as u32).to_le_bytes());
        }
        let layout = self.layout;
        let (n_values, block_bytes) = (layout.format.block_values(), layout.format.block_bytes());
        let row_bytes = layout.source_row_bytes();
        // Bytes of a neuron's row that hold one tile of outputs.
        let width = match quants.code {
            Code::Nibble { .. } => TILE / 2,
            Code::Byte => TILE,
        };
        let mut tile = vec![0i8; TILE * n_values];
        let mut transposed = vec![0u8; n_values * width];
        let mut tables = Tables::default();
        let mut unpacked = UnpackedBlock::default();
        for first in (0..layout.n_cols).step_by(TILE) {
            let n_outputs = TILE.min(layout.n_out.saturating_sub(first));
            if n_outputs < TILE {
                // Outputs past the end of the matrix must be zero, but earlier tiles left values.
                tile[n_outputs * n_values..].fill(0);
                tables = Tables::default();
            }
            let mut slot = 0;
            for begin in self.run.clone().step_by(n_values) {
                let at = first * row_bytes + begin / n_values * block_bytes;
                for (e, codes) in tile.chunks_exact_mut(n_values).take(n_outputs).enumerate() {
                    let block = &self.source[at + e * row_bytes..][..block_bytes];
                    quants.unpack(block, &mut unpacked);
                    codes.copy_from_slice(&unpacked.codes[..n_values]);
                    tables.set(e, &unpacked, n_values / quants.group);
                }
                let row = (begin - self.run.start) / quants.group;
                self.store_tables(quants, &tables, row..row + n_values / quants.group, first);
                transpose_codes(quants.code, &tile, n_values, &mut transposed);
                let end = (begin + n_values) as u32;
                let n_slots = self.neurons[slot..].partition_point(|&neuron| neuron < end);
                for _ in 0..n_slots {
                    let from = (self.neurons[slot] as usize - begin) * width;
                    let from = &transposed[from..][..width];
                    let row = slot * layout.row_bytes + first / TILE * width;
                    self.rows[row..row + width].copy_from_slice(from);
                    slot += 1;
                }
            }
        }
    }

    /// Writes the scales and minimums of the tile that begins with output `first` to `rows` of the
    /// run's tables.
    fn store_tables(&mut self, quants: &Quants, tables: &Tables, rows: Range<usize>, first: usize) {
        let store = |table: &mut [u8], values: &[[f32; TILE]; 16]| {
            for (values, row) in values.iter().zip(rows.clone()) {
                let row = &mut table[row * self.layout.table_row_bytes..];
                if quants.wide_scales {
                    let out = row[4 * first..].as_chunks_mut().0;
                    out.iter_mut().zip(values).for_each(|(out, v)| *out = v.to_le_bytes());
                } else {
                    let out = row[2 * first..].as_chunks_mut().0;
                    let narrow = |v: &f32| f16::from_f32(*v).to_le_bytes();
                    out.iter_mut().zip(values).for_each(|(out, v)| *out = narrow(v));
                }
            }
        };
        store(self.scales, &tables.scales);
        if quants.has_min {
            store(self.mins, &tables.mins);
        }
    }
}

/// Scales and minimums of the blocks of one tile of outputs, by group.
#[derive(Debug, Default)]
struct Tables {
    scales: [[f32; TILE]; 16],
    mins: [[f32; TILE]; 16],
}

impl Tables {
    fn set(&mut self, output: usize, unpacked: &UnpackedBlock, n_groups: usize) {
        for g in 0..n_groups {
            self.scales[g][output] = unpacked.scales[g];
            self.mins[g][output] = unpacked.mins[g];
        }
    }
}

/// Transposes codes `[TILE, n_values]` to rows `[n_values, TILE]`. With nibbles, byte j of a row
/// holds output j in its low nibble and output j + 16 in its high nibble.
fn transpose_codes(code: Code, tile: &[i8], n_values: usize, out: &mut [u8]) {
    let tile: &[u8] = bytemuck::cast_slice(tile);
    let (upper, lower) = tile.split_at(SQUARE * n_values);
    for at in (0..n_values).step_by(SQUARE) {
        let row = |from: &[u8], j: usize| -> [u8; SQUARE] {
            from[j * n_values + at..][..SQUARE].try_into().expect("the slice has 16 bytes")
        };
        match code {
            Code::Byte => {
                let upper = transpose_square(std::array::from_fn(|j| row(upper, j)));
                let lower = transpose_square(std::array::from_fn(|j| row(lower, j)));
                let out = out[at * TILE..].chunks_exact_mut(TILE);
                for (out, (upper, lower)) in out.zip(upper.iter().zip(&lower)) {
                    out[..SQUARE].copy_from_slice(upper);
                    out[SQUARE..].copy_from_slice(lower);
                }
            }
            Code::Nibble { offset } => {
                let offset = offset as u8;
                let pair =
                    |low: u8, high: u8| low.wrapping_add(offset) | high.wrapping_add(offset) << 4;
                let pairs = |j: usize| {
                    let (low, high) = (row(upper, j), row(lower, j));
                    std::array::from_fn(|i| pair(low[i], high[i]))
                };
                let square = transpose_square(std::array::from_fn(pairs));
                out[at * SQUARE..][..SQUARE * SQUARE].copy_from_slice(square.as_flattened());
            }
        }
    }
}

/// Transposes a square in four rounds. Each round interleaves the rows of the upper half with those
/// of the lower half.
fn transpose_square(mut rows: [[u8; SQUARE]; SQUARE]) -> [[u8; SQUARE]; SQUARE] {
    const HALF: usize = SQUARE / 2;
    for _ in 0..4 {
        let mut next = [[0; SQUARE]; SQUARE];
        for i in 0..HALF {
            let (a, b) = (rows[i], rows[i + HALF]);
            for j in 0..HALF {
                next[2 * i][2 * j] = a[j];
                next[2 * i][2 * j + 1] = b[j];
                next[2 * i + 1][2 * j] = a[j + HALF];
                next[2 * i + 1][2 * j + 1] = b[j + HALF];
            }
        }
        rows = next;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_square_is_transposed() {
        let rows = std::array::from_fn(|i| std::array::from_fn(|j| (16 * i + j) as u8));
        let transposed = transpose_square(rows);
        for (i, row) in transposed.iter().enumerate() {
            for (j, &byte) in row.iter().enumerate() {
                assert_eq!(byte, (16 * j + i) as u8);
            }
        }
    }
}
