//! Container limits: control groups of both versions, from the process's own group up to the root.

use std::path::{Component, Path, PathBuf};

use crate::files::{number, text};

/// Memory that the control groups allow this process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// The smallest limit.
    pub(crate) total: u64,
    /// The smallest remainder below any limit; file pages that can be dropped count as free.
    pub(crate) free: u64,
}

/// Whole CPUs that the groups' quotas allow, at least one; `None` without a quota.
pub(crate) fn cpus(root: &Path) -> Option<usize> {
    let quota = |folder: PathBuf| {
        let v2 = text(&folder.join("cpu.max"));
        let v2 = v2.as_deref().and_then(|text| text.trim().split_once(' '));
        let (quota, period) = match v2 {
            Some((quota, period)) => (quota.parse().ok()?, period.trim().parse().ok()?),
            None => {
                let read = |name| number(&folder.join(name));
                (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
            }
        };
        let cpus: u64 = u64::checked_div(quota, period)?;
        Some(usize::try_from(cpus).unwrap_or(usize::MAX).max(1))
    };
    folders(root, "cpu").into_iter().filter_map(quota).min()
}

/// Limits of memory, if there are any.
pub(crate) fn memory(root: &Path) -> Option<MemoryLimit> {
    let mut tightest: Option<MemoryLimit> = None;
    for folder in folders(root, "memory") {
        let read = |name| number(&folder.join(name));
        let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
        let Some(limit) = limits.into_iter().filter_map(read).min() else { continue };
        let used = read("memory.current").or_else(|| read("memory.usage_in_bytes")).unwrap_or(0);
        let used = used.saturating_sub(droppable(&folder).unwrap_or(0));
        let free = limit.saturating_sub(used);
        let so_far = tightest.unwrap_or(MemoryLimit { total: u64::MAX, free: u64::MAX });
        tightest =
            Some(MemoryLimit { total: so_far.total.min(limit), free: so_far.free.min(free) });
    }
    tightest
}

/// Cached pages of files that were not used recently.
fn droppable(folder: &Path) -> Option<u64> {
    let stat = text(&folder.join("memory.stat"))?;
    let value = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    };
    value("total_inactive_file").or_else(|| value("inactive_file"))
}

/// The folders of this process's groups that may have files of `controller`, including the root's.
fn folders(root: &Path, controller: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let groups = text(&root.join("proc/self/cgroup")).unwrap_or_default();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let mounts = match controllers {
            "" => ["", "unified"],
            named if named.split(',').any(|name| name == controller) => [named, controller],
            _ => continue,
        };
        // In a container the path may be the host's, which does not exist here: its parents lead
        // to the root.
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
