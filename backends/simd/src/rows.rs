//! Reads of matrix rows: which rows a kernel reads, and which rows it prefetches at the same time.
//!
//! The hardware prefetcher stops at the end of a page, and a kernel only knows its current row. The
//! caller therefore passes the order of the rows, and the loop over a row prefetches the cache line
//! that is some bytes further on in this order. The best distance depends on the processor, so the
//! caller measures it: 2 KiB on Sapphire Rapids, 6 to 8 KiB on Zen 5, 16 KiB on Zen 4
//! (`docs/measurements/cpu.md`).
//!
//! Measured with a dense 1B model in Q4_0 on a 2.6 GHz Sapphire Rapids server, as a share of the
//! read bandwidth in the same run. One thread: 0.65 without prefetch, 0.67 with a prefetch of the
//! rest of the row, 0.77 with this scheme at 2 KiB. Two threads: 0.61 without prefetch, 0.71 with
//! this scheme. A second prefetch 6 KiB ahead into L2 gave no further gain; a prefetch of a whole
//! row at once was slower.

use hal::RowPlace;

use super::ActView;

/// Prefetch distance in bytes on a processor for which it was not measured.
pub const DEFAULT_PREFETCH: usize = 2 << 10;
/// Prefetch distance in bytes from which on lines are prefetched into the second-level cache: they
/// would not stay in the first-level cache until they are used. A processor keeps fewer requests of
/// its first-level cache in flight (24 lines on Zen 4) than of the second one.
pub const FAR_PREFETCH: usize = 16 << 10;
/// Bytes that [`prefetch`] requests of a row.
const ROW_START: usize = 2 << 10;

/// A sequence of rows.
#[derive(Clone, Copy, Debug)]
pub enum RowIds<'a> {
    /// Consecutive rows from this row on.
    From(usize),
    /// These rows, in this order.
    List(&'a [u32]),
}

impl RowIds<'_> {
    /// The rows after the first `n`.
    #[inline]
    #[must_use]
    pub fn skip(self, n: usize) -> Self {
        match self {
            RowIds::From(first) => RowIds::From(first + n),
            RowIds::List(ids) => RowIds::List(&ids[n..]),
        }
    }
}

/// Rows of equal length, one every `stride` bytes, or where a table says; they may be interleaved
/// with rows of other matrices.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    stride: usize,
    table: Option<&'a [RowPlace]>,
}

impl<'a> Matrix<'a> {
    /// Rows of `row_bytes`; `bytes` spans from the first byte of the first row to the last byte of
    /// the last row.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8], row_bytes: usize, stride: usize) -> Self {
        Matrix { bytes, row_bytes, stride, table: None }
    }

    /// Rows of `row_bytes` where `table` says, counted from the beginning of `bytes`. Usually, rows
    /// begin `stride` bytes apart.
    #[inline]
    #[must_use]
    pub fn in_table(
        bytes: &'a [u8],
        row_bytes: usize,
        stride: usize,
        table: &'a [RowPlace],
    ) -> Self {
        Matrix { bytes, row_bytes, stride, table: Some(table) }
    }

    /// Adjacent rows of `row_bytes`.
    #[inline]
    #[must_use]
    pub fn dense(bytes: &'a [u8], row_bytes: usize) -> Self {
        Matrix::new(bytes, row_bytes, row_bytes)
    }

    /// Where a row begins.
    #[inline(always)]
    fn start(&self, id: usize) -> usize {
        match self.table {
            None => id * self.stride,
            Some(table) => table[id].start() as usize,
        }
    }

    /// Whether the rows of this matrix follow each other, without gaps.
    #[inline(always)]
    fn is_dense(&self) -> bool {
        self.stride == self.row_bytes && self.table.is_none()
    }

    /// The bytes of a row.
    #[inline(always)]
    #[must_use]
    pub fn row(&self, id: usize) -> &'a [u8] {
        &self.bytes[self.start(id)..][..self.row_bytes]
    }

    /// The bytes from the beginning of a row on, if only rows of this matrix follow it; otherwise
    /// the row.
    #[inline(always)]
    fn row_and_rest(&self, id: usize) -> &'a [u8] {
        let bytes = &self.bytes[self.start(id)..];
        if self.is_dense() { bytes } else { &bytes[..self.row_bytes] }
    }
}

