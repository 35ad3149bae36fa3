//! The weights that are loaded without reading them: their places in files and in memory.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use hal::{HostRows, SharedBytes, Source};
use model::Model;
use store::{DirectFile, Piece, ReadAt, Store};

use crate::converted::RepackFile;
use crate::error::Result;
use crate::options::PagingOptions;

/// What a matrix belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No layer: the head.
    Model,
    /// The norms, mixer, router and shared expert of a layer.
    Frame(usize),
    /// The neurons of a layer.
    Neurons(usize),
}

/// A matrix in a file.
#[derive(Clone, Debug)]
pub(crate) struct PagedMatrix {
    pub(crate) owner: Owner,
    pub(crate) piece: Piece,
    pub(crate) n_rows: usize,
}

impl PagedMatrix {
    pub(crate) fn row_bytes(&self) -> u64 {
        (self.piece.range.end - self.piece.range.start) / self.n_rows.max(1) as u64
    }

    /// The bytes of consecutive rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Piece {
        let row = self.row_bytes();
        let at = |n: usize| self.piece.range.start + row * n as u64;
        Piece { file: self.piece.file, range: at(rows.start)..at(rows.end) }
    }
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
                let Some(opened) = container.mapped_file(number) else { return Ok(None) };
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
        self.add(owner, piece, desc.n_rows);
        Some(paged)
    }

    /// Calls `adopt` with the memory of repacked weights in the store, filled for the call; `None`
    /// for bytes that are not in a file of the store.
    ///
    /// # Errors
    /// Errors of reading and of `adopt`.
    pub(crate) fn page_pack<T>(
        &self,
        owner: Owner,
        bytes: &SharedBytes,
        adopt: impl FnOnce(SharedBytes) -> Result<T>,
    ) -> Option<Result<T>> {
        let piece = self.locate(bytes)?;
        let filled = self.store.fill(&piece).map_err(Into::into);
        let adopted = filled.and_then(|()| adopt(self.store.bytes(&piece)));
        self.store.release(&piece);
        self.add(owner, piece, 1);
        Some(adopted)
    }

    fn add(&self, owner: Owner, piece: Piece, n_rows: usize) {
        self.matrices.borrow_mut().push(PagedMatrix { owner, piece, n_rows });
    }

    pub(crate) fn into_parts(self) -> (Store, Vec<PagedMatrix>) {
        (self.store, self.matrices.into_inner())
    }
}
