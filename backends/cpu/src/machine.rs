//! Processor name and memory size, as the system reports them.

use std::path::Path;

use hal::{Bytes, MemoryReport};

use crate::cgroup;
use crate::files::read_text;

/// Total and free memory that this process may use, within its container's limits. Unknown outside
/// Linux.
pub(crate) fn memory() -> MemoryReport {
    memory_below(Path::new("/"))
}

fn memory_below(root: &Path) -> MemoryReport {
    let text = read_text(&root.join("proc/meminfo")).unwrap_or_default();
    let (mut total, mut free) =
        (meminfo_field(&text, "MemTotal:"), meminfo_field(&text, "MemAvailable:"));
    if let Some(limit) = cgroup::memory_limit(root) {
        let within = |amount: Option<Bytes>, limit| amount.map(|bytes| bytes.min(Bytes(limit)));
        (total, free) = (within(total, limit.total), within(free, limit.free));
    }
    MemoryReport { total, free }
}

fn meminfo_field(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes.checked_mul(1024)?))
}

/// The processor's name; `None` if `/proc/cpuinfo` does not report it.
pub(crate) fn processor() -> Option<String> {
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
        let machine =
            Machine::new(&[("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 600 kB\n")]);
        files.iter().for_each(|(path, text)| machine.write(path, text));
        let report = memory_below(machine.root());
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