/// Rows of one matrix that are read in order.
#[derive(Clone, Copy, Debug)]
pub struct RowRun<'a> {
    matrix: Matrix<'a>,
    ids: RowIds<'a>,
    /// Prefetch distance in bytes.
    distance: usize,
    /// Approximate number of rows in this distance.
    ahead: usize,
}

impl<'a> RowRun<'a> {
    /// Rows `ids` of `matrix`, prefetched `distance` bytes ahead.
    ///
    /// `ids` may have more rows than a kernel multiplies; the kernel prefetches the extra rows,
    /// which come next.
    #[inline]
    #[must_use]
    pub fn new(matrix: Matrix<'a>, ids: RowIds<'a>, distance: usize) -> Self {
        RowRun { matrix, ids, distance, ahead: distance.div_ceil(matrix.row_bytes.max(64)) }
    }

    /// A single row.
    #[inline]
    #[must_use]
    pub fn single(row: &'a [u8]) -> Self {
        RowRun::new(Matrix::dense(row, row.len()), RowIds::From(0), DEFAULT_PREFETCH)
    }

    /// The run without its first `n` rows.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn skip(self, n: usize) -> Self {
        RowRun { ids: self.ids.skip(n), ..self }
    }

    /// The run for a kernel that reads four rows at a time. It prefetches the next four rows at least:
    /// a row of the same four is being read already.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn by_four(self) -> Self {
        let distance = self.distance.max(4 * self.matrix.row_bytes);
        RowRun { distance, ahead: self.ahead.max(4), ..self }
    }

    /// Whether rows are prefetched into the second-level cache.
    #[inline(always)]
    pub(super) fn is_far(&self) -> bool {
        self.distance >= FAR_PREFETCH
    }

    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> Row<'a> {
        match self.ids {
            RowIds::From(first) => {
                let bytes = self.matrix.row(first + i);
                let on = self.matrix.row_and_rest(first + i);
                let ahead = if self.matrix.is_dense() {
                    self.distance
                } else {
                    self.ahead * self.matrix.stride
                };
                let ahead = bytes.as_ptr().wrapping_add(ahead);
                Row { bytes, on, ahead, is_far: self.is_far() }
            }
            RowIds::List(ids) => {
                let bytes = self.matrix.row(ids[i] as usize);
                let later = ids.get(i + self.ahead);
                let later = later.map_or(bytes, |&id| self.matrix.row(id as usize));
                Row {
                    on: self.matrix.row_and_rest(ids[i] as usize),
                    is_far: self.is_far(),
                    ..Row::with_next(bytes, later)
                }
            }
        }
    }
}

/// A row, and the address to prefetch while the row is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) bytes: &'a [u8],
    /// The row, perhaps with rows of the same format after it.
    pub(super) on: &'a [u8],
    /// Address to prefetch at the beginning of the row. It may be invalid, because a prefetch never
    /// faults.
    ahead: *const u8,
    /// Whether to prefetch into the second-level cache.
    is_far: bool,
}

impl<'a> Row<'a> {
    /// A row; while it is read, the kernel prefetches the row `next`.
    #[inline(always)]
    pub(super) fn with_next(bytes: &'a [u8], next: &[u8]) -> Self {
        Row { bytes, on: bytes, ahead: next.as_ptr(), is_far: false }
    }

    /// Prefetches `BYTES` bytes at offset `at` from the prefetch address.
    #[inline(always)]
    pub(super) fn prefetch_ahead<const BYTES: usize>(&self, at: usize) {
        if self.is_far {
            return self.prefetch_far::<BYTES>(at);
        }
        self.prefetch_near::<BYTES>(at);
    }

