//! A sequence as little-endian bytes:
//! `magic | fingerprint | n_tokens | n_cached | tokens | rows of all layers | checksum`.
//!
//! The fingerprint covers everything that determines the meaning of the rows: the model's file,
//! the formats and widths of caches and states, RoPE. The placement of layers does not matter:
//! rows have the same bytes on every device.

use std::ops::Range;

use hal::{KV_BLOCK, Operand};

use super::Engine;
use super::ready::loaded;
use crate::error::{Error, NotRestored, Result};
use crate::sequence::cache::SequenceCache;
use crate::sequence::{Feed, LogitsRequest, Sequence};
use gguf::Hash;

/// The last byte is the version of the format.
const MAGIC: &[u8; 8] = b"TCLNSEQ\x01";

/// Whether a file that starts with these bytes is a saved sequence, of any version.
#[must_use]
pub fn is_saved_sequence(start: &[u8]) -> bool {
    start.starts_with(&MAGIC[..MAGIC.len() - 1])
}

/// Size in bytes of the header of a saved sequence: magic, fingerprint, two counts. The tokens
/// follow, four bytes each, little-endian.
pub const SAVED_HEAD: usize = 24;

const HEADER: usize = SAVED_HEAD;

/// The counts in the header of a saved sequence, not yet checked against its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedHead {
    /// Tokens of the sequence.
    pub n_tokens: usize,
    /// Number of tokens whose cached data follows.
    pub n_cached: usize,
}

/// Bytes of the checksum, after everything else.
const SUM: usize = 8;

/// A saved sequence, parsed and checked.
struct SavedSequence<'a> {
    tokens: Vec<u32>,
    n_cached: usize,
    rows: &'a [u8],
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = Hash::default();
    hash.add(bytes);
    hash.finish()
}

fn word(bytes: &[u8], at: usize) -> usize {
    bytes[at..at + 4].try_into().map_or(0, |bytes| u32::from_le_bytes(bytes) as usize)
}

/// The ranges of cache rows that hold the first `n` positions, block by block.
fn rows_of(cached: &SequenceCache, n: usize) -> Vec<Range<usize>> {
    let blocks = cached.blocks().iter().zip(0..n.div_ceil(KV_BLOCK));
    let rows = |(&block, index): (&u32, usize)| {
        let first = block as usize * KV_BLOCK;
        first..first + KV_BLOCK.min(n - index * KV_BLOCK)
    };
    blocks.map(rows).collect()
}

impl Engine {
    /// Serialises a sequence for [`Engine::restore`]: its tokens, KV rows and current recurrent
    /// state.
    ///
    /// # Errors
    /// Device errors.
    pub fn save(&mut self, sequence: &Sequence) -> Result<Vec<u8>> {
        self.retry_after_losses(&mut |engine| engine.save_once(sequence))
    }

