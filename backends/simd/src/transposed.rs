//! Weighted sums of rows of transposed matrices (one row per neuron): code that all SIMD levels
//! share.

use hal::format::TransposedLayout;

use super::rows::prefetch_line;

/// Outputs per unit of a transposed row.
pub(super) const UNIT: usize = 32;

/// Maximum number of rows that are read in parallel: few enough for the hardware prefetcher.
const MAX_RUN: usize = 8;
/// Prefetch distance in bytes. It is small because rows are short.
const AHEAD: usize = 512;

/// Some neurons of one group: their rows of codes and their factors, and the group's scales and
/// minimums.
pub(super) struct NeuronRun<'a> {
    pub bytes: &'a [u8],
    pub list: &'a [(u32, f32)],
    pub row_bytes: usize,
    /// Scales of the group: `[n_cols]` in F16 or F32.
    pub scales: &'a [u8],
    /// Minimums of the group: `[n_cols]`; empty if the format has no minimums.
    pub mins: &'a [u8],
    /// The sum of the factors.
    pub total: f32,
}

impl<'a> NeuronRun<'a> {
    /// `n` bytes of a slot's codes from byte `at` on. Also prefetches the codes that follow.
    #[inline(always)]
    pub(super) fn codes(&self, slot: u32, at: usize, n: usize) -> &'a [u8] {
        let row = &self.bytes[slot as usize * self.row_bytes..][..self.row_bytes];
        if at + AHEAD < row.len() {
            for line in (0..n).step_by(64) {
                prefetch_line(row.as_ptr().wrapping_add(at + AHEAD + line));
            }
        }
        &row[at..][..n]
    }
}

/// Calls `f` for each run of consecutive entries of `list` in the same group.
#[inline(always)]
pub(super) fn for_runs(
    layout: &TransposedLayout,
    bytes: &[u8],
    list: &[(u32, f32)],
    mut f: impl FnMut(&NeuronRun<'_>),
) {
    assert_eq!(bytes.len(), layout.n_bytes);
    let has_min = layout.format.quants().is_some_and(|quants| quants.has_min);
    let group = |slot: u32| {
        assert!((slot as usize) < layout.n_slots, "slot {slot} of {}", layout.n_slots);
        let at = layout.groups_at + 4 * slot as usize;
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("the slice has 4 bytes")) as usize
    };
    let table =
        |at: usize, g: usize| &bytes[at + g * layout.table_row_bytes..][..layout.table_row_bytes];
    let mut rest = list;
    while let Some(&(first, _)) = rest.first() {
        let g = group(first);
        let n = rest.iter().take(MAX_RUN).take_while(|&&(slot, _)| group(slot) == g).count();
        let (run, next) = rest.split_at(n);
        for &(slot, _) in next.iter().take(MAX_RUN) {
            let row = &bytes[slot as usize * layout.row_bytes..];
            (0..AHEAD).step_by(64).for_each(|at| prefetch_line(row.as_ptr().wrapping_add(at)));
        }
        f(&NeuronRun {
            bytes,
            list: run,
            row_bytes: layout.row_bytes,
            scales: table(layout.scales_at, g),
            mins: if has_min { table(layout.mins_at, g) } else { &[] },
            total: run.iter().map(|&(_, h)| h).sum(),
        });
        rest = next;
    }
}

