//! The mapped files and unfinished outputs of this process, for a handler of SIGBUS.
//!
//! The system sends SIGBUS to a thread that reads a mapped file whose end was cut off or whose disk
//! fails. A handler may neither lock nor allocate, so both lists consist of atomics and only grow:
//! a dropped entry stays and is used again. On Windows such a read raises the exception
//! `EXCEPTION_IN_PAGE_ERROR`, whose handler uses the same lists.

use std::ops::Range;
use std::path::{self, Path};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Bytes of a name with its terminating zero. The start of a longer name is left out of messages;
/// an output with a longer path is not removed.
const MAX_NAME: usize = 1024;

/// The message of a program that cannot go on, before the file's name and after it.
pub const LOST: &str = "error: the file was shortened or cannot be read while in use: ";
/// As [`LOST`].
pub const LOST_HELP: &str = "\nhelp: leave the file as it is until the program ends; if it was not changed, check its disk or network\n";

static MAPPED: List = List(OnceLock::new());
static UNFINISHED: List = List(OnceLock::new());
/// Whether the process is about to exit.
static EXITS: AtomicBool = AtomicBool::new(false);

/// Nothing; the entry may be used again.
const FREE: u8 = 0;
/// A thread changes the entry.
const CHANGING: u8 = 1;
const LIVE: u8 = 2;
/// Given out, so it stays as it is.
const CLAIMED: u8 = 3;

