//! llama.cpp's file of probabilities, written by `--kl-divergence-base` and read by
//! `--kl-divergence`.
//!
//! All numbers are little-endian. The file begins with the magic `_logits_` and 32-bit numbers:
//! tokens per chunk, size of the vocabulary, number of chunks, and the tokens of all chunks. One
//! row follows for each token in the second half of a chunk, except the last token. A row has two
//! 32-bit floats, `scale` and `min`, and one 16-bit number for each token of the vocabulary, padded
//! to an even count. `min + scale * number` is the logarithm of the token's probability. Logarithms
//! more than 16 below the largest are clamped.
//!
//! Source: llama.cpp, tools/perplexity.

use std::fs;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use super::{Chunks, Error, Result};
use gguf::{PartFile, Problem};

const MAGIC: &[u8; 8] = b"_logits_";
/// Bytes of the magic and of three numbers.
const HEADER: u64 = 20;
/// Logits are clamped if they lie more than this below the largest one.
const SPREAD: f32 = 16.0;
/// The largest 16-bit number.
const STEPS: f32 = 65535.0;

fn row_bytes(n_vocab: usize) -> usize {
    8 + 4 * n_vocab.div_ceil(2)
}

/// Writes a file of probabilities, row by row. The file appears only when it is complete.
#[derive(Debug)]
pub struct LogitsWriter {
    name: String,
    file: PartFile,
    row: Vec<u8>,
    rows_left: usize,
}

impl LogitsWriter {
    /// Starts the file of a run over `chunks` with a vocabulary of `n_vocab`.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn create(path: &Path, chunks: &Chunks, n_vocab: usize) -> Result<LogitsWriter> {
        let name = path.display().to_string();
        let file = PartFile::create(path)
            .map_err(|problem| Error::Write { file: name.clone(), problem })?;
        let rows_left = chunks.n_chunks() * chunks.n_scored();
        let mut writer = LogitsWriter { name, file, row: Vec::new(), rows_left };
        writer.put(MAGIC)?;
        // The casts cannot overflow: context and vocabulary have 32-bit sizes, and a text has at
        // most 1 GiB.
        for number in [chunks.n_ctx(), n_vocab, chunks.n_chunks()] {
            writer.put(&(number as u32).to_le_bytes())?;
        }
        for token in chunks.tokens() {
            writer.put(&token.to_le_bytes())?;
        }
        Ok(writer)
    }

    pub(super) fn write(&mut self, logits: &[f32]) -> Result<()> {
        let mut row = std::mem::take(&mut self.row);
        encode(logits, &mut row);
        let written = self.put(&row);
        self.row = row;
        self.rows_left = self.rows_left.saturating_sub(1);
        written
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|reason| {
            let problem = Problem::Io { action: "write", reason };
            Error::Write { file: self.name.clone(), problem }
        })
    }

    /// Renames the complete file to its final name.
    ///
    /// # Errors
    /// [`Error::Write`]; the incomplete file is then removed. Dropping the writer also
    /// removes it.
    ///
    /// # Panics
    /// If rows are missing.
    pub fn finish(self) -> Result<()> {
        assert_eq!(self.rows_left, 0, "a row for each predicted token");
        let LogitsWriter { name, file, .. } = self;
        file.commit().map_err(|problem| Error::Write { file: name, problem })
    }
}

fn encode(logits: &[f32], row: &mut Vec<u8>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = logits.iter().copied().fold(f32::INFINITY, f32::min).max(max - SPREAD);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let scale = (max - min) / STEPS;
    row.clear();
    row.extend(scale.to_le_bytes());
    row.extend((min - max - sum.ln() as f32).to_le_bytes());
    for &logit in logits {
        // The cast saturates at both ends of the range, and converts NaN (0 / 0) to 0.
        let step = ((logit - min) / scale).round_ties_even() as u16;
        row.extend(step.to_le_bytes());
    }
    row.resize(row_bytes(logits.len()), 0);
}

