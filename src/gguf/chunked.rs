//! Writes in large aligned chunks, so that the page cache holds the file in huge pages.
//!
//! Linux chooses the size of a page in its cache when it creates the page. For a write, the size
//! depends on how many bytes of an aligned range one call provides. Measured on ext4 with kernel
//! 6.18: aligned calls of 2 MiB put the whole file in pages of 2 MiB, calls of 1 MiB no part of it.
//! A page keeps its size until it is dropped, even for a process that maps the file later.

use std::io::{self, Write};

/// Size and alignment of a chunk in bytes: a huge page of x86-64 and of most AArch64 systems.
const CHUNK: usize = 2 << 20;

/// Buffers bytes and writes them in chunks. Bytes that are not flushed are lost.
#[derive(Debug)]
pub(super) struct ChunkedWriter<W> {
    inner: W,
    buffer: Vec<u8>,
    /// Bytes from the first buffered byte to the next multiple of [`CHUNK`] in the file.
    until_aligned: usize,
}

impl<W: Write> ChunkedWriter<W> {
    /// An empty buffer. The position of `inner` in its file must be a multiple of [`CHUNK`].
    pub(super) fn new(inner: W) -> Self {
        ChunkedWriter { inner, buffer: Vec::new(), until_aligned: CHUNK }
    }

    pub(super) fn get_ref(&self) -> &W {
        &self.inner
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.inner.write_all(&self.buffer)?;
        self.until_aligned -= self.buffer.len();
        if self.until_aligned == 0 {
            self.until_aligned = CHUNK;
        }
        self.buffer.clear();
        Ok(())
    }
}

impl<W: Write> Write for ChunkedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.len() == self.until_aligned {
            self.write_out()?;
        }
        // Whole chunks bypass the buffer.
        if self.buffer.is_empty() && self.until_aligned == CHUNK && bytes.len() >= CHUNK {
            let whole = bytes.len() / CHUNK * CHUNK;
            self.inner.write_all(&bytes[..whole])?;
            return Ok(whole);
        }
        let n_bytes = bytes.len().min(self.until_aligned - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..n_bytes]);
        Ok(n_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_out()?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of the calls of `write`, and the written bytes.
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
    fn calls_start_at_multiples_of_a_chunk() {
        let bytes: Vec<u8> = (0..5 * CHUNK + 77).map(|i| (i % 251) as u8).collect();
        let mut to = ChunkedWriter::new(Calls::default());
        let (mut at, pieces) = (0, [1, 4096, 3 * CHUNK + 5, CHUNK, 100, usize::MAX]);
        for piece in pieces {
            let piece = piece.min(bytes.len() - at);
            to.write_all(&bytes[at..at + piece]).unwrap();
            at += piece;
        }
        to.flush().unwrap();
        assert!(to.get_ref().1 == bytes, "all bytes were written in order");
        let mut end = 0;
        for &len in &to.get_ref().0 {
            assert!(end % CHUNK == 0 && len > 0, "{len} bytes at {end}");
            end += len;
        }
    }

    #[test]
    fn later_chunks_stay_aligned_after_a_flush() {
        let mut to = ChunkedWriter::new(Calls::default());
        to.write_all(&[1; 10]).unwrap();
        to.flush().unwrap();
        to.flush().unwrap();
        to.write_all(&vec![2; 2 * CHUNK]).unwrap();
        to.flush().unwrap();
        let lens: Vec<usize> = to.get_ref().0.iter().copied().filter(|&len| len > 0).collect();
        assert_eq!(lens, [10, CHUNK - 10, CHUNK, 10]);
    }
}
