//! The weights that are loaded without reading them: their places in files and in memory.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use hal::{HostRows, PackDesc, RowTable, SharedBytes, Source};
use model::Model;
use store::{DirectFile, Piece, ReadAt, RowMatrix, Store};

use crate::converted::RepackFile;
use crate::error::Result;
use crate::options::PagingOptions;

/// What a matrix belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No layer: the head, and routers that the CPU guesses by.
    Model,
    /// The norms, mixer, router and shared expert of a layer.
    Frame(usize),
    /// The predictor of a layer.
    Predictor(usize),
    /// The neurons of a layer.
    Neurons(usize),
}

/// A matrix in a file.
#[derive(Clone, Debug)]
pub(crate) struct PagedMatrix {
    pub(crate) owner: Owner,
    pub(crate) piece: Piece,
    pub(crate) n_rows: usize,
    /// The matrix in the mapped file and in the store; `None` for repacked weights.
    rows: Option<[HostRows; 2]>,
    /// Where the rows are in memory; `None` if they are in order.
    table: Option<RowTable>,
}

impl PagedMatrix {
    /// A matrix without rows in the mapped file, and without a table.
    pub(crate) fn new(owner: Owner, piece: Piece, n_rows: usize) -> PagedMatrix {
        PagedMatrix { owner, piece, n_rows, rows: None, table: None }
    }

    pub(crate) fn row_bytes(&self) -> u64 {
        (self.piece.range.end - self.piece.range.start) / self.n_rows.max(1) as u64
    }

    /// The matrix in the store, if it is `rows` of the mapped file.
    pub(crate) fn stored(&self, rows: &HostRows) -> Option<&HostRows> {
        let [mapped, stored] = self.rows.as_ref()?;
        let (Source::Mapped(mapped), Source::Mapped(rows)) = (mapped.source(), rows.source())
        else {
            return None;
        };
        std::ptr::eq((**mapped).as_ref(), (**rows).as_ref()).then_some(stored)
    }

    /// The matrix as rows that are units.
    pub(crate) fn by_row(&self) -> RowMatrix {
        let (piece, table) = (self.piece.clone(), self.table.clone());
        RowMatrix { piece, row_bytes: self.row_bytes(), table }
    }

    /// The bytes of consecutive rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Piece {
        let row = self.row_bytes();
        let at = |n: usize| self.piece.range.start + row * n as u64;
        Piece { file: self.piece.file, range: at(rows.start)..at(rows.end) }
    }
}

/// The number of rows of a stored pack; `None` for a transposed one, of which no part can be used
/// alone.
pub(crate) fn row_count(pack: &PackDesc) -> Option<usize> {
    let desc = pack.packed_desc().ok().filter(|_| !pack.transpose);
    desc.map(|desc| desc.n_rows)
}

/// Collects the matrices that the CPU uses in place while a model is loaded, and gives each its
/// place in the store.
#[derive(Debug)]
pub(crate) struct PagedWeights<'a> {
    /// The model's container and the repack file, with the number of the first file of each in the
    /// store.
    containers: Vec<(&'a gguf::File, usize)>,
    store: Store,
    matrices: RefCell<Vec<PagedMatrix>>,
}

impl<'a> PagedWeights<'a> {
    /// `None` if the model is not mapped from files.
    ///
    /// # Errors
    /// [`store::Error`] if a file cannot be opened again.
    pub(crate) fn new(
        model: &'a Model,
        converted: Option<&'a RepackFile>,
        options: &PagingOptions,
    ) -> Result<Option<PagedWeights<'a>>> {
        let mut files: Vec<Arc<dyn ReadAt>> = Vec::new();
        let mut containers = Vec::new();
        for container in [Some(&model.file), converted.map(RepackFile::file)].into_iter().flatten()
        {
            containers.push((container, files.len()));
            for (number, path) in container.paths().iter().enumerate() {
                let Some(opened) = container.opened(number) else { return Ok(None) };
                files.push(Arc::new(DirectFile::open(path, Some(opened))?));
            }
        }
        if files.is_empty() {
            return Ok(None);
        }
        let store = Store::new(files, options.depth)?;
        Ok(Some(PagedWeights { containers, store, matrices: RefCell::default() }))
    }

    fn locate(&self, bytes: &SharedBytes) -> Option<Piece> {
        let bytes = (**bytes).as_ref();
        self.containers.iter().find_map(|(container, first)| {
            let (number, range) = container.locate(bytes)?;
            Some(Piece { file: first + number, range })
        })
    }

    /// The matrix `rows` with its memory in the store; `None` for rows that are not in a file of
    /// the model. Nothing is read.
    pub(crate) fn page(&self, owner: Owner, rows: &HostRows) -> Option<HostRows> {
        let Source::Mapped(bytes) = rows.source() else { return None };
        let piece = self.locate(bytes)?;
        let desc = rows.desc();
        let source = Source::Mapped(self.store.bytes(&piece));
        let paged = HostRows::new(source, desc.n_rows, desc.n_cols, desc.format).ok()?;
        let matrix = PagedMatrix {
            owner,
            piece,
            n_rows: desc.n_rows,
            rows: Some([rows.clone(), paged.clone()]),
            table: None,
        };
        self.matrices.borrow_mut().push(matrix);
        Some(paged)
    }

    /// Makes a tensor of repacked weights with their memory in the store; `None` for bytes that are
    /// not in a file of the store. If rows may take the places of others, `adopt` gets the memory
    /// of all rows of the file and a table of these rows; otherwise it gets the memory of these
    /// weights, which is filled for the call if they are transposed, because their indices are
    /// checked.
    ///
    /// # Errors
    /// Errors of reading and of `adopt`.
    pub(crate) fn page_pack<T>(
        &self,
        owner: Owner,
        pack: &PackDesc,
        bytes: &SharedBytes,
        adopt: impl FnOnce(SharedBytes, Option<RowTable>) -> Result<T>,
    ) -> Option<Result<T>> {
        let (piece, n_rows) = (self.locate(bytes)?, row_count(pack));
        let placed = n_rows.filter(|_| pack.page_rows);
        let table = placed.and_then(|n_rows| self.store.row_table(&piece, n_rows));
        let adopted = match (&table, n_rows) {
            (Some(table), _) => adopt(self.store.memory(piece.file), Some(Arc::clone(table))),
            (None, Some(_)) => adopt(self.store.bytes(&piece), None),
            (None, None) => {
                let filled = self.store.fill(&piece).map_err(Into::into);
                filled.and_then(|()| adopt(self.store.bytes(&piece), None))
            }
        };
        self.store.release(&piece);
        let matrix = PagedMatrix::new(owner, piece, n_rows.unwrap_or(1));
        self.matrices.borrow_mut().push(PagedMatrix { table, ..matrix });
        Some(adopted)
    }

    pub(crate) fn into_parts(self) -> (Store, Vec<PagedMatrix>) {
        (self.store, self.matrices.into_inner())
    }
}
