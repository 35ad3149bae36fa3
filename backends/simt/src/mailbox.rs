//! Mailboxes of hand-offs, in a pinned block that host and device access: the device posts, the
//! host answers, and each sets a flag for the other.
//!
//! A post has the header words token count, flag, list length and one unused word; then come x,
//! weights, ids and members. An answer has the header words flag, poison, expired and one unused
//! word; then comes y. A flag holds the number of the step that set it, so flags are never reset.
//!
//! Mailboxes that a program uses one after the other have separate flags and share all other
//! memory. They cannot overwrite each other: the device posts only after the previous merge, and
//! merges only after the host's answer.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use hal::{HostRowSet, MailboxShape, RawMailbox, Result};

use crate::buffer::Span;
use crate::card::lock;
use crate::driver::Driver;
use crate::error::failure;
use crate::pinned::Pinned;

/// Header words of a post, and of an answer.
const HEADER_WORDS: usize = 4;
/// Posts, answers and all their sections begin at multiples of this many words.
const ALIGN: usize = 16;

/// One of the mailboxes in a pinned block.
#[derive(Debug)]
pub(crate) struct SimtMailbox<D: Driver> {
    pub(crate) shape: MailboxShape,
    block: Arc<Pinned<D>>,
    /// Offset of this mailbox in the block, in words.
    base: usize,
    pub(crate) offsets: Offsets,
    /// The row list of the post that the host reads, reused so that a step allocates nothing.
    pub(crate) rows: Arc<Mutex<HostRowSet>>,
}

impl<D: Driver> RawMailbox for SimtMailbox<D> {}

/// Offsets of the sections, in words from the start of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) x: usize,
    pub(crate) weights: usize,
    pub(crate) ids: usize,
    pub(crate) members: usize,
    /// Header of the answer.
    pub(crate) head: usize,
    pub(crate) answer: usize,
}

/// Layout of a block with several mailboxes: the headers of each mailbox, then the shared sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockLayout {
    /// Offsets of the first mailbox.
    offsets: Offsets,
    /// Total length in words.
    pub(crate) len: usize,
}

/// The header word of a post that holds the length of its row list.
pub(crate) const LIST_LENGTH: usize = 2;

/// Words of a mailbox that it does not share: the headers of post and answer, on separate cache
/// lines.
const OWN_WORDS: usize = 2 * ALIGN;

impl BlockLayout {
    pub(crate) fn new(shape: &MailboxShape, n: usize) -> BlockLayout {
        let MailboxShape { max_tokens, n_in, n_weights, max_rows, n_out } = *shape;
        let after = |at: usize, n: usize| (at + n).next_multiple_of(ALIGN);
        let head = after(0, HEADER_WORDS);
        let x = n * OWN_WORDS;
        let weights = after(x, max_tokens * n_in);
        let ids = after(weights, max_tokens * n_weights);
        let members = after(ids, max_rows);
        let answer = after(members, max_rows * max_tokens.div_ceil(32));
        let len = after(answer, max_tokens * n_out);
        BlockLayout { offsets: Offsets { x, weights, ids, members, head, answer }, len }
    }
}

impl Offsets {
    /// The offsets of the shared sections relative to the mailbox at word `base`.
    fn relative_to(self, base: usize) -> Offsets {
        let Offsets { x, weights, ids, members, head, answer } = self;
        let [x, weights, ids, members, answer] =
            [x, weights, ids, members, answer].map(|at| at - base);
        Offsets { x, weights, ids, members, head, answer }
    }
}

/// The mailbox at `index` of a program.
///
/// # Errors
/// [`hal::Error::Driver`] for another backend's mailbox, which `hal` rejects earlier.
pub(crate) fn mailbox<D: Driver>(
    mailboxes: &[Arc<dyn RawMailbox>],
    index: usize,
) -> Result<Arc<SimtMailbox<D>>> {
    let any = mailboxes.get(index).map(|mailbox| Arc::clone(mailbox) as Arc<dyn Any + Send + Sync>);
    let mailbox = any.and_then(|any| any.downcast().ok());
    mailbox.ok_or_else(|| failure("compile", "the mailbox belongs to another backend"))
}

