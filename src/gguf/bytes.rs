//! Byte ranges of a container that keep its mapping alive.

use std::{fmt, fs, ops::Deref, ops::Range, path::Path, path::PathBuf, sync::Arc};

use super::fault::{Registered, register_mapping};
use super::{Error, FileFacts, Problem};

pub(super) enum Backing {
    Mapped(Mapping),
    Static(&'static [u8]),
    Owned(Vec<u8>),
    /// A header, then zeros that take no memory until they are read.
    Shapes(memmap2::Mmap),
}

/// A mapped file.
pub(super) struct Mapping {
    /// Ends before the mapping does.
    _registered: Registered,
    /// The user that owns the file.
    owner: Option<u32>,
    map: memmap2::Mmap,
    /// Stays open, for facts and advice about the file.
    file: fs::File,
    path: PathBuf,
    /// The file before it was mapped.
    opened: FileFacts,
}

impl Mapping {
    /// `opened` are the facts of `file` before it was mapped, and `owner` is its user.
    pub(super) fn new(
        map: memmap2::Mmap,
        file: fs::File,
        path: &Path,
        opened: FileFacts,
        owner: Option<u32>,
    ) -> Mapping {
        let _registered = register_mapping(&map, opened.identity(), path);
        Mapping { _registered, owner, map, file, path: path.to_owned(), opened }
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        let failed = |problem| Err(Error::new(&self.path.display().to_string(), problem));
        match FileFacts::of(&self.file) {
            Ok(now) if self.opened.is_unchanged(&now) => Ok(()),
            Ok(now) if now.size() >= self.opened.size() => failed(Problem::SourceChanged),
            Ok(_) | Err(_) => failed(Problem::SourceLost),
        }
    }
}

impl Deref for Backing {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Backing::Mapped(mapping) => &mapping.map,
            Backing::Static(bytes) => bytes,
            Backing::Owned(bytes) => bytes,
            Backing::Shapes(map) => map,
        }
    }
}

/// A range of a container's bytes, with a reference to its mapping or memory.
///
/// Cloning is cheap. The mapping ends with the last reference. The alignment is arbitrary.
#[derive(Clone)]
pub struct Bytes {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Bytes {
    pub(super) fn all(backing: Backing) -> Bytes {
        let range = 0..backing.len();
        Bytes { backing: Arc::new(backing), range }
    }

    /// Drops the mapped pages of `part`, a slice of these bytes, from this process's memory; they
    /// are reloaded when read. Returns whether `part` is such a slice.
    pub fn release(&self, part: &[u8]) -> bool {
        let own = self.as_ptr_range();
        let part = part.as_ptr_range();
        if part.start < own.start || part.end > own.end {
            return false;
        }
        if let Backing::Mapped(Mapping { map, .. }) = &*self.backing {
            let base = map.as_ptr().addr();
            super::map::release(map, part.start.addr() - base..part.end.addr() - base);
        }
        true
    }

    /// Checks that the file that the bytes are mapped from was not written to since it was opened.
    /// Bytes in memory do not change.
    ///
    /// # Errors
    /// [`Problem::SourceChanged`], [`Problem::SourceLost`].
    pub fn check_unchanged(&self) -> Result<(), Error> {
        match &*self.backing {
            Backing::Mapped(mapping) => mapping.check_unchanged(),
            Backing::Static(_) | Backing::Owned(_) | Backing::Shapes(_) => Ok(()),
        }
    }

    /// The facts of the file that the bytes are mapped from, when it was opened; `None` for bytes
    /// in memory.
    pub(super) fn opened(&self) -> Option<&FileFacts> {
        match &*self.backing {
            Backing::Mapped(mapping) => Some(&mapping.opened),
            Backing::Static(_) | Backing::Owned(_) | Backing::Shapes(_) => None,
        }
    }

    /// Whether the bytes have places in a file: it is mapped, or planned from shapes.
    pub(super) fn is_of_file(&self) -> bool {
        match &*self.backing {
            Backing::Mapped(_) | Backing::Shapes(_) => true,
            Backing::Static(_) | Backing::Owned(_) => false,
        }
    }

    /// See [`super::map::expect_few_reads`].
    pub(super) fn expect_few_reads(&self) {
        if let Backing::Mapped(Mapping { map, file, .. }) = &*self.backing {
            super::map::expect_few_reads(map, file);
        }
    }

    /// Starts to read the file into memory, if the bytes are mapped.
    pub(super) fn fetch(&self) {
        if let Backing::Mapped(Mapping { map, .. }) = &*self.backing {
            super::map::fetch(map);
        }
    }

    /// The user that owns the mapped file; `None` for bytes in memory.
    pub(super) fn owner(&self) -> Option<u32> {
        match &*self.backing {
            Backing::Mapped(mapping) => mapping.owner,
            Backing::Static(_) | Backing::Owned(_) | Backing::Shapes(_) => None,
        }
    }

    /// A range of these bytes, relative to their start.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        assert!(range.start <= range.end && range.end <= self.len(), "range inside the bytes");
        let start = self.range.start;
        Bytes { backing: Arc::clone(&self.backing), range: start + range.start..start + range.end }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.backing[self.range.clone()]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len())
    }
}
