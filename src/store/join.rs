//! Joins reads that are close to each other.

use crate::reader::{BLOCK, Part, pages};

/// Maximum number of bytes between two rows that are read together: a disk that reads 1 to 3 GB/s
/// in large blocks and does 15,000 to 100,000 reads a second passes over that many bytes in the
/// time of a read.
const JOINED_GAP: u64 = 32 << 10;

/// Groups parts of files into the fewest reads: for each read, the number of the file and its
/// parts.
pub(crate) fn join(mut parts: Vec<(usize, Part)>) -> Vec<(usize, Vec<Part>)> {
    parts.sort_unstable_by_key(|(file, part)| (*file, part.from.start));
    let mut reads: Vec<(usize, Vec<Part>)> = Vec::new();
    for (file, part) in parts {
        match reads.last_mut() {
            Some((same, parts)) if *same == file && joins(parts, &part) => parts.push(part),
            _ => reads.push((file, vec![part])),
        }
    }
    reads
}

/// Whether a read of `parts` goes on to `next`: one read of both is faster than two.
fn joins(parts: &[Part], next: &Part) -> bool {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
    let span = pages(&(first.from.start..next.from.end));
    next.from.start.saturating_sub(last.from.end) <= JOINED_GAP && span.end - span.start <= BLOCK
}
