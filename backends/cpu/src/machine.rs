//! Processor name and memory size, as the system reports them.

use std::path::Path;

use hal::{Bytes, MemoryReport};

use crate::cgroup;
use crate::files::read_text;
use crate::limits::{kibibytes, process_limit};

#[cfg(target_vendor = "apple")]
use crate::macos as system;
#[cfg(windows)]
use crate::windows as system;

/// Linux says everything in files.
#[cfg(not(any(windows, target_vendor = "apple")))]
mod system {
    use hal::MemoryReport;

    use crate::topology::Topology;

    pub(crate) fn memory() -> Option<MemoryReport> {
        None
    }

    pub(crate) fn processor() -> Option<String> {
        None
    }

    pub(crate) fn topology() -> Option<Topology> {
        None
    }
}

pub(crate) use system::topology;

/// Total and free memory that this process may use; on Linux, within the limits of its container and
/// its own.
pub(crate) fn memory() -> MemoryReport {
    memory_beside(Bytes(0))
}

/// As the CPU's memory report, for a need that includes `mapped` bytes which this process has
/// mapped already: its own limits count them as used.
#[must_use]
pub fn memory_beside(mapped: Bytes) -> MemoryReport {
    system::memory().unwrap_or_else(|| memory_below(Path::new("/"), mapped))
}

fn memory_below(root: &Path, mapped: Bytes) -> MemoryReport {
    let text = read_text(&root.join("proc/meminfo")).unwrap_or_default();
    let (mut total, mut free) =
        (meminfo_field(&text, "MemTotal:"), meminfo_field(&text, "MemAvailable:"));
    let within = |amount: Option<Bytes>, limit| amount.map(|bytes| bytes.min(Bytes(limit)));
    if let Some(limit) = cgroup::memory_limit(root) {
        (total, free) = (within(total, limit.total), within(free, limit.free));
    }
    if let Some(limit) = process_limit(root) {
        let room = limit.free.saturating_add(mapped.0);
        (total, free) = (within(total, limit.total), within(free, room));
    }
    MemoryReport { total, free }
}

fn meminfo_field(text: &str, name: &str) -> Option<Bytes> {
    kibibytes(text, name).map(Bytes)
}

/// The processor's name, if the system reports it.
pub(crate) fn processor() -> Option<String> {
    if let Some(name) = system::processor() {
        return Some(name);
    }
    let text = read_text(Path::new("/proc/cpuinfo"))?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::Machine;

    #[test]
    fn meminfo_fields_are_read() {
        let text = "MemTotal:       24000 kB\nMemFree:  5 kB\nMemAvailable:   7 kB\nOdd: 3\n";
        assert_eq!(meminfo_field(text, "MemTotal:"), Some(Bytes(24000 * 1024)));
        assert_eq!(meminfo_field(text, "MemAvailable:"), Some(Bytes(7 * 1024)));
        assert_eq!(meminfo_field(text, "Odd:"), None);
        assert_eq!(meminfo_field("", "MemTotal:"), None);
    }

    fn report(files: &[(&str, &str)]) -> (Option<u64>, Option<u64>) {
        report_beside(files, Bytes(0))
    }

    fn report_beside(files: &[(&str, &str)], mapped: Bytes) -> (Option<u64>, Option<u64>) {
        let machine =
            Machine::new(&[("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 600 kB\n")]);
        files.iter().for_each(|(path, text)| machine.write(path, text));
        let report = memory_below(machine.root(), mapped);
        (report.total.map(|b| b.0 / 1024), report.free.map(|b| b.0 / 1024))
    }

    #[test]
    fn a_container_limits_memory() {
        assert_eq!(report(&[]), (Some(1000), Some(600)));
        // cgroup v2 with the limit one level up. File pages that the kernel can drop do not count
        // as used.
        let v2 = [
            ("proc/self/cgroup", "0::/app/worker\n"),
            ("sys/fs/cgroup/app/worker/memory.max", "max\n"),
            ("sys/fs/cgroup/app/worker/memory.current", "99999999\n"),
            ("sys/fs/cgroup/app/memory.max", "512000\n"),
            ("sys/fs/cgroup/app/memory.current", "307200\n"),
            ("sys/fs/cgroup/app/memory.stat", "anon 5\ninactive_file 102400\n"),
        ];
        assert_eq!(report(&v2), (Some(500), Some(300)));
        // The kernel throttles at `memory.high`, below `memory.max`, so the lower limit applies.
        let high = ("sys/fs/cgroup/app/memory.high", "409600\n");
        assert_eq!(report(&[&v2[..], &[high]].concat()), (Some(400), Some(200)));
        // cgroup v1 in a container: the path is a path on the host; the files are at the mount
        // point.
        let v1 = [
            ("proc/self/cgroup", "7:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "204800\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "409600\n"),
        ];
        assert_eq!(report(&v1), (Some(200), Some(0)));
        let none = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(report(&[v1[0], none]), (Some(1000), Some(600)));
    }

    #[test]
    fn the_least_of_all_limits_applies() {
        let process = [
            ("proc/self/limits", "Max address space 512000 512000 bytes\n"),
            ("proc/self/status", "VmSize: 100 kB\n"),
        ];
        assert_eq!(report(&process), (Some(500), Some(400)));
        assert_eq!(report_beside(&process, Bytes(50 << 10)), (Some(500), Some(450)));
        assert_eq!(report_beside(&process, Bytes(u64::MAX)), (Some(500), Some(600)));
        let group = [
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "307200\n"),
            ("sys/fs/cgroup/memory.current", "0\n"),
        ];
        assert_eq!(report(&[&process[..], &group].concat()), (Some(300), Some(300)));
    }

    #[test]
    fn invalid_limits_are_ignored() {
        for text in ["", "-1", "lots", "99999999999999999999999", "\0\0"] {
            let files = [
                ("proc/self/cgroup", "0::/../../etc\n:\nx\n1:memory\n"),
                ("sys/fs/cgroup/memory.max", text),
                ("sys/fs/cgroup/memory.current", text),
            ];
            assert_eq!(report(&files), (Some(1000), Some(600)), "{text:?}");
        }
    }
}
