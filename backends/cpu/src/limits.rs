//! Limits of one process on Linux: its address space (`ulimit -v`), its data (`ulimit -d`), and the
//! memory that the system still promises if it never promises more than it has.

use std::path::Path;

use crate::files::{read_number, read_text};

/// Bytes that this process may still allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessLimit {
    /// The smallest limit.
    pub(crate) total: u64,
    /// The smallest difference between a limit and its use. Mapped files count as used.
    pub(crate) free: u64,
}

/// The limits of this process; `None` without a limit.
pub(crate) fn process_limit(root: &Path) -> Option<ProcessLimit> {
    let limits = read_text(&root.join("proc/self/limits")).unwrap_or_default();
    let status = read_text(&root.join("proc/self/status")).unwrap_or_default();
    let own = [("Max address space", "VmSize:"), ("Max data size", "VmData:")];
    let own = own.into_iter().filter_map(|(limit, used)| {
        let total = soft_limit(&limits, limit)?;
        let used = kibibytes(&status, used).unwrap_or(0);
        Some(ProcessLimit { total, free: total.saturating_sub(used) })
    });
    own.chain(commit_limit(root))
        .reduce(|a, b| ProcessLimit { total: a.total.min(b.total), free: a.free.min(b.free) })
}

/// The memory that the system promises with `vm.overcommit_memory=2`; `None` in other modes.
fn commit_limit(root: &Path) -> Option<ProcessLimit> {
    if read_number(&root.join("proc/sys/vm/overcommit_memory"))? != 2 {
        return None;
    }
    let text = read_text(&root.join("proc/meminfo"))?;
    let total = kibibytes(&text, "CommitLimit:")?;
    let promised = kibibytes(&text, "Committed_AS:")?;
    Some(ProcessLimit { total, free: total.saturating_sub(promised) })
}

/// The soft limit in a line of `/proc/self/limits`; `None` for `unlimited`.
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The bytes of a line such as `VmSize:   5 kB`.
pub(crate) fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::Machine;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
        Max data size             unlimited            unlimited            bytes     \n\
        Max address space         2048000              unlimited            bytes     \n";

    fn found(files: &[(&str, &str)]) -> Option<(u64, u64)> {
        let machine = Machine::new(files);
        process_limit(machine.root()).map(|limit| (limit.total / 1024, limit.free / 1024))
    }

    #[test]
    fn the_address_space_and_the_data_of_a_process_are_limits() {
        let status =
            ("proc/self/status", "VmPeak:\t 1800 kB\nVmSize:\t 1500 kB\nVmData:\t 40 kB\n");
        assert_eq!(found(&[("proc/self/limits", LIMITS), status]), Some((2000, 500)));
        let data = LIMITS.replace("size             unlimited", "size             102400   ");
        assert_eq!(found(&[("proc/self/limits", &data), status]), Some((100, 60)));
        let small = LIMITS.replace("2048000", "1024   ");
        assert_eq!(found(&[("proc/self/limits", &small), status]), Some((1, 0)));
        let none = LIMITS.replace("2048000", "unlimited");
        assert_eq!(found(&[("proc/self/limits", &none), status]), None);
        for text in ["", "Max address space\n", "Max address space -1\n", "\0"] {
            assert_eq!(found(&[("proc/self/limits", text), status]), None, "{text:?}");
        }
    }

    #[test]
    fn promised_memory_is_a_limit_only_where_the_system_keeps_it() {
        let memory = ("proc/meminfo", "CommitLimit: 900 kB\nCommitted_AS: 700 kB\n");
        let mode = |mode| [("proc/sys/vm/overcommit_memory", mode), memory];
        assert_eq!(found(&mode("2\n")), Some((900, 200)));
        assert_eq!(found(&mode("0\n")), None);
        assert_eq!(found(&mode("1\n")), None);
        assert_eq!(found(&[mode("2\n")[0], ("proc/meminfo", "CommitLimit: 5 kB\n")]), None);
    }
}
