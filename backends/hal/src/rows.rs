//! Weights on the host, and which of their rows a device imports in which layout.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::format::Format;
use crate::{Error, Layout, Result, TensorDesc};

/// Shared bytes of a mapped file, a static or a vector.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Rows that are not all in memory: the interface for models larger than memory.
pub trait RowStore: fmt::Debug + Send + Sync {
    /// Reads whole rows into `out`, whose length is `rows.len()` times the row's bytes.
    ///
    /// # Errors
    /// [`Error::Driver`] if reading the storage fails.
    fn read(&self, rows: Range<usize>, out: &mut [u8]) -> Result<()>;

    /// The matrices that this store joins into one; empty if it does not join any.
    fn parts(&self) -> &[HostRows] {
        &[]
    }
}

/// Where the bytes of a matrix come from.
#[derive(Clone)]
pub enum Source {
    /// A mapped file or a static. A device that uses host memory may use the bytes in place.
    Mapped(SharedBytes),
    /// Bytes made for this import. A device that uses host memory may keep them.
    Owned(SharedBytes),
    /// A store that reads rows on demand.
    Paged(Arc<dyn RowStore>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Mapped(b) => write!(f, "Mapped({} bytes)", (**b).as_ref().len()),
            Source::Owned(b) => write!(f, "Owned({} bytes)", (**b).as_ref().len()),
            Source::Paged(s) => write!(f, "Paged({s:?})"),
        }
    }
}

/// A matrix on the host: `[n_rows, n_cols]` in `format`, row-major as GGUF stores it.
#[derive(Clone, Debug)]
pub struct HostRows {
    source: Source,
    n_rows: usize,
    n_cols: usize,
    format: Format,
}

impl HostRows {
    /// Describes `source` as a matrix.
    ///
    /// # Errors
    /// [`Error::Shape`] if a row is not a whole number of blocks, the size overflows, or the number
    /// of bytes is not the size of the matrix.
    pub fn new(source: Source, n_rows: usize, n_cols: usize, format: Format) -> Result<HostRows> {
        let desc = TensorDesc::new(n_rows, n_cols, format);
        let Some(bytes) = desc.bytes() else {
            let expected = format!("columns in multiples of {}", format.block_values());
            return Err(Error::shape("HostRows", "n_cols", expected, n_cols));
        };
        if let Source::Mapped(b) | Source::Owned(b) = &source {
            let len = (**b).as_ref().len() as u64;
            if len != bytes.0 {
                let got = format!("{len} bytes");
                return Err(Error::shape("HostRows", "bytes", format!("{} bytes", bytes.0), got));
            }
        }
        Ok(HostRows { source, n_rows, n_cols, format })
    }

    /// Where the bytes come from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Shape and format.
    #[must_use]
    pub fn desc(&self) -> TensorDesc {
        TensorDesc::new(self.n_rows, self.n_cols, self.format)
    }

    /// Bytes of one row.
    ///
    /// # Panics
    /// Never: checked in [`HostRows::new`].
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.n_cols).expect("`new` checked the size")
    }

    /// The bytes of some rows, borrowed if the source is in memory.
    ///
    /// # Errors
    /// Errors of a [`RowStore`].
    ///
    /// # Panics
    /// If the range is outside the matrix.
    pub fn rows(&self, rows: Range<usize>) -> Result<Cow<'_, [u8]>> {
        assert!(rows.end <= self.n_rows, "rows {rows:?} exceed {}", self.n_rows);
        let row = self.row_bytes();
        match &self.source {
            Source::Mapped(b) | Source::Owned(b) => {
                Ok(Cow::Borrowed(&(**b).as_ref()[rows.start * row..rows.end * row]))
            }
            Source::Paged(store) => {
                let mut out = vec![0; rows.len() * row];
                store.read(rows, &mut out)?;
                Ok(Cow::Owned(out))
            }
        }
    }
}

/// The part of a matrix that is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// The whole matrix.
    All,
    /// These neurons, strictly ascending: rows of the file, or its columns for
    /// [`Layout::Transposed`].
    Rows(Arc<[u32]>),
    /// These column blocks (blocks of the format) of every row, strictly ascending. They select
    /// neurons of a down matrix that keeps the file's orientation.
    ColumnBlocks(Arc<[u32]>),
}

/// The part of a [`HostRows`] that [`crate::Device::import`] imports, and its layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackDesc {
    /// Shape and format of the source.
    pub source: TensorDesc,
    /// Which rows or columns are imported.
    pub select: Select,
    /// Whether to transpose the matrix without loss: the source's columns become rows.
    pub transpose: bool,
    /// Number of empty slots at the end, for [`crate::Queue::refill`].
    pub spare: usize,
    /// Whether each row of a stored pack begins on a page, if the backend can do that, so that it
    /// shares no page with another row.
    pub page_rows: bool,
}

impl PackDesc {
    /// The whole matrix, not transposed.
    #[must_use]
    pub fn whole(source: TensorDesc) -> PackDesc {
        PackDesc { source, select: Select::All, transpose: false, spare: 0, page_rows: false }
    }

    /// The shape of the resulting tensor.
    ///
    /// # Errors
    /// [`Error::Shape`] if the selection is not ascending or outside the matrix, or if it has
    /// column blocks in a pack that is transposed or has spare slots.
    pub fn packed_desc(&self) -> Result<TensorDesc> {
        let TensorDesc { n_rows, n_cols, format, .. } = self.source;
        let block = format.block_values();
        let all = if self.transpose { n_cols } else { n_rows };
        let check = |list: &[u32], limit: usize| -> Result<()> {
            let ascending = list.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascending || list.last().is_some_and(|&last| last as usize >= limit) {
                let expected = format!("ascending ids below {limit}");
                return Err(Error::shape(
                    "PackDesc",
                    "select",
                    expected,
                    "out of order or out of range",
                ));
            }
            Ok(())
        };
        let selected = match &self.select {
            Select::All => all,
            Select::Rows(list) => {
                check(list, all)?;
                list.len()
            }
            Select::ColumnBlocks(list) => {
                check(list, n_cols / block)?;
                if self.transpose || self.spare > 0 {
                    let got = "column blocks";
                    return Err(Error::shape(
                        "PackDesc",
                        "select",
                        "rows if the pack is transposed or has spare slots",
                        got,
                    ));
                }
                return Ok(TensorDesc::new(n_rows, list.len() * block, format));
            }
        };
        let rows = selected + self.spare;
        Ok(if self.transpose {
            TensorDesc {
                n_rows: rows,
                n_cols: n_rows,
                format,
                layout: Layout::Transposed { n_source: n_cols },
            }
        } else {
            TensorDesc::new(rows, n_cols, format)
        })
    }
}