/// Reads a file of probabilities, row by row, and checks all its contents.
#[derive(Debug)]
pub struct LogitsReader {
    name: String,
    file: BufReader<fs::File>,
    chunks: Chunks,
    n_read: usize,
    row: Vec<u8>,
    log_probs: Vec<f32>,
}

impl LogitsReader {
    /// Opens a file for a model with a vocabulary of `n_vocab`, to compare the first `limit`
    /// chunks. `bos` as for [`Chunks::new`].
    ///
    /// # Errors
    /// All errors except [`Error::Engine`], [`Error::TooShort`] and [`Error::Context`].
    pub fn open(
        path: &Path,
        n_vocab: usize,
        bos: Option<u32>,
        limit: Option<usize>,
    ) -> Result<LogitsReader> {
        let name = path.display().to_string();
        let io_error = |action| {
            let file = name.clone();
            move |reason| Error::Open { file, action, reason }
        };
        let metadata = fs::metadata(path).map_err(io_error("open"))?;
        if !metadata.is_file() {
            // Opening a pipe could block forever.
            let reason = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(io_error("read")(reason));
        }
        let mut file = BufReader::new(fs::File::open(path).map_err(io_error("open"))?);
        let mut chunks = header(&name, &mut file, metadata.len(), n_vocab, bos)?;
        chunks.limit(limit);
        Ok(LogitsReader {
            name,
            file,
            chunks,
            n_read: 0,
            row: vec![0; row_bytes(n_vocab)],
            log_probs: vec![0.0; n_vocab],
        })
    }

    /// The chunks of text that the probabilities belong to.
    #[must_use]
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    /// The next row: the logarithm of the probability of each token of the vocabulary.
    pub(super) fn next(&mut self) -> Result<&[f32]> {
        let what = || format!("row {}", self.n_read);
        self.file.read_exact(&mut self.row).map_err(|reason| Error::Open {
            file: self.name.clone(),
            action: "read",
            reason,
        })?;
        let (head, steps) = self.row.split_at(8);
        let [scale, min] = [float(&head[..4]), float(&head[4..])];
        // The most likely token has the largest number. Rounding may move its probability slightly
        // above 1.
        let max = min + scale * STEPS;
        if !(scale >= 0.0 && min.is_finite() && max < 0.1) {
            return Err(Error::Damaged {
                file: self.name.clone(),
                what: what(),
                expected: "a scale of at least 0 and log probabilities of at most 0".to_owned(),
                found: format!("a scale of {scale} with values from {min} to {max}"),
            });
        }
        for (log_prob, step) in self.log_probs.iter_mut().zip(steps.chunks_exact(2)) {
            *log_prob = min + scale * f32::from(u16::from_le_bytes([step[0], step[1]]));
        }
        self.n_read += 1;
        Ok(&self.log_probs)
    }
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("4 bytes"))
}