impl<D: Driver> SimtMailbox<D> {
    /// `n` mailboxes that are used one after the other.
    ///
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device.
    pub(crate) fn allocate(
        driver: &Arc<D>,
        shape: MailboxShape,
        n: usize,
    ) -> Result<Vec<SimtMailbox<D>>> {
        let words = shape.max_tokens.div_ceil(32);
        let rows = Arc::new(Mutex::new(HostRowSet {
            ids: Vec::with_capacity(shape.max_rows),
            members: Vec::with_capacity(shape.max_rows * words),
            words,
        }));
        let layout = BlockLayout::new(&shape, n);
        let block = Arc::new(Pinned::new(driver, "mailbox", 4 * layout.len)?);
        let mailbox = |base: usize| SimtMailbox {
            shape,
            block: Arc::clone(&block),
            base,
            offsets: layout.offsets.relative_to(base),
            rows: Arc::clone(&rows),
        };
        Ok((0..n).map(|number| mailbox(number * OWN_WORDS)).collect())
    }

    /// Membership words per row, with one bit per token.
    pub(crate) fn words(&self) -> usize {
        self.shape.max_tokens.div_ceil(32)
    }

    /// The mailbox's device memory, from word `at` on.
    pub(crate) fn span(&self, at: usize) -> Span {
        let (at, len) = (4 * (self.base + at) as u64, self.block.len() as u64);
        Span { at: self.block.device() + at, size: len - at }
    }

    fn flag(&self, at: usize) -> &AtomicU32 {
        self.block.word(self.base + at)
    }

    /// Whether the post of a step has arrived.
    pub(crate) fn is_posted(&self, step: u32) -> bool {
        self.flag(1).load(Ordering::Acquire) == step
    }

    pub(crate) fn n_tokens(&self) -> usize {
        (self.flag(0).load(Ordering::Relaxed) as usize).min(self.shape.max_tokens)
    }

    /// `n` floats of the current post, from word `at` on.
    pub(crate) fn floats(&self, at: usize, n: usize) -> &[f32] {
        self.block.words(self.base + at, n)
    }

    /// Reads the post's row list, which has `row_words` membership words per row, into `rows`.
    pub(crate) fn read_rows(&self, row_words: usize, n_tokens: usize, rows: &mut HostRowSet) {
        let count =
            (self.flag(LIST_LENGTH).load(Ordering::Relaxed) as usize).min(self.shape.max_rows);
        rows.words = n_tokens.div_ceil(32);
        rows.ids.clear();
        rows.ids.extend_from_slice(self.block.words(self.base + self.offsets.ids, count));
        rows.members.clear();
        let members: &[u32] = self.block.words(self.base + self.offsets.members, count * row_words);
        for row in members.chunks_exact(row_words.max(1)) {
            rows.members.extend_from_slice(&row[..rows.words]);
        }
    }

    pub(crate) fn answer(&self, step: u32, y: &[f32]) {
        let n = y.len().min(self.shape.max_tokens * self.shape.n_out);
        self.block.put(self.base + self.offsets.answer, &y[..n]);
        self.flag(self.offsets.head).store(step, Ordering::Release);
    }

    /// Makes the device stop waiting in this step and in all earlier steps.
    pub(crate) fn poison(&self, step: u32) {
        self.flag(self.offsets.head + 1).store(step, Ordering::Release);
    }

    /// Whether the device's wait timed out in a step.
    pub(crate) fn has_expired(&self, step: u32) -> bool {
        self.flag(self.offsets.head + 2).load(Ordering::Acquire) == step
    }

    pub(crate) fn take_rows(&self) -> HostRowSet {
        std::mem::take(&mut lock(&self.rows))
    }

    pub(crate) fn return_rows(&self, rows: HostRowSet) {
        *lock(&self.rows) = rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailboxes_have_separate_flags_and_share_all_other_memory() {
        let shape = MailboxShape { max_tokens: 33, n_in: 5, n_weights: 3, n_out: 7, max_rows: 9 };
        let (one, three) = (BlockLayout::new(&shape, 1), BlockLayout::new(&shape, 3));
        assert_eq!(three.len, one.len + 2 * OWN_WORDS);
        for number in 0..3 {
            let (base, offsets) =
                (number * OWN_WORDS, three.offsets.relative_to(number * OWN_WORDS));
            assert!(
                HEADER_WORDS <= offsets.head
                    && offsets.head + HEADER_WORDS <= OWN_WORDS
                    && base + OWN_WORDS <= three.offsets.x
            );
            let shared = [offsets.x, offsets.weights, offsets.ids, offsets.members, offsets.answer];
            assert!(shared.is_sorted() && shared.iter().all(|at| at.is_multiple_of(ALIGN)));
            assert_eq!(base + offsets.x, three.offsets.x);
            assert!(base + offsets.answer + 33 * 7 <= three.len);
        }
    }
}
