//! Sizes of the processor's caches.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::files::read_text;

/// Bytes of all last-level caches of this machine together; `None` if the system does not report
/// them, and outside Linux.
#[must_use]
pub fn last_level_cache() -> Option<u64> {
    last_level_below(Path::new("/"))
}

fn last_level_below(root: &Path) -> Option<u64> {
    // Several CPUs share a cache, so it counts once, by its level and the CPUs that share it.
    let mut caches: BTreeMap<(u32, String), u64> = BTreeMap::new();
    for cpu in fs::read_dir(root.join("sys/devices/system/cpu")).ok()?.flatten() {
        let Ok(indices) = fs::read_dir(cpu.path().join("cache")) else { continue };
        for index in indices.flatten() {
            let read = |name| Some(read_text(&index.path().join(name))?.trim().to_owned());
            let level = read("level").and_then(|level| level.parse().ok());
            let size = read("size").and_then(|size| cache_size(&size));
            if let (Some(level), Some(size), Some(cpus)) = (level, size, read("shared_cpu_list")) {
                caches.insert((level, cpus), size);
            }
        }
    }
    let last = caches.keys().map(|(level, _)| *level).max()?;
    let sizes = caches.iter().filter(|((level, _), _)| *level == last).map(|(_, size)| *size);
    Some(sizes.fold(0, u64::saturating_add))
}

/// A size such as `32768K`.
fn cache_size(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |number| (number, 1 << 20)),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::Machine;

    #[test]
    fn each_cache_of_the_last_level_counts_once() {
        let machine = Machine::new(&[]);
        assert_eq!(last_level_below(machine.root()), None);
        for (cpu, shared) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")] {
            for (index, level, size, cpus) in [(0, "1", "48K", "x"), (3, "3", "32M", shared)] {
                let folder = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
                machine.write(&format!("{folder}/level"), level);
                machine.write(&format!("{folder}/size"), &format!("{size}\n"));
                machine.write(&format!("{folder}/shared_cpu_list"), cpus);
            }
        }
        assert_eq!(last_level_below(machine.root()), Some(64 << 20));
        machine.write("sys/devices/system/cpu/cpu2/cache/index3/size", "lots");
        assert_eq!(last_level_below(machine.root()), Some(64 << 20), "another CPU reports it");
        assert_eq!(cache_size("99999999999999999999K"), None);
    }
}