/// Reads the header. Allocates no more memory than the file's length.
fn header(
    name: &str,
    file: &mut impl Read,
    len: u64,
    n_vocab: usize,
    bos: Option<u32>,
) -> Result<Chunks> {
    let damaged = |what: &str, expected: String, found: String| Error::Damaged {
        file: name.to_owned(),
        what: what.to_owned(),
        expected,
        found,
    };
    let mut start = [0u8; HEADER as usize];
    let found = len.min(HEADER) as usize;
    let failed = |reason| Error::Open { file: name.to_owned(), action: "read", reason };
    file.read_exact(&mut start[..found]).map_err(failed)?;
    let magic = &start[..found.min(8)];
    if magic != MAGIC {
        return Err(Error::NotLogits {
            file: name.to_owned(),
            found: format!("`{}`", magic.escape_ascii()),
        });
    }
    if len < HEADER {
        return Err(damaged("the length", format!("at least {HEADER} bytes"), len.to_string()));
    }
    let number = |at: usize| u32::from_le_bytes(start[at..at + 4].try_into().expect("4 bytes"));
    let (n_ctx, found_vocab, n_chunks) = (number(8), number(12), number(16));
    if usize::try_from(found_vocab) != Ok(n_vocab) {
        let file = name.to_owned();
        return Err(Error::Vocabulary { file, expected: n_vocab, found: found_vocab });
    }
    if n_ctx < 3 {
        return Err(damaged("the context size", "at least 3 tokens".to_owned(), n_ctx.to_string()));
    }
    if n_chunks == 0 {
        return Err(damaged("the number of chunks", "at least 1".to_owned(), "0".to_owned()));
    }
    let scored = u128::from(n_ctx - 1 - n_ctx / 2);
    let chunk = 4 * u128::from(n_ctx) + scored * row_bytes(n_vocab) as u128;
    let expected = u128::from(HEADER) + u128::from(n_chunks) * chunk;
    if u128::from(len) != expected {
        let what = format!("the length of {n_chunks} chunks of {n_ctx} tokens");
        return Err(damaged(&what, format!("{expected} bytes"), format!("{len} bytes")));
    }
    let mut bytes = vec![0; 4 * n_chunks as usize * n_ctx as usize];
    file.read_exact(&mut bytes).map_err(failed)?;
    let token = |b: &[u8]| u32::from_le_bytes(b.try_into().expect("4 bytes"));
    let tokens: Vec<u32> = bytes.chunks_exact(4).map(token).collect();
    if let Some((i, token)) = tokens.iter().enumerate().find(|(_, t)| **t as usize >= n_vocab) {
        return Err(damaged(&format!("token {i}"), format!("below {n_vocab}"), token.to_string()));
    }
    Ok(Chunks::from_file(tokens, n_ctx as usize, bos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_keeps_its_probabilities() {
        let logits = [2.0f32, -1.0, 0.5, -40.0, 2.0];
        let mut row = Vec::new();
        encode(&logits, &mut row);
        assert_eq!(row.len(), row_bytes(5));
        assert_eq!(row.len(), 8 + 12);
        let (scale, min) = (float(&row[..4]), float(&row[4..8]));
        assert!((scale - 16.0 / 65535.0).abs() < 1e-9);
        let sum: f32 = logits.iter().map(|l| l.exp()).sum();
        for (i, logit) in logits.iter().enumerate().filter(|(i, _)| *i != 3) {
            let step = u16::from_le_bytes([row[8 + 2 * i], row[9 + 2 * i]]);
            let expected = logit - sum.ln();
            assert!((min + scale * f32::from(step) - expected).abs() < 2e-4, "{i}");
        }
        assert_eq!(&row[14..16], [0, 0], "the clamped value is the smallest");
        assert_eq!(&row[18..], [0, 0], "padding");
    }

    #[test]
    fn equal_logits_have_scale_0() {
        let mut row = Vec::new();
        encode(&[7.0; 4], &mut row);
        assert_eq!(float(&row[..4]), 0.0);
        assert!((float(&row[4..8]) + 4.0f32.ln()).abs() < 1e-6);
        assert!(row[8..].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_header_with_wrong_sizes_is_rejected() {
        let mut bytes = MAGIC.to_vec();
        for number in [u32::MAX, 10, u32::MAX] {
            bytes.extend(number.to_le_bytes());
        }
        let read = |bytes: &[u8], n_vocab| {
            header("f", &mut &bytes[..], bytes.len() as u64, n_vocab, None).unwrap_err()
        };
        assert!(matches!(read(&bytes, 10), Error::Damaged { .. }));
        assert!(matches!(read(&bytes, 11), Error::Vocabulary { found: 10, .. }));
        assert!(matches!(read(&bytes[..19], 10), Error::Damaged { .. }));
        assert!(matches!(read(&bytes[..3], 10), Error::NotLogits { .. }));
        assert!(matches!(read(b"", 10), Error::NotLogits { .. }));
    }
}
