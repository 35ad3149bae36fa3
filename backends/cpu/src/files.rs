//! Reads the small text files of `/proc` and `/sys`. Tests replace the root directory.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Maximum number of bytes read from a file.
const MAX_BYTES: u64 = 1 << 20;
/// CPU numbers of at least this value are invalid.
pub(crate) const MAX_CPUS: usize = 8192;

/// The text of a file, up to [`MAX_BYTES`]; `None` if the file cannot be read.
pub(crate) fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The number in a file; `None` if the file cannot be read or is not a number.
pub(crate) fn read_number(path: &Path) -> Option<u64> {
    read_text(path)?.trim().parse().ok()
}

/// Parses a list of CPUs in the kernel's notation, such as `0-3,8,10-11`; `None` if any item is
/// invalid.
pub(crate) fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for item in text.trim().split(',').filter(|item| !item.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpu_list("5,1-2,1"), Some(vec![1, 2, 5]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        for wrong in ["3-1", "0-99999999999999999999", "0-8192", "a", "1;2", "-1", "0-"] {
            assert_eq!(cpu_list(wrong), None, "{wrong}");
        }
    }
}