    fn save_once(&mut self, sequence: &Sequence) -> Result<Vec<u8>> {
        let Sequence { tokens, cached } = sequence;
        let n = if cached.is_in(&self.pool) { cached.n() } else { 0 };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.fingerprint()?.to_le_bytes());
        for count in [tokens.len(), n] {
            bytes.extend_from_slice(&(count as u32).to_le_bytes());
        }
        bytes.extend_from_slice(bytemuck::cast_slice(tokens));
        let state = cached.state_row();
        let loaded = loaded(&mut self.ready)?;
        loaded.save(&self.placement, &rows_of(cached, n), state.filter(|_| n > 0), &mut bytes)?;
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Restores a sequence from the bytes of [`Engine::save`], of this or another run with the
    /// same model and cache types.
    ///
    /// # Errors
    /// [`Error::NotRestored`] for invalid bytes, [`Error::ContextFull`] if it exceeds the context
    /// or the free blocks, errors of the devices.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<Sequence> {
        self.retry_after_losses(&mut |engine| engine.restore_once(bytes))
    }

    fn restore_once(&mut self, bytes: &[u8]) -> Result<Sequence> {
        let SavedSequence { tokens, n_cached, rows } = self.parse_saved(bytes)?;
        let mut sequence = self.new_sequence();
        self.check_free_blocks(&[Feed {
            sequence: &mut sequence,
            tokens: &tokens,
            want: LogitsRequest::None,
        }])?;
        sequence.tokens = tokens;
        let cached = &mut sequence.cached;
        if n_cached == 0 || self.pool.is_recurrent() && !cached.take_slot() {
            // The next step computes the cached data of all tokens.
            return Ok(sequence);
        }
        self.own_blocks(cached, n_cached)?;
        let state = cached.slot().map(|slot| slot as usize);
        let loaded = loaded(&mut self.ready)?;
        loaded.restore(&self.placement, &rows_of(cached, n_cached), state, rows)?;
        cached.advance(n_cached);
        Ok(sequence)
    }

    /// Parses the header of a saved sequence without reading the data after it. `head` has the
    /// first [`SAVED_HEAD`] bytes.
    ///
    /// # Errors
    /// [`Error::NotRestored`] for bytes of another format or another model.
    pub fn saved_head(&self, head: &[u8; SAVED_HEAD]) -> Result<SavedHead> {
        if !head.starts_with(MAGIC) {
            return Err(NotRestored::Magic.into());
        }
        if head[8..16] != self.fingerprint()?.to_le_bytes() {
            return Err(NotRestored::Fingerprint.into());
        }
        Ok(SavedHead { n_tokens: word(head, 16), n_cached: word(head, 20) })
    }

    /// Parses and checks untrusted bytes.
    fn parse_saved<'a>(&self, bytes: &'a [u8]) -> Result<SavedSequence<'a>> {
        if bytes.len() < HEADER + SUM || !bytes.starts_with(MAGIC) {
            return Err(NotRestored::Magic.into());
        }
        let (body, last) = bytes.split_at(bytes.len() - SUM);
        if checksum(body).to_le_bytes() != last {
            return Err(NotRestored::Checksum.into());
        }
        if body[8..16] != self.fingerprint()?.to_le_bytes() {
            return Err(NotRestored::Fingerprint.into());
        }
        let (n_tokens, n_cached) = (word(body, 16), word(body, 20));
        let n_ctx = self.n_ctx();
        if n_tokens > n_ctx {
            return Err(Error::ContextFull { n_tokens, n_ctx });
        }
        let loaded = &self.ready.as_ref().ok_or(hal::Error::Cancelled)?.stepper.loaded;
        let len = loaded.saved_len(n_cached.min(n_tokens));
        let expected = HEADER + 4 * n_tokens + len + SUM;
        if expected != bytes.len() || n_cached > n_tokens {
            return Err(NotRestored::Length { expected, got: bytes.len() }.into());
        }
        let (tokens, rows) = body[HEADER..].split_at(4 * n_tokens);
        let tokens: Vec<u32> = (0..n_tokens).map(|i| word(tokens, 4 * i) as u32).collect();
        let n_vocab = self.arena.sizes.n_vocab;
        match tokens.iter().find(|id| **id as usize >= n_vocab) {
            Some(&id) => Err(NotRestored::Token { id, n_vocab }.into()),
            None => Ok(SavedSequence { tokens, n_cached, rows }),
        }
    }

    fn fingerprint(&self) -> Result<u64> {
        let mut hash = Hash::default();
        hash.add(self.model.file.fingerprint().as_bytes());
        let loaded = &self.ready.as_ref().ok_or(hal::Error::Cancelled)?.stepper.loaded;
        for (layer, weights) in loaded.layers.iter().zip(&self.model.layers) {
            let caches = layer.caches().into_iter().map(|cache| cache.tensor);
            for tensor in caches.chain(layer.states().cloned()) {
                hash.add(tensor.desc().format.to_string().as_bytes());
                hash.word(tensor.desc().n_cols as u64);
            }
            if let Some(rope) = weights.attention().and_then(|by| by.rope.as_ref()) {
                hash.add(bytemuck::cast_slice(rope.freqs(self.options.n_ctx)));
                hash.add(&rope.scale.to_le_bytes());
            }
        }
        Ok(hash.finish())
    }
}
