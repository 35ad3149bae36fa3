//! Small text files in which the system describes itself, below a root that tests can replace.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes past this limit are not read.
const LONGEST: u64 = 1 << 20;
/// CPU numbers from here on are treated as invalid.
pub(crate) const MAX_CPUS: usize = 8192;

/// A file's text, up to the length limit.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A file that holds one number.
pub(crate) fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// Parses a list of CPUs as the kernel writes it: `0-3,8,10-11`. `None` if any part is invalid.
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
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpu_list("5,1-2,1"), Some(vec![1, 2, 5]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        for wrong in ["3-1", "0-99999999999999999999", "0-8192", "a", "1;2", "-1", "0-"] {
            assert_eq!(cpu_list(wrong), None, "{wrong}");
        }
    }
}
