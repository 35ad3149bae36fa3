//! Container limits from cgroup v1 and v2, of every group from the process's own group up to the
//! root group.

use std::path::{Component, Path, PathBuf};

use crate::files::{read_number, read_text};

/// Memory that the control groups allow this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// The smallest limit of any group.
    pub(crate) total: u64,
    /// The smallest difference between a group's limit and its use. Cached file pages that the
    /// kernel can drop count as free.
    pub(crate) free: u64,
}

/// Number of whole CPUs that the smallest CPU quota allows, at least one; `None` without a quota.
pub(crate) fn cpu_limit(root: &Path) -> Option<usize> {
    let quota = |folder: PathBuf| {
        let v2 = read_text(&folder.join("cpu.max"));
        let v2 = v2.as_deref().and_then(|text| text.trim().split_once(' '));
        let (quota, period) = match v2 {
            Some((quota, period)) => (quota.parse().ok()?, period.trim().parse().ok()?),
            None => {
                let read = |name| read_number(&folder.join(name));
                (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
            }
        };
        let cpus: u64 = u64::checked_div(quota, period)?;
        Some(usize::try_from(cpus).unwrap_or(usize::MAX).max(1))
    };
    group_folders(root, "cpu").into_iter().filter_map(quota).min()
}

/// Memory limits of this process's groups; `None` without a limit.
pub(crate) fn memory_limit(root: &Path) -> Option<MemoryLimit> {
    let mut tightest: Option<MemoryLimit> = None;
    for folder in group_folders(root, "memory") {
        let read = |name| read_number(&folder.join(name));
        let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
        let Some(limit) = limits.into_iter().filter_map(read).min() else { continue };
        let used = read("memory.current").or_else(|| read("memory.usage_in_bytes")).unwrap_or(0);
        let used = used.saturating_sub(reclaimable_cache(&folder).unwrap_or(0));
        let free = limit.saturating_sub(used);
        let so_far = tightest.unwrap_or(MemoryLimit { total: u64::MAX, free: u64::MAX });
        tightest =
            Some(MemoryLimit { total: so_far.total.min(limit), free: so_far.free.min(free) });
    }
    tightest
}

/// Bytes of cached file pages that were not used recently, so the kernel can drop them.
fn reclaimable_cache(folder: &Path) -> Option<u64> {
    let stat = read_text(&folder.join("memory.stat"))?;
    let value = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    };
    value("total_inactive_file").or_else(|| value("inactive_file"))
}

/// Directories of this process's groups, up to the root group, that may have files of `controller`.
fn group_folders(root: &Path, controller: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let groups = read_text(&root.join("proc/self/cgroup")).unwrap_or_default();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounts = match controllers {
            "" => ["", "unified"],
            named if named.split(',').any(|name| name == controller) => [named, controller],
            _ => continue,
        };
        // Inside a container the path may be a path on the host that does not exist. Its ancestors
        // still lead to the container's root group.
        let names =
            Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
        let group: PathBuf = names.collect();
        for mount in mounts {
            let mount = root.join("sys/fs/cgroup").join(mount);
            folders.extend(group.ancestors().map(|group| mount.join(group)));
        }
    }
    folders
}
