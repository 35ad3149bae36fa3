#![allow(unsafe_code, reason = "several threads access tensor memory at the same time")]
//! The views through which kernels access tensor memory, by the rules at the head of `buffer`.

use std::fmt;
use std::ops::Range;

use bytemuck::AnyBitPattern;
use hal::RowPlace;
use simd::Matrix;

/// Rows that an op reads; they begin `stride` values apart.
pub(crate) struct ReadView<T> {
    pub(super) start: *const T,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    pub(super) stride: usize,
}

/// Rows of weights that an op reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WeightRows {
    InOrder(ReadView<u8>),
    /// Rows where a table says. `memory` is a single row: the buffer from the view's first column
    /// to its end. Places count from its beginning.
    InTable {
        memory: ReadView<u8>,
        row_bytes: usize,
        stride: usize,
        table: ReadView<RowPlace>,
    },
}

/// Rows that an op writes. Accesses must not overlap: see the rules at the head of `buffer`.
pub(crate) struct WriteView<T> {
    pub(super) start: *mut T,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
}

impl<T> Clone for ReadView<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for ReadView<T> {}
impl<T> Clone for WriteView<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for WriteView<T> {}

// SAFETY: the rules at the head of `buffer` exclude conflicting accesses through views.
unsafe impl<T: Sync> Send for ReadView<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for ReadView<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for WriteView<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for WriteView<T> {}

impl<T> fmt::Debug for ReadView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadView[{}, {}]", self.n_rows, self.n_cols)
    }
}

impl<T> fmt::Debug for WriteView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteView[{}, {}]", self.n_rows, self.n_cols)
    }
}

impl<T: AnyBitPattern> ReadView<T> {
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub(crate) fn row(&self, row: usize) -> &[T] {
        self.rows(row..row + 1)
    }

    pub(crate) fn rows(&self, rows: Range<usize>) -> &[T] {
        assert!(rows.start <= rows.end && rows.end <= self.n_rows, "rows outside the view");
        assert!(self.stride == self.n_cols || rows.len() < 2, "rows are not adjacent");
        // SAFETY: the rows are in the view, alive, initialised and not written now (rules 2 and 3).
        unsafe {
            std::slice::from_raw_parts(
                self.start.add(rows.start * self.stride),
                rows.len() * self.n_cols,
            )
        }
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        self.rows(0..self.n_rows)
    }
}

impl WeightRows {
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            WeightRows::InOrder(view) => view.n_cols,
            WeightRows::InTable { row_bytes, .. } => *row_bytes,
        }
    }

    pub(crate) fn row(&self, row: usize) -> &[u8] {
        match self {
            WeightRows::InOrder(view) => view.row(row),
            WeightRows::InTable { .. } => self.matrix().row(row),
        }
    }

    /// All rows, and the gaps between them.
    pub(crate) fn matrix(&self) -> Matrix<'_> {
        match self {
            WeightRows::InOrder(view) => view.matrix(),
            WeightRows::InTable { memory, row_bytes, stride, table } => {
                // SAFETY: the buffer owns the places, which only change atomically.
                let places = unsafe { std::slice::from_raw_parts(table.start, table.n_rows) };
                Matrix::in_table(memory.row(0), *row_bytes, *stride, places)
            }
        }
    }
}

impl ReadView<u8> {
    /// All rows as a matrix whose slice includes the gaps between the rows.
    fn matrix(&self) -> Matrix<'_> {
        let len = match self.n_rows {
            0 => 0,
            n => (n - 1) * self.stride + self.n_cols,
        };
        // SAFETY: the slice spans the view from its first byte to its last. The gaps between rows
        // belong to the same buffer, which is alive and initialised. No op writes weights.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, len) };
        Matrix::new(bytes, self.n_cols, self.stride)
    }
}

impl<T: AnyBitPattern> WriteView<T> {
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub(crate) fn row(&self, row: usize) -> &mut [T] {
        self.columns(row, 0..self.n_cols)
    }

    #[allow(clippy::mut_from_ref, reason = "accesses are disjoint: see the head of `buffer`")]
    pub(crate) fn columns(&self, row: usize, cols: Range<usize>) -> &mut [T] {
        let inside = row < self.n_rows && cols.start <= cols.end && cols.end <= self.n_cols;
        assert!(inside, "columns outside the view");
        // SAFETY: the range is in the view, alive, initialised; only this chunk uses it (rule 3).
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.add(row * self.n_cols + cols.start),
                cols.len(),
            )
        }
    }

    pub(crate) fn read_row(&self, row: usize) -> &[T] {
        self.read_rows(row..row + 1)
    }

    /// Rows to read in a phase that does not write them.
    pub(crate) fn read_rows(&self, rows: Range<usize>) -> &[T] {
        assert!(rows.start <= rows.end && rows.end <= self.n_rows, "rows outside the view");
        // SAFETY: the rows are in the view, alive, initialised and not written now (rule 3).
        unsafe {
            std::slice::from_raw_parts(
                self.start.add(rows.start * self.n_cols),
                rows.len() * self.n_cols,
            )
        }
    }

    /// All rows, for phases that only read them.
    pub(crate) fn read_view(&self) -> ReadView<T> {
        let WriteView { start, n_rows, n_cols } = *self;
        ReadView { start, n_rows, n_cols, stride: n_cols }
    }
}
