//! Mailboxes: one pinned block that host and device access, with flags that say whose turn it is.
//!
//! Words of a post: tokens, flag, length of the list, unused; then x, weights, ids, members. Words
//! of an answer: flag, poison, expired, unused; then y. A flag holds the number of its step, so
//! flags are never reset.
//!
//! Mailboxes that are used one after the other have separate flags and share all other memory: on
//! the device a post comes after the previous merge, and a merge after the host's answer.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use hal::{HostRowSet, MailboxShape, RawMailbox, Result};

use crate::buffer::Span;
use crate::card::lock;
use crate::driver::Driver;
use crate::error::driver;
use crate::pinned::Pinned;

/// Header words of either half.
const HEAD: usize = 4;
/// Both halves, and all sections of them, begin at multiples of this many words.
const STEP: usize = 16;

/// A mailbox.
#[derive(Debug)]
pub(crate) struct SimtMailbox<D: Driver> {
    pub(crate) shape: MailboxShape,
    block: Arc<Pinned<D>>,
    /// Offset of this mailbox in the block, in words.
    base: usize,
    pub(crate) places: Places,
    /// The list of the post that the host reads, reused so that a step allocates nothing.
    pub(crate) rows: Arc<Mutex<HostRowSet>>,
}

impl<D: Driver> RawMailbox for SimtMailbox<D> {}

/// Offsets of the sections, in words from the start of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) x: usize,
    pub(crate) weights: usize,
    pub(crate) ids: usize,
    pub(crate) members: usize,
    /// Header of the answer half.
    pub(crate) head: usize,
    pub(crate) answer: usize,
}

/// Layout of a block with several mailboxes: the flags of both halves of each, then the shared
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Offsets of the first mailbox.
    places: Places,
    /// Total length in words.
    pub(crate) len: usize,
}

/// Header words that a post writes before its values.
pub(crate) const COUNT: usize = 2;

/// Words per mailbox that are not shared: the headers of both halves, on separate cache lines.
const OWN: usize = 2 * STEP;

impl Room {
    /// For `n` mailboxes.
    pub(crate) fn new(shape: &MailboxShape, n: usize) -> Room {
        let MailboxShape { max_tokens, n_in, n_weights, max_rows, n_out } = *shape;
        let after = |at: usize, n: usize| (at + n).next_multiple_of(STEP);
        let head = after(0, HEAD);
        let x = n * OWN;
        let weights = after(x, max_tokens * n_in);
        let ids = after(weights, max_tokens * n_weights);
        let members = after(ids, max_rows);
        let answer = after(members, max_rows * max_tokens.div_ceil(32));
        let len = after(answer, max_tokens * n_out);
        Room { places: Places { x, weights, ids, members, head, answer }, len }
    }
}

impl Places {
    /// These offsets relative to the word `base`.
    fn from(self, base: usize) -> Places {
        let Places { x, weights, ids, members, head, answer } = self;
        let [x, weights, ids, members, answer] =
            [x, weights, ids, members, answer].map(|at| at - base);
        Places { x, weights, ids, members, head, answer }
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
    mailbox.ok_or_else(|| driver("compile", "a mailbox of another backend"))
}

impl<D: Driver> SimtMailbox<D> {
    /// `n` mailboxes that are used one after the other.
    ///
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device.
    pub(crate) fn several(
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
        let room = Room::new(&shape, n);
        let block = Arc::new(Pinned::new(driver, "mailbox", 4 * room.len)?);
        let one = |base: usize| SimtMailbox {
            shape,
            block: Arc::clone(&block),
            base,
            places: room.places.from(base),
            rows: Arc::clone(&rows),
        };
        Ok((0..n).map(|number| one(number * OWN)).collect())
    }

    /// Words of membership per row.
    pub(crate) fn words(&self) -> usize {
        self.shape.max_tokens.div_ceil(32)
    }

    /// Its device address range, from word `at` on.
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

    /// Tokens of the current post.
    pub(crate) fn n_tokens(&self) -> usize {
        (self.flag(0).load(Ordering::Relaxed) as usize).min(self.shape.max_tokens)
    }

    /// Some floats of the current post.
    pub(crate) fn floats(&self, at: usize, n: usize) -> &[f32] {
        self.block.words(self.base + at, n)
    }

    /// Reads its list, which has `held` words of membership per row, into `rows`.
    pub(crate) fn read_rows(&self, held: usize, n_tokens: usize, rows: &mut HostRowSet) {
        let count = (self.flag(COUNT).load(Ordering::Relaxed) as usize).min(self.shape.max_rows);
        rows.words = n_tokens.div_ceil(32);
        rows.ids.clear();
        rows.ids.extend_from_slice(self.block.words(self.base + self.places.ids, count));
        rows.members.clear();
        let members: &[u32] = self.block.words(self.base + self.places.members, count * held);
        for row in members.chunks_exact(held.max(1)) {
            rows.members.extend_from_slice(&row[..rows.words]);
        }
    }

    /// Answers the post of a step.
    pub(crate) fn answer(&self, step: u32, y: &[f32]) {
        let n = y.len().min(self.shape.max_tokens * self.shape.n_out);
        self.block.put(self.base + self.places.answer, &y[..n]);
        self.flag(self.places.head).store(step, Ordering::Release);
    }

    /// Ends the device's waits in this step and all before it.
    pub(crate) fn poison(&self, step: u32) {
        self.flag(self.places.head + 1).store(step, Ordering::Release);
    }

    /// Whether the device's wait timed out in a step.
    pub(crate) fn has_expired(&self, step: u32) -> bool {
        self.flag(self.places.head + 2).load(Ordering::Acquire) == step
    }

    /// Takes the reusable list for reading posts.
    pub(crate) fn take_rows(&self) -> HostRowSet {
        std::mem::take(&mut lock(&self.rows))
    }

    /// Returns the reusable list.
    pub(crate) fn keep_rows(&self, rows: HostRowSet) {
        *lock(&self.rows) = rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_have_flags_of_their_own_and_share_the_rest() {
        let shape = MailboxShape { max_tokens: 33, n_in: 5, n_weights: 3, n_out: 7, max_rows: 9 };
        let (one, three) = (Room::new(&shape, 1), Room::new(&shape, 3));
        assert_eq!(three.len, one.len + 2 * OWN);
        for number in 0..3 {
            let (base, places) = (number * OWN, three.places.from(number * OWN));
            assert!(
                HEAD <= places.head && places.head + HEAD <= OWN && base + OWN <= three.places.x
            );
            let shared = [places.x, places.weights, places.ids, places.members, places.answer];
            assert!(shared.is_sorted() && shared.iter().all(|at| at.is_multiple_of(STEP)));
            assert_eq!(base + places.x, three.places.x);
            assert!(base + places.answer + 33 * 7 <= three.len);
        }
    }
}