/// Calls `wide(first_unit, y)` for each `WIDE` outputs of `y`, then `one(unit, y)` for each
/// remaining unit. An incomplete last unit goes through a padded copy.
#[inline(always)]
pub(super) fn for_units<const WIDE: usize>(
    y: &mut [f32],
    mut wide: impl FnMut(usize, &mut [f32; WIDE]),
    mut one: impl FnMut(usize, &mut [f32; UNIT]),
) {
    let (tiles, rest) = y.as_chunks_mut::<WIDE>();
    let n_wide = tiles.len() * (WIDE / UNIT);
    for (i, y) in tiles.iter_mut().enumerate() {
        wide(i * (WIDE / UNIT), y);
    }
    let (units, rest) = rest.as_chunks_mut::<UNIT>();
    let n_units = n_wide + units.len();
    for (i, y) in units.iter_mut().enumerate() {
        one(n_wide + i, y);
    }
    if !rest.is_empty() {
        let mut last = super::tile::pad_with_zeros(rest);
        one(n_units, &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Contents of the module `transposed` of a SIMD level with instructions `$features` (see
/// `plain.rs`).
///
/// The kernels first sum factor times code over a group's neurons, then multiply the sums by the
/// scales once.
macro_rules! transposed_kernels {
    ($features:literal) => {
        use hal::format::{Code, Format, TransposedLayout};

        use super::super::transposed::{NeuronRun, UNIT, for_runs, for_units};
        use super::super::{TransposedFn, scalar};
        use super::vector::*;

        /// Outputs per pass: their sums fill eight registers.
        const WIDE: usize = 8 * LANES;

        pub(super) fn transposed(format: Format) -> TransposedFn {
            macro_rules! entry {
                ($sum:expr) => {
                    // SAFETY: `Kernels::select` returns this level only if it was detected.
                    |layout, bytes, list, y| unsafe { $sum(layout, bytes, list, y) }
                };
            }
            match format.quants().map(|quants| (quants.code, quants.wide_scales)) {
                None if format.is_weight() => entry!(sum_plain),
                None => (scalar::TABLE.transposed)(format),
                Some((Code::Nibble { .. }, false)) => entry!(sum::<true, false>),
                Some((Code::Nibble { .. }, true)) => entry!(sum::<true, true>),
                Some((Code::Byte, false)) => entry!(sum::<false, false>),
                Some((Code::Byte, true)) => entry!(sum::<false, true>),
            }
        }

        #[target_feature(enable = $features)]
        fn sum<const NIBBLES: bool, const WIDE_SCALES: bool>(
            layout: &TransposedLayout,
            bytes: &[u8],
            list: &[(u32, f32)],
            y: &mut [f32],
        ) {
            assert_eq!(y.len(), layout.n_out);
            let offset = match layout.format.quants().map(|quants| quants.code) {
                Some(Code::Nibble { offset }) => offset,
                Some(Code::Byte) | None => 0,
            };
            for_runs(layout, bytes, list, |run| {
                for_units::<WIDE>(
                    y,
                    |unit, y| add_run::<NIBBLES, WIDE_SCALES, 8>(run, offset, unit, y),
                    |unit, y| {
                        add_run::<NIBBLES, WIDE_SCALES, { UNIT / LANES }>(run, offset, unit, y);
                    },
                );
            });
        }

        /// Adds a run of one group to the `R * LANES` outputs from `unit` on.
        #[inline]
        #[target_feature(enable = $features)]
        fn add_run<const NIBBLES: bool, const WIDE_SCALES: bool, const R: usize>(
            run: &NeuronRun<'_>,
            offset: i8,
            unit: usize,
            y: &mut [f32],
        ) {
            let mut sums = [zero(); R];
            for &(slot, h) in run.list {
                if NIBBLES {
                    let row = run.codes(slot, unit * UNIT / 2, R * LANES / 2);
                    add_nibbles(splat(h), row, offset, &mut sums);
                } else {
                    let row = run.codes(slot, unit * UNIT, R * LANES);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = fmadd(splat(h), widen_i8(row, r * LANES), *sum);
                    }
                }
            }
            let entry_bytes = if WIDE_SCALES { 4 } else { 2 };
            let table = |table: &[u8], r: usize| {
                let at = (unit * UNIT + r * LANES) * entry_bytes;
                if WIDE_SCALES { widen_f32(table, at) } else { widen_f16(table, at) }
            };
            for (r, sum) in sums.into_iter().enumerate() {
                let mut v = fmadd(table(run.scales, r), sum, load_ps(y, r * LANES));
                if !run.mins.is_empty() {
                    v = fnmadd(table(run.mins, r), splat(run.total), v);
                }
                store_ps(y, r * LANES, v);
            }
        }

        /// Sums for formats without blocks.
        #[target_feature(enable = $features)]
        fn sum_plain(layout: &TransposedLayout, bytes: &[u8], list: &[(u32, f32)], y: &mut [f32]) {
            assert_eq!((bytes.len(), y.len()), (layout.n_bytes, layout.n_out));
            let rows = &bytes[..layout.n_slots * layout.row_bytes];
            let rows = super::super::Matrix::dense(rows, layout.row_bytes);
            super::sum_rows::sum_rows(layout.format)(rows, list, y);
        }
    };
}
pub(super) use transposed_kernels;