struct List(OnceLock<&'static Entry>);

struct Entry {
    state: AtomicU8,
    start: AtomicUsize,
    end: AtomicUsize,
    /// Device and number of the file.
    identity: [AtomicU64; 2],
    /// Ends with a zero.
    name: [AtomicU8; MAX_NAME],
    next: OnceLock<&'static Entry>,
}

/// Keeps an entry of a list until it is dropped.
pub(super) struct Registered(&'static Entry);

impl List {
    fn entries(&self) -> impl Iterator<Item = &'static Entry> {
        std::iter::successors(self.0.get().copied(), |entry| entry.next.get().copied())
    }

    fn add(&self, range: Range<usize>, identity: (u64, u64), name: &[u8]) -> Registered {
        let mut end = &self.0;
        loop {
            let entry = *end.get_or_init(|| Box::leak(Box::new(Entry::new())));
            let free =
                entry.state.compare_exchange(FREE, CHANGING, Ordering::Acquire, Ordering::Relaxed);
            if free.is_ok() {
                entry.start.store(range.start, Ordering::Relaxed);
                entry.end.store(range.end, Ordering::Relaxed);
                entry.identity[0].store(identity.0, Ordering::Relaxed);
                entry.identity[1].store(identity.1, Ordering::Relaxed);
                for (to, &byte) in entry.name.iter().zip(name.iter().chain([&0])) {
                    to.store(byte, Ordering::Relaxed);
                }
                entry.state.store(LIVE, Ordering::Release);
                return Registered(entry);
            }
            end = &entry.next;
        }
    }
}

impl Entry {
    fn new() -> Entry {
        Entry {
            state: AtomicU8::new(FREE),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            identity: [const { AtomicU64::new(0) }; 2],
            name: [const { AtomicU8::new(0) }; MAX_NAME],
            next: OnceLock::new(),
        }
    }

    /// Makes a live entry a claimed one; returns the state before.
    fn claim(&self) -> u8 {
        let claimed =
            self.state.compare_exchange(LIVE, CLAIMED, Ordering::AcqRel, Ordering::Acquire);
        match claimed {
            Ok(before) => before,
            Err(CLAIMED) => CLAIMED,
            Err(_) => FREE,
        }
    }
}

impl Registered {
    /// Whether the process ends, so that nothing removes a file that is created from now on.
    pub(super) fn is_claimed(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == CLAIMED
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A claimed entry stays as it is: a handler reads it, and the process ends.
        let _ = self.0.state.compare_exchange(LIVE, FREE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registered")
    }
}

/// Records that `bytes` are mapped from the file at `path` with this identity, if it has one.
pub(super) fn register_mapping(
    bytes: &[u8],
    identity: Option<(u64, u64)>,
    path: &Path,
) -> Registered {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let name: String = path.display().to_string().chars().map(printable).collect();
    let mut start = (name.len() + 1).saturating_sub(MAX_NAME);
    while !name.is_char_boundary(start) {
        start += 1;
    }
    let bytes = bytes.as_ptr_range();
    let range = bytes.start.addr()..bytes.end.addr();
    MAPPED.add(range, identity.unwrap_or_default(), &name.as_bytes()[start..])
}

/// Whether this process has mapped the file with this identity.
pub(super) fn is_mapped(identity: (u64, u64)) -> bool {
    MAPPED.entries().any(|entry| {
        let live = entry.state.load(Ordering::Acquire) == LIVE;
        let [device, number] = entry.identity.each_ref().map(|part| part.load(Ordering::Relaxed));
        live && (device, number) == identity
    })
}

/// Records the temporary file of an output, before it is created; `None` if its path is too long.
pub(super) fn register_unfinished(path: &Path) -> Option<Registered> {
    while EXITS.load(Ordering::Acquire) {
        std::thread::park();
    }
    let path = path::absolute(path).ok()?;
    let name = path.as_os_str().as_encoded_bytes();
    let fits = name.len() < MAX_NAME && !name.contains(&0);
    fits.then(|| UNFINISHED.add(0..0, (0, 0), name))
}

/// A name as bytes up to a zero, which stays as it is for the rest of the process.
pub type Name = &'static [AtomicU8];

/// The mapped file that has `address`, by its path without control characters. Neither locks nor
/// allocates, so a signal handler may call it.
pub fn mapped_file(address: usize) -> Option<Name> {
    MAPPED.entries().find_map(|entry| {
        let range = entry.start.load(Ordering::Acquire)..entry.end.load(Ordering::Acquire);
        let claims = range.contains(&address) && entry.claim() != FREE;
        claims.then_some(entry.name.as_slice())
    })
}

/// The temporary files of all unfinished outputs, to be removed by a process that ends at once.
/// Neither locks nor allocates, so a signal handler may call it. Each path is given out once.
pub fn claim_unfinished() -> impl Iterator<Item = Name> {
    let live = |entry: &&Entry| entry.claim() == LIVE;
    UNFINISHED.entries().filter(live).map(|entry| entry.name.as_slice())
}

/// Removes the temporary files of all unfinished outputs, before a process that exits at once. Other
/// threads begin no output any more.
pub fn remove_unfinished() {
    EXITS.store(true, Ordering::Release);
    for name in claim_unfinished() {
        let bytes = name.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|b| *b != 0);
        let bytes: Vec<u8> = bytes.collect();
        let _ = std::fs::remove_file(to_path(bytes));
    }
}

#[cfg(unix)]
fn to_path(bytes: Vec<u8>) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(not(unix))]
fn to_path(bytes: Vec<u8>) -> std::path::PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: Name) -> String {
        let bytes = name.iter().map(|byte| byte.load(Ordering::Relaxed));
        String::from_utf8(bytes.take_while(|&byte| byte != 0).collect()).unwrap()
    }

    #[test]
    fn a_mapping_is_found_by_each_of_its_addresses_until_it_ends() {
        let bytes = [0; 100];
        let at = bytes.as_ptr().addr();
        let first = register_mapping(&bytes[..50], None, Path::new("a.gguf"));
        assert!(mapped_file(at + 50).is_none() && mapped_file(0).is_none());
        drop(first);
        assert!(mapped_file(at).is_none());
        let name = "é".repeat(MAX_NAME) + "\u{1b}[2J.gguf";
        let _second = register_mapping(&bytes[50..], None, Path::new(&name));
        let found = text(mapped_file(at + 99).unwrap());
        assert!(found.starts_with('é') && found.ends_with("é?[2J.gguf"), "{found}");
        assert_eq!(text(mapped_file(at + 50).unwrap()), found, "two threads may read it at once");
    }

    #[test]
    fn each_unfinished_output_is_given_out_once() {
        let list = List(OnceLock::new());
        let entries = || list.entries().count();
        let (a, b) = (list.add(0..0, (0, 0), b"/a"), list.add(0..0, (0, 0), b"/b"));
        drop(a);
        let c = list.add(0..0, (0, 0), b"/c");
        assert_eq!(entries(), 2, "the free entry is used again");
        assert!(!c.is_claimed());
        assert_eq!((c.0.claim(), c.0.claim(), b.0.claim()), (LIVE, CLAIMED, LIVE));
        assert!(c.is_claimed());
        drop((b, c));
        let _d = list.add(0..0, (0, 0), b"/d");
        assert_eq!(entries(), 3, "a claimed entry stays");
    }
}
