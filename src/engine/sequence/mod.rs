//! Sequences: their tokens and their data on the devices, and which of their tokens the next step
//! takes.
//!
//! A [`Sequence`] is a list of tokens and a `SequenceCache`: KV blocks, a row of recurrent state,
//! checkpoints. Blocks are reference-counted, so forks share them until they write. After a device
//! loss, an interrupted step or a rollback of recurrent state, the cache covers fewer tokens than
//! the list; the next step computes the rest again from the tokens.

pub(crate) mod cache;
mod memory;
pub(crate) mod pool;
pub(crate) mod schedule;

use hal::{BatchFacts, BatchToken};

use cache::SequenceCache;

/// Which logits a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsRequest {
    /// No logits.
    None,
    /// Logits after the last token.
    Last,
    /// Logits after every token, in order.
    All,
}

/// One sequence in an engine. Dropping it releases its cache blocks, state row and checkpoints.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) tokens: Vec<u32>,
    pub(crate) cached: SequenceCache,
}

impl Sequence {
    /// The tokens fed so far.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Tokens to append to a sequence in a step.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The tokens to append. A step removes tokens from the front as they enter the sequence.
    pub tokens: &'a [u32],
    /// Which logits are computed.
    pub want: LogitsRequest,
}

/// Callback for the logits of a step: the index of the feed, the position of the token,
/// `[n_vocab]` logits.
pub type EachLogits<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

/// Adds tokens of a sequence to a device step. The blocks for them must be allocated. `index` is
/// the entry of the sequence in the batch.
pub(crate) fn add_to_batch(
    facts: &mut BatchFacts,
    index: usize,
    cached: &SequenceCache,
    tokens: &[u32],
    want: LogitsRequest,
) {
    let first = cached.n();
    let seq = &mut facts.seqs[index];
    seq.blocks.extend_from_slice(cached.blocks());
    seq.len = (first + tokens.len()) as u32;
    let token = |(i, &id): (usize, &u32)| BatchToken {
        id,
        seq: index as u32,
        pos: (first + i) as u32,
        output: match want {
            LogitsRequest::None => false,
            LogitsRequest::Last => i + 1 == tokens.len(),
            LogitsRequest::All => true,
        },
    };
    facts.tokens.extend(tokens.iter().enumerate().map(token));
}
