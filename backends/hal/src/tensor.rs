//! Tensors: rows of one format on one device, addressed by row, never by byte.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::format::Format;
use crate::{Bytes, DeviceId, Reservation};

/// How the values of a tensor are arranged in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Rows as in the file (a backend may interleave them; the addressing is the same).
    Rows,
    /// One row per neuron, transposed without loss from a matrix whose *columns* are the neurons
    /// ([`crate::format::TransposedLayout`]).
    Transposed {
        /// Number of columns (neurons) of the whole matrix in the file.
        n_source: usize,
    },
}

/// Shape and format of a tensor, without its memory: used for planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorDesc {
    /// Number of rows.
    pub n_rows: usize,
    /// Values in a row.
    pub n_cols: usize,
    /// Format of the values.
    pub format: Format,
    /// Arrangement in memory.
    pub layout: Layout,
}

impl TensorDesc {
    /// A plain tensor of rows.
    #[must_use]
    pub fn new(n_rows: usize, n_cols: usize, format: Format) -> TensorDesc {
        TensorDesc { n_rows, n_cols, format, layout: Layout::Rows }
    }

    /// Size of a plain tensor; `None` if a row is not a whole number of blocks or the size
    /// overflows.
    #[must_use]
    pub fn bytes(&self) -> Option<Bytes> {
        let row = self.format.row_bytes(self.n_cols)? as u64;
        row.checked_mul(self.n_rows as u64).map(Bytes)
    }
}

impl fmt::Display for TensorDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}] {}", self.n_rows, self.n_cols, self.format)?;
        match self.layout {
            Layout::Rows => Ok(()),
            Layout::Transposed { .. } => write!(f, " transposed"),
        }
    }
}

/// Device memory as its backend sees it; retrieved with [`Tensor::raw`].
pub trait RawBuffer: Any + fmt::Debug + Send + Sync {}

/// Device memory together with its reservation in the ledger.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) raw: Box<dyn RawBuffer>,
    pub(crate) device: DeviceId,
    /// Shape of the whole buffer.
    pub(crate) desc: TensorDesc,
    pub(crate) _held: Reservation,
}

/// Rows of a buffer. Cloning is cheap and refers to the same memory.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) first_row: usize,
    pub(crate) first_col: usize,
    pub(crate) desc: TensorDesc,
}

impl Tensor {
    /// A view of some of the rows.
    ///
    /// # Panics
    /// If the range is not inside the tensor. Only the engine makes views, from sizes it checked.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Tensor {
        assert!(
            rows.start <= rows.end && rows.end <= self.desc.n_rows,
            "rows {rows:?} exceed {}",
            self.desc
        );
        let desc = TensorDesc { n_rows: rows.len(), ..self.desc };
        let first_row = self.first_row + rows.start;
        Tensor { buffer: Arc::clone(&self.buffer), first_row, first_col: self.first_col, desc }
    }

    /// A view of a range of columns of every row: one of several weight matrices that were
    /// imported side by side. Only devices with [`crate::Device::supports_column_views`] support
    /// such views.
    ///
    /// # Panics
    /// If the range is not whole blocks inside the tensor, or the tensor is transposed.
    #[must_use]
    pub fn columns(&self, cols: Range<usize>) -> Tensor {
        let block = self.desc.format.block_values();
        let inside = cols.start <= cols.end && cols.end <= self.desc.n_cols;
        let whole = cols.start.is_multiple_of(block) && cols.end.is_multiple_of(block);
        assert!(
            inside && whole && self.desc.layout == Layout::Rows,
            "columns {cols:?} of {} are outside or not whole blocks",
            self.desc
        );
        let desc = TensorDesc { n_cols: cols.len(), ..self.desc };
        let (first_row, first_col) = (self.first_row, self.first_col + cols.start);
        Tensor { buffer: Arc::clone(&self.buffer), first_row, first_col, desc }
    }

    /// Converts row numbers of this view to row numbers of its buffer.
    #[must_use]
    pub fn buffer_rows(&self, rows: Range<usize>) -> Range<usize> {
        self.first_row + rows.start..self.first_row + rows.end
    }

    /// The first row of this view inside its buffer.
    #[must_use]
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// The first column of this view inside the rows of its buffer.
    #[must_use]
    pub fn first_col(&self) -> usize {
        self.first_col
    }

    /// Shape of the whole buffer that this is a view of.
    #[must_use]
    pub fn whole(&self) -> TensorDesc {
        self.buffer.desc
    }

    /// The device that owns the memory.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.buffer.device
    }

    /// The backend's own buffer, if it is of type `B`.
    #[must_use]
    pub fn raw<B: RawBuffer>(&self) -> Option<&B> {
        let any: &dyn Any = &*self.buffer.raw;
        any.downcast_ref()
    }

    /// Whether two views have rows of one buffer in common.
    #[must_use]
    pub fn overlaps(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
            && self.first_row < other.first_row + other.desc.n_rows
            && other.first_row < self.first_row + self.desc.n_rows
    }
}

/// An operand of an op: a [`Tensor`] when recorded, a [`TensorDesc`] when planned.
pub trait Operand: Clone + fmt::Debug {
    /// Shape and format.
    fn desc(&self) -> TensorDesc;
}

impl Operand for Tensor {
    fn desc(&self) -> TensorDesc {
        self.desc
    }
}

impl Operand for TensorDesc {
    fn desc(&self) -> TensorDesc {
        *self
    }
}
