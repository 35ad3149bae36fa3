//! Bytes of a container that keep what they lie in alive.

use std::{fmt, ops::Deref, ops::Range, sync::Arc};

/// Where a container's bytes lie.
pub(super) enum Backing {
    Mapped(memmap2::Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Deref for Backing {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Backing::Mapped(map) => map,
            Backing::Static(bytes) => bytes,
            Backing::Owned(bytes) => bytes,
        }
    }
}

/// A range of a container's bytes, and a share in the mapping (or memory) they lie in.
///
/// Cloning is cheap. The mapping ends with the last share. Nothing is promised about alignment.
#[derive(Clone)]
pub struct Bytes {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Bytes {
    /// All of `backing`.
    pub(super) fn all(backing: Backing) -> Bytes {
        let range = 0..backing.len();
        Bytes { backing: Arc::new(backing), range }
    }

    /// Takes the pages of `part`, a slice of these bytes, out of this process's memory where they are mapped; they
    /// come back when they are read. Gives whether it is such a slice.
    pub(crate) fn release(&self, part: &[u8]) -> bool {
        let own = self.as_ptr_range();
        let part = part.as_ptr_range();
        if part.start < own.start || part.end > own.end {
            return false;
        }
        if let Backing::Mapped(map) = &*self.backing {
            let base = map.as_ptr().addr();
            super::map::release(map, part.start.addr() - base..part.end.addr() - base);
        }
        true
    }

    /// Has the system read what they lie in ahead, where it is a file.
    pub(super) fn fetch(&self) {
        if let Backing::Mapped(map) = &*self.backing {
            super::map::fetch(map);
        }
    }

    /// A part of these bytes, counted from their own start.
    ///
    /// # Panics
    /// If `range` reaches past their end.
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
