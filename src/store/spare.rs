//! Memory of evicted units, which moves to the addresses of the units that are read next.
//!
//! New memory from the system is accounted, cleared and mapped page by page, which takes several
//! times as long as reading the page. Moving it costs the kernel a *mapping* for each range that
//! was moved, and a process may have a limited number of mappings (`vm.max_map_count`), so ranges
//! that exceed a share of the limit are returned to the system instead.

use std::collections::HashSet;
use std::ops::Range;

use hal::Bytes;

use crate::reader::{Backing, huge_pages};
use crate::region::{HUGE, PAGE};

/// Mappings that Linux allows by default.
const USUAL_MAPPINGS: usize = 65_530;

/// Bytes of the shortest range that is moved to a longer one; shorter ones are not worth a mapping.
const LEAST: u64 = 64 << 10;

/// Whole pages with memory that no unit uses.
#[derive(Clone, Debug)]
struct Spare {
    file: usize,
    pages: Range<u64>,
}

impl Spare {
    fn ends(&self) -> [(usize, u64); 2] {
        [(self.file, self.pages.start), (self.file, self.pages.end)]
    }

    fn len(&self) -> u64 {
        self.pages.end - self.pages.start
    }

    /// Whether the memory is in huge pages, if the system has them.
    fn is_huge(&self) -> bool {
        self.pages.start.is_multiple_of(HUGE) && self.pages.end.is_multiple_of(HUGE)
    }
}

/// The spare memory of a store.
#[derive(Debug)]
pub(crate) struct SparePages {
    ranges: Vec<Spare>,
    /// Ends of all ranges that were moved or advised: there is at most one mapping between two.
    cuts: HashSet<(usize, u64)>,
    max_cuts: usize,
    /// Whether the system can move pages.
    moves: bool,
}

impl SparePages {
    pub(crate) fn new() -> SparePages {
        SparePages::with_limit(max_mappings() / 4 * 3)
    }

    /// No more than `max_cuts` ends of moved ranges.
    pub(crate) fn with_limit(max_cuts: usize) -> SparePages {
        SparePages { ranges: Vec::new(), cuts: HashSet::new(), max_cuts, moves: true }
    }

    /// Adds the memory of an evicted unit's `range`, except pages that may have bytes of others.
    pub(crate) fn put(&mut self, file: usize, range: &Range<u64>) {
        self.ranges.extend(own_pages(range).map(|pages| Spare { file, pages }));
    }

    /// Gives spare memory to a unit's `range`, which has none yet, as far as it lasts. Returns the
    /// number of bytes.
    pub(crate) fn fill(&mut self, backings: &[Backing], file: usize, range: &Range<u64>) -> Bytes {
        let mut moved = 0;
        for pages in own_pages(range) {
            // The unit's own memory, if it was evicted last.
            let own = |spare: &mut Spare| spare.file == file && pages.contains(&spare.pages.start);
            let kept: u64 = self.ranges.extract_if(.., own).map(|spare| spare.len()).sum();
            if kept > 0 {
                moved += kept;
                continue;
            }
            let mut rest = Spare { file, pages };
            if rest.is_huge() && self.may_cut([rest.ends()]) {
                backings[file].region.advise_huge(rest.pages.clone());
            }
            while rest.len() > 0 {
                let Some((from, to)) = self.take_for(&rest) else { break };
                let (source, target) = (&backings[from.file].region, &backings[file].region);
                let (len, start) = (from.len(), to.pages.start);
                if source.move_pages(from.pages.clone(), target, start) {
                    moved += len;
                    rest.pages.start += len;
                } else {
                    self.moves = false;
                    self.ranges.push(from);
                }
            }
        }
        Bytes(moved)
    }

    /// Memory that no unit uses.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.ranges.iter().map(Spare::len).sum())
    }

    /// Returns memory to the system until at most `room` bytes are left.
    pub(crate) fn shrink(&mut self, backings: &[Backing], room: u64) {
        let mut left = self.bytes().0;
        while left > room && !self.ranges.is_empty() {
            let Spare { file, pages } = self.ranges.remove(0);
            left -= pages.end - pages.start;
            backings[file].region.release(pages);
        }
    }

    /// Takes memory for the beginning of `wanted`, and its addresses there: if possible a range of
    /// the same length, whose move needs no new ends later, else one of the same page size.
    fn take_for(&mut self, wanted: &Spare) -> Option<(Spare, Spare)> {
        if !self.moves {
            return None;
        }
        let rank = |spare: &Spare| {
            (spare.len() == wanted.len(), spare.is_huge() == wanted.is_huge(), spare.len())
        };
        let mut order: Vec<usize> = (0..self.ranges.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(rank(&self.ranges[at])));
        for at in order {
            let Spare { file, pages } = self.ranges[at].clone();
            let len = wanted.len().min(pages.end - pages.start);
            if len < wanted.len().min(LEAST) {
                continue;
            }
            let from = Spare { file, pages: pages.start..pages.start + len };
            let to_end = wanted.pages.start + len;
            let to = Spare { file: wanted.file, pages: wanted.pages.start..to_end };
            if self.may_cut([from.ends(), to.ends()]) {
                self.ranges[at].pages.start += len;
                if self.ranges[at].len() == 0 {
                    self.ranges.remove(at);
                }
                return Some((from, to));
            }
        }
        None
    }

    /// Counts the ends of ranges, if the limit allows them.
    fn may_cut<const N: usize>(&mut self, ends: [[(usize, u64); 2]; N]) -> bool {
        let new = ends.iter().flatten().filter(|cut| !self.cuts.contains(cut)).count();
        let allowed = self.cuts.len() + new <= self.max_cuts;
        if allowed {
            self.cuts.extend(ends.into_iter().flatten());
        }
        allowed || new == 0
    }
}

/// The whole pages that have only bytes of `range`, in parts: small pages, huge pages, small pages.
fn own_pages(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let all = range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
    let huge = huge_pages(range);
    let huge = if huge.is_empty() { all.end..all.end } else { huge };
    let parts = [all.start..huge.start, huge.clone(), huge.end..all.end];
    parts.into_iter().filter(|pages| !pages.is_empty())
}

/// The number of mappings that a process may have.
fn max_mappings() -> usize {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    limit.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_MAPPINGS)
}