    /// [`Row::prefetch_ahead`] into the first-level cache.
    #[inline(always)]
    pub(super) fn prefetch_near<const BYTES: usize>(&self, at: usize) {
        for line in (0..BYTES).step_by(64) {
            prefetch_line(self.ahead.wrapping_add(at + line));
        }
    }

    /// [`Row::prefetch_ahead`] of a run that [`RowRun::is_far`].
    #[inline(always)]
    pub(super) fn prefetch_far<const BYTES: usize>(&self, at: usize) {
        for line in (0..BYTES).step_by(64) {
            prefetch_far_line(self.ahead.wrapping_add(at + line));
        }
    }
}

/// Multiplies rows by `N` tokens. `out` has one entry per row.
pub type RowsFn<const N: usize> = fn(run: &RowRun<'_>, x: [ActView<'_>; N], out: &mut [[f32; N]]);

/// Prefetches the first 2 KiB of a row that will be read next.
#[inline]
pub fn prefetch(row: &[u8]) {
    for line in row[..row.len().min(ROW_START)].chunks(64) {
        prefetch_line(line.as_ptr());
    }
}

/// Prefetches a cache line into the first-level cache.
#[inline(always)]
pub(super) fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no side effect and never faults; every x86-64 processor has the
    // instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    // Does nothing on AArch64: the intrinsic `_prefetch` is not stable in Rust
    // (`stdarch_aarch64_prefetch`).
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// [`prefetch_line`] for the second-level cache.
#[inline(always)]
fn prefetch_far_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The kernels of one format; `$dots` multiplies one row and uses the instructions `$features`. It
/// may depend on a type parameter `$products` of the function that uses the macro. `$four` multiplies
/// four rows by one token, if their tiles are complete but for half of the last one; it is used with a
/// far prefetch distance, since hardware prefetchers do not follow four rows.
macro_rules! dot_of_rows {
    ($features:literal, $dots:path, $four:path) => {{
        const BY_ONE: DotKernels = dot_of_rows!($features, $dots);
        #[inline(never)]
        #[target_feature(enable = $features)]
        fn rows_by_four(run: &RowRun<'_>, x: [ActView<'_>; 1], out: &mut [[f32; 1]]) {
            let token = super::tile::OneToken::new(x[0]).filter(|_| run.is_far());
            let n = if token.is_some() { out.len() / 4 * 4 } else { 0 };
            let (by_four, others) = out.split_at_mut(n);
            if let Some(token) = &token {
                let run = run.by_four();
                for (i, out) in by_four.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *out = $four([0, 1, 2, 3].map(|k| run.row(4 * i + k)), token);
                }
            }
            if !others.is_empty() {
                (BY_ONE.one)(&run.skip(n), x, others);
            }
        }
        DotKernels {
            // SAFETY: `Kernels::select` returns this table only if `is_supported` holds.
            one: |run, x, out| unsafe { rows_by_four(run, x, out) },
            ..BY_ONE
        }
    }};
    ($features:literal, $(<$products:ident: $bound:path>)? $dots:path) => {{
        /// The loop is separate for each format, so a row can start before the previous row
        /// completes. Never inlined, so `scripts/analyze_kernels` finds it where all processors have
        /// the features.
        #[inline(never)]
        #[target_feature(enable = $features)]
        fn rows<$($products: $bound,)? const N: usize>(
            run: &RowRun<'_>,
            x: [ActView<'_>; N],
            out: &mut [[f32; N]],
        ) {
            let last = super::tile::LastTile::of(&x);
            let x = super::tile::Tokens::new(x, &last);
            for (i, out) in out.iter_mut().enumerate() {
                *out = $dots(run.row(i), x);
            }
        }
        DotKernels {
            // SAFETY: `Kernels::select` returns this table only if `is_supported` holds.
            one: |run, x, out| unsafe { rows::<$($products,)? 1>(run, x, out) },
            // SAFETY: as above.
            four: |run, x, out| unsafe { rows::<$($products,)? 4>(run, x, out) },
            // SAFETY: as above.
            eight: |run, x, out| unsafe { rows::<$($products,)? 8>(run, x, out) },
        }
    }};
}
pub(super) use dot_of_rows;
