//! Large allocations: separate memory mappings, in huge pages if the system has them, spread over
//! NUMA nodes.
//!
//! Only Linux gives huge pages to a program that asks. Windows has them for users with the right to lock pages, which an
//! administrator gives, and takes their memory at once and for good; macOS has none on Apple silicon, whose pages have
//! 16 KiB, a quarter of the entries that 4 KiB need.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::thread;

use memmap2::MmapMut;

use crate::affinity::BoundThread;
use crate::thread_pool::node_range;

/// Minimum bytes of an allocation that gets its own memory mapping.
pub(crate) const LARGE: usize = 4 << 20;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Bytes of the smallest page.
const PAGE: usize = 4096;

/// Zeroed memory, which the system allocates page by page on first access.
#[derive(Debug)]
pub(crate) struct Pages {
    map: MmapMut,
    shift: usize,
}

impl Pages {
    /// Allocates `len` bytes that begin on a huge page.
    ///
    /// # Errors
    /// The error of the system call.
    pub(crate) fn new(len: usize) -> io::Result<Pages> {
        let padded_len = len.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapMut::map_anon(padded_len)?;
        let shift = map.as_ptr().align_offset(HUGE);
        // Only whole huge pages are advised: a partial last page would take more memory than
        // requested. A system without huge pages returns an error and uses small pages.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, shift, len / HUGE * HUGE);
        Ok(Pages { map, shift })
    }

    /// The allocated bytes, and padding after them.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.map[self.shift..]
    }

    /// [`Self::as_slice`], writable.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.map[self.shift..]
    }

    pub(crate) fn start(&mut self) -> NonNull<u8> {
        NonNull::from(self.bytes()).cast()
    }
}

/// Calls `touch` for each node's range of `0..len` on a thread bound to the node's CPUs: the system
/// places a page on the node of the thread that first touches the page. [`node_range`] splits the
/// pages as it splits chunks.
pub(crate) fn for_each_node(len: usize, nodes: &[Vec<usize>], touch: impl Fn(Range<usize>) + Sync) {
    let n_pages = len.div_ceil(PAGE);
    let touch_node = |node: usize, cpus: &[usize]| {
        let _bound = BoundThread::new(cpus);
        let pages = node_range(n_pages, node, nodes.len());
        touch((pages.start * PAGE).min(len)..(pages.end * PAGE).min(len));
    };
    let touch_node = &touch_node;
    thread::scope(|scope| {
        for (node, cpus) in nodes.iter().enumerate() {
            let start = thread::Builder::new().spawn_scoped(scope, move || touch_node(node, cpus));
            // If the system refuses a thread, this one is bound to the node for a moment.
            if start.is_err() {
                touch_node(node, cpus);
            }
        }
    });
}

/// Offset of the first byte of each page of `range`.
pub(crate) fn page_offsets(range: Range<usize>) -> impl Iterator<Item = usize> {
    range.step_by(PAGE)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn large_allocations_are_aligned_zeros() {
        for len in [LARGE, LARGE + 1, 3 * HUGE - 1] {
            let mut pages = Pages::new(len).unwrap();
            assert!(pages.start().as_ptr().addr().is_multiple_of(HUGE));
            assert!(pages.map.len() - pages.shift >= len);
            assert!(pages.map.iter().all(|&byte| byte == 0));
        }
        assert!(Pages::new(usize::MAX).is_err());
        assert!(Pages::new(usize::MAX / 2).is_err());
    }

    #[test]
    fn each_byte_is_touched_by_one_node() {
        for (len, n_nodes) in [(0, 2), (1, 3), (PAGE * 7 + 5, 2), (PAGE * 2, 4), (PAGE * 9, 1)] {
            let seen = Mutex::new(Vec::new());
            let nodes = vec![Vec::new(); n_nodes];
            for_each_node(len, &nodes, |range| seen.lock().unwrap().push(range));
            let mut seen = seen.into_inner().unwrap();
            seen.sort_by_key(|range| (range.start, range.end));
            assert_eq!(seen.len(), n_nodes);
            assert_eq!(
                seen.into_iter().flatten().collect::<Vec<_>>(),
                (0..len).collect::<Vec<_>>()
            );
        }
        assert_eq!(page_offsets(0..PAGE * 2 + 1).collect::<Vec<_>>(), [0, PAGE, PAGE * 2]);
    }
}
