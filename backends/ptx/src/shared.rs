//! Shared memory of a block. Every access is compared with those since the last barrier: a word that
//! one thread writes and another accesses, without a barrier between, is a race, also within a warp.
//!
//! One order within a warp needs no barrier: lanes read a word, the whole warp exchanges values that
//! depend on it, then a lane writes the word. The exchange has the values of all lanes only once each
//! has read. (The other direction, a write before an exchange and a read behind it, is a race.) And
//! lanes of one warp may write the same value to a word: whichever is last, the word has it.

use crate::fault::FaultKind;
use crate::module::SHARED_BASE;
use crate::registers::LANES;

/// Several threads.
const MANY: u16 = u16::MAX;

/// The last accesses of a word.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    /// Times of the last write and the last read: numbers of barriers.
    written: u32,
    read: u32,
    /// Their threads.
    writer: u16,
    reader: u16,
    /// The warp of all writers since the last barrier, or `MANY`.
    writing_warp: u16,
    /// Whether the last write was atomic.
    is_atomic: bool,
    /// The warp of all readers since the last barrier, or `MANY`, and the number of exchanges so far at
    /// the last read.
    reading_warp: u16,
    read_after: u32,
}

/// What a thread does with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// Writes the value that the word has.
    Rewrite,
    Atomic,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    bytes: Vec<u8>,
    words: Vec<Word>,
    /// Number of barriers so far, of all blocks, and at the start of this block.
    now: u32,
    start: u32,
    /// Number of exchanges of this block so far, and for each warp the number with its last one.
    n_exchanges: u32,
    exchanged: Vec<u32>,
}

impl Shared {
    /// Begins a block with `size` bytes, none of them written.
    pub(crate) fn start(&mut self, size: u64, n_warps: usize) {
        self.bytes.resize(size.next_multiple_of(4) as usize, 0);
        self.words.resize(self.bytes.len() / 4, Word::default());
        self.now += 1;
        self.start = self.now;
        (self.n_exchanges, self.exchanged) = (0, vec![0; n_warps]);
    }

    /// A whole warp exchanges values.
    pub(crate) fn exchange(&mut self, warp: usize) {
        self.n_exchanges += 1;
        self.exchanged[warp] = self.n_exchanges;
    }

    pub(crate) fn barrier(&mut self) {
        self.now += 1;
    }

    /// Checks an access of some bytes and returns the offset.
    #[inline]
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Result<usize, FaultKind> {
        let offset = address.wrapping_sub(SHARED_BASE);
        let size = self.bytes.len() as u64;
        if offset >= size || bytes > size - offset {
            let at = offset.cast_signed();
            return Err(FaultKind::Shared(format!(
                "an access of {bytes} bytes at byte {at} of {size}"
            )));
        }
        if !offset.is_multiple_of(bytes) {
            return Err(FaultKind::Shared(format!(
                "an access of {bytes} bytes at byte {offset}, which is misaligned"
            )));
        }
        Ok(offset as usize)
    }

