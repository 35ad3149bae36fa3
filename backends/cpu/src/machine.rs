//! What the system says about its processor and memory.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::thread;

use hal::{Bytes, MemoryReport};

/// Threads worth having: the cores this process may use, without second hardware threads of a core.
#[must_use]
pub fn default_threads() -> usize {
    // Knows affinity and the container's quota.
    let allowed = thread::available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(allowed, |cores| cores.clamp(1, allowed))
}

/// Physical cores of the machine, where Linux tells.
fn physical_cores() -> Option<usize> {
    let mut cores = HashSet::new();
    for entry in fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        let read = |name: &str| fs::read_to_string(entry.path().join("topology").join(name));
        if let (Ok(package), Ok(core)) = (read("physical_package_id"), read("core_id")) {
            cores.insert((package, core));
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// System memory, where Linux tells.
pub(crate) fn memory() -> MemoryReport {
    let text = fs::read_to_string(Path::new("/proc/meminfo")).unwrap_or_default();
    MemoryReport { total: field(&text, "MemTotal:"), free: field(&text, "MemAvailable:") }
}

fn field(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes.checked_mul(1024)?))
}

/// The processor's name, where Linux tells.
pub(crate) fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_meminfo() {
        let text = "MemTotal:       24000 kB\nMemFree:  5 kB\nMemAvailable:   7 kB\nOdd: 3\n";
        assert_eq!(field(text, "MemTotal:"), Some(Bytes(24000 * 1024)));
        assert_eq!(field(text, "MemAvailable:"), Some(Bytes(7 * 1024)));
        assert_eq!(field(text, "Odd:"), None);
        assert_eq!(field("", "MemTotal:"), None);
    }

    #[test]
    fn there_is_a_thread() {
        assert!(default_threads() >= 1);
    }
}
