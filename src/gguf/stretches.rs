//! Writes in large aligned chunks, so that the page cache holds the file in huge pages.
//!
//! Linux picks the size of a page of its cache when the page is created: for a write, by the bytes
//! that one call provides for an aligned range (measured on ext4, kernel 6.18: calls of 1 MiB
//! leave no part of a file in pages of 2 MiB, aligned calls of 2 MiB all of it). It stays so until
//! the page is dropped, also for a process that maps the file meanwhile.

use std::io::{self, Write};

/// Size and alignment of a chunk: a huge page of x86-64 and of most AArch64 systems.
const STRETCH: usize = 2 << 20;

/// Buffers bytes and writes them in chunks. Bytes that are not flushed are lost.
#[derive(Debug)]
pub(super) struct Stretches<W> {
    inner: W,
    gathered: Vec<u8>,
    /// Bytes from the start of the next call to the next multiple of [`STRETCH`].
    room: usize,
}

impl<W: Write> Stretches<W> {
    /// An empty buffer. The first byte written to `inner` must be at a multiple of a chunk.
    pub(super) fn new(inner: W) -> Self {
        Stretches { inner, gathered: Vec::new(), room: STRETCH }
    }

    pub(super) fn get_ref(&self) -> &W {
        &self.inner
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.inner.write_all(&self.gathered)?;
        self.room -= self.gathered.len();
        if self.room == 0 {
            self.room = STRETCH;
        }
        self.gathered.clear();
        Ok(())
    }
}

impl<W: Write> Write for Stretches<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.gathered.len() == self.room {
            self.write_out()?;
        }
        // Whole chunks are not copied.
        if self.gathered.is_empty() && self.room == STRETCH && bytes.len() >= STRETCH {
            let whole = bytes.len() / STRETCH * STRETCH;
            self.inner.write_all(&bytes[..whole])?;
            return Ok(whole);
        }
        let taken = bytes.len().min(self.room - self.gathered.len());
        self.gathered.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_out()?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of the calls, and the written bytes.
    #[derive(Default)]
    struct Calls(Vec<usize>, Vec<u8>);

    impl Write for Calls {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.len());
            self.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn calls_end_at_stretches() {
        let bytes: Vec<u8> = (0..5 * STRETCH + 77).map(|i| (i % 251) as u8).collect();
        let mut to = Stretches::new(Calls::default());
        let (mut at, pieces) = (0, [1, 4096, 3 * STRETCH + 5, STRETCH, 100, usize::MAX]);
        for piece in pieces {
            let piece = piece.min(bytes.len() - at);
            to.write_all(&bytes[at..at + piece]).unwrap();
            at += piece;
        }
        to.flush().unwrap();
        assert!(to.get_ref().1 == bytes, "all bytes in their order");
        let mut end = 0;
        for &len in &to.get_ref().0 {
            assert!(end % STRETCH == 0 && len > 0, "{len} bytes at {end}");
            end += len;
        }
    }

    #[test]
    fn a_flush_in_the_middle_moves_no_later_stretch() {
        let mut to = Stretches::new(Calls::default());
        to.write_all(&[1; 10]).unwrap();
        to.flush().unwrap();
        to.flush().unwrap();
        to.write_all(&vec![2; 2 * STRETCH]).unwrap();
        to.flush().unwrap();
        let lens: Vec<usize> = to.get_ref().0.iter().copied().filter(|&len| len > 0).collect();
        assert_eq!(lens, [10, STRETCH - 10, STRETCH, 10]);
    }
}