    /// Notes what a thread does with the word at an offset.
    #[inline]
    pub(crate) fn note(&mut self, offset: usize, thread: u16, how: Use) -> Result<(), FaultKind> {
        let (now, start, warp) = (self.now, self.start, thread / LANES as u16);
        let exchanged = self.exchanged[usize::from(warp)];
        let word = &mut self.words[offset / 4];
        let other_wrote = word.written == now && word.writer != thread;
        let other_read = word.read == now
            && word.reader != thread
            && (word.reading_warp != warp || word.read_after >= exchanged);
        match how {
            Use::Read => {
                if word.written < start {
                    return Err(FaultKind::Shared(format!(
                        "byte {offset} is read and was not written"
                    )));
                }
                if other_wrote {
                    return Err(race(offset, thread, word.writer, "reads", "wrote"));
                }
                // Reads before the warp's last exchange are complete.
                let is_settled = word.reading_warp == warp && word.read_after < exchanged;
                let is_first = word.read != now || is_settled;
                word.reader = if is_first || word.reader == thread { thread } else { MANY };
                let same_warp = is_first || word.reading_warp == warp;
                word.reading_warp = if same_warp { warp } else { MANY };
                (word.read, word.read_after) = (now, self.n_exchanges);
            }
            Use::Write | Use::Rewrite => {
                let is_same = how == Use::Rewrite && word.writing_warp == warp && !word.is_atomic;
                if other_wrote && !is_same {
                    return Err(race(offset, thread, word.writer, "writes", "wrote"));
                }
                if other_read {
                    return Err(race(offset, thread, word.reader, "writes", "read"));
                }
                word.writer = if other_wrote { MANY } else { thread };
                (word.written, word.writing_warp, word.is_atomic) = (now, warp, false);
            }
            Use::Atomic => {
                if word.written < start {
                    return Err(FaultKind::Shared(format!(
                        "byte {offset} is changed and was not written"
                    )));
                }
                if other_wrote && !word.is_atomic {
                    return Err(race(offset, thread, word.writer, "changes", "wrote"));
                }
                if other_read {
                    return Err(race(offset, thread, word.reader, "changes", "read"));
                }
                word.writer = if other_wrote { MANY } else { thread };
                (word.written, word.writing_warp, word.is_atomic) = (now, MANY, true);
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn read(&self, offset: usize, bytes: usize) -> u64 {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&self.bytes[offset..offset + bytes]);
        u64::from_le_bytes(value)
    }

    /// Whether the lowest `bytes` bytes of `value` stand at an offset.
    #[inline]
    pub(crate) fn has(&self, offset: usize, bytes: usize, value: u64) -> bool {
        self.bytes[offset..offset + bytes] == value.to_le_bytes()[..bytes]
    }

    #[inline]
    pub(crate) fn write(&mut self, offset: usize, bytes: usize, value: u64) {
        self.bytes[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
}

fn race(offset: usize, thread: u16, other: u16, does: &str, did: &str) -> FaultKind {
    let other =
        if other == MANY { "several threads".to_owned() } else { format!("thread {other}") };
    FaultKind::Race(format!(
        "thread {thread} {does} byte {offset} of shared memory, which {other} {did} since the last barrier"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_separates_accesses() {
        let mut shared = Shared::default();
        shared.start(16, 4);
        assert!(matches!(shared.note(0, 1, Use::Read), Err(FaultKind::Shared(_))));
        shared.note(0, 1, Use::Write).expect("first");
        shared.note(0, 1, Use::Read).expect("its own");
        assert!(matches!(shared.note(0, 2, Use::Read), Err(FaultKind::Race(_))));
        shared.barrier();
        shared.note(0, 2, Use::Read).expect("behind the barrier");
        shared.note(0, 3, Use::Read).expect("two readers");
        assert!(matches!(shared.note(0, 2, Use::Write), Err(FaultKind::Race(_))));
        shared.barrier();
        shared.note(0, 1, Use::Atomic).expect("first");
        shared.note(0, 2, Use::Atomic).expect("atomics do not race");
        assert!(matches!(shared.note(0, 2, Use::Read), Err(FaultKind::Race(_))));
        shared.start(16, 4);
        assert!(matches!(shared.note(0, 1, Use::Read), Err(FaultKind::Shared(_))), "another block");
    }

    #[test]
    fn an_exchange_orders_reads_before_writes_of_its_warp() {
        let mut shared = Shared::default();
        shared.start(16, 4);
        shared.note(0, 1, Use::Write).expect("first");
        shared.barrier();
        for thread in 0..32 {
            shared.note(0, thread, Use::Read).expect("many readers");
        }
        assert!(matches!(shared.note(0, 0, Use::Write), Err(FaultKind::Race(_))));
        shared.exchange(1);
        assert!(matches!(shared.note(0, 0, Use::Write), Err(FaultKind::Race(_))), "another warp");
        shared.exchange(0);
        shared.note(0, 0, Use::Write).expect("behind the exchange");
        shared.exchange(0);
        assert!(matches!(shared.note(0, 1, Use::Read), Err(FaultKind::Race(_))), "no barrier");
        shared.barrier();
        shared.note(0, 33, Use::Read).expect("behind the barrier");
        shared.note(0, 0, Use::Read).expect("behind the barrier");
        shared.exchange(0);
        assert!(matches!(shared.note(0, 0, Use::Write), Err(FaultKind::Race(_))), "two warps");
    }

    #[test]
    fn lanes_of_a_warp_may_write_the_same_value() {
        let mut shared = Shared::default();
        shared.start(16, 4);
        for thread in [0, 4, 8, 4] {
            shared.note(0, thread, Use::Rewrite).expect("the same value");
        }
        assert!(matches!(shared.note(0, 12, Use::Write), Err(FaultKind::Race(_))), "another value");
        assert!(
            matches!(shared.note(0, 32, Use::Rewrite), Err(FaultKind::Race(_))),
            "another warp"
        );
        assert!(matches!(shared.note(0, 4, Use::Read), Err(FaultKind::Race(_))), "no barrier");
        shared.barrier();
        shared.note(0, 40, Use::Read).expect("behind the barrier");
    }

    #[test]
    fn a_lane_may_read_again_behind_an_exchange_and_write() {
        let mut shared = Shared::default();
        shared.start(16, 4);
        shared.note(0, 1, Use::Write).expect("first");
        shared.barrier();
        for thread in 0..32 {
            shared.note(0, thread, Use::Read).expect("many readers");
        }
        shared.exchange(0);
        shared.note(0, 0, Use::Read).expect("again");
        shared.note(0, 0, Use::Write).expect("the only reader since the exchange");
        shared.barrier();
        shared.note(0, 0, Use::Read).expect("behind the barrier");
        shared.exchange(0);
        shared.note(0, 5, Use::Read).expect("again");
        assert!(matches!(shared.note(0, 0, Use::Write), Err(FaultKind::Race(_))), "lane 5 reads");
    }

    #[test]
    fn accesses_stay_inside_and_aligned() {
        let mut shared = Shared::default();
        shared.start(16, 4);
        assert_eq!(shared.check(SHARED_BASE + 12, 4), Ok(12));
        for (at, bytes) in [
            (SHARED_BASE + 12, 8),
            (SHARED_BASE + 16, 4),
            (0, 4),
            (SHARED_BASE - 4, 8),
            (SHARED_BASE + 8, 16),
        ] {
            assert!(shared.check(at, bytes).is_err(), "{at} {bytes}");
        }
    }
}
