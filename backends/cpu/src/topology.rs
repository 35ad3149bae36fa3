//! The CPUs that this process may use, with their cores, NUMA nodes and speed classes, as Linux
//! reports them in `/sys` and `/proc`; `system_topology` has other systems.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::thread;

use crate::files::{MAX_CPUS, cpu_list, read_number, read_text};
use crate::{cgroup, machine};

/// One hardware thread that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// The operating system's number of the CPU.
    pub(crate) id: usize,
    /// The physical core, identified by its first hardware thread.
    pub(crate) core: usize,
    /// Index among the core's allowed hardware threads.
    pub(crate) thread: usize,
    pub(crate) node: usize,
    /// Whether the CPU belongs to a performance core; true if the process may use only one class of
    /// cores.
    pub(crate) fast: bool,
}

/// The CPUs that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    /// The CPUs in order of their numbers; at least one.
    pub(crate) cpus: Vec<Cpu>,
    /// Number of whole CPUs that a container's quota allows; `None` without a quota.
    pub(crate) quota: Option<usize>,
}

impl Topology {
    pub(crate) fn of_this_machine() -> Topology {
        let read = || Topology::read(Path::new("/"));
        machine::topology().or_else(read).unwrap_or_else(|| {
            // `available_parallelism` respects affinity and quotas if the system has them.
            Topology::uniform(thread::available_parallelism().map_or(1, usize::from))
        })
    }

    /// A topology of `n` equal cores on one node.
    pub(crate) fn uniform(n: usize) -> Topology {
        let cpu = |id| Cpu { id, core: id, thread: 0, node: 0, fast: true };
        Topology { cpus: (0..n.clamp(1, MAX_CPUS)).map(cpu).collect(), quota: None }
    }

    /// Reads the topology from `/sys` and `/proc` below `root`; `None` if they list no CPU that
    /// this process may use. Entries that cannot be parsed count as missing.
    pub(crate) fn read(root: &Path) -> Option<Topology> {
        let system = root.join("sys/devices/system");
        let list = |path: &Path| cpu_list(&read_text(path)?);
        let mut ids = list(&system.join("cpu/online"))?;
        if let Some(allowed) = allowed_cpus(root) {
            ids.retain(|id| allowed.binary_search(id).is_ok());
        }
        let nodes = numa_nodes(&system.join("node"));
        let fast = fast_cores(root, &ids);
        let mut seen = HashMap::new();
        let cpu = |id| {
            let siblings = system.join(format!("cpu/cpu{id}/topology/thread_siblings_list"));
            let siblings = list(&siblings).filter(|siblings| siblings.contains(&id));
            let core = siblings.map_or(id, |siblings| siblings[0]);
            let threads = seen.entry(core).or_insert(0);
            let thread = *threads;
            *threads += 1;
            let node = nodes.get(&id).copied().unwrap_or(0);
            Cpu { id, core, thread, node, fast: fast.contains(&id) }
        };
        let cpus: Vec<Cpu> = ids.iter().copied().map(cpu).collect();
        (!cpus.is_empty()).then(|| Topology { cpus, quota: cgroup::cpu_limit(root) })
    }

    /// Default number of threads on `cpus`: one per physical core, only performance cores if `cpus`
    /// has any, at most the quota.
    pub(crate) fn n_threads(&self, cpus: &[Cpu]) -> usize {
        let cores = |cpus: &mut dyn Iterator<Item = &Cpu>| {
            cpus.map(|cpu| cpu.core).collect::<HashSet<_>>().len()
        };
        let n = match cores(&mut cpus.iter().filter(|cpu| cpu.fast)) {
            0 => cores(&mut cpus.iter()),
            fast => fast,
        };
        n.min(self.quota.unwrap_or(usize::MAX)).max(1)
    }
}

/// The CPUs that affinity and cpuset allow.
fn allowed_cpus(root: &Path) -> Option<Vec<usize>> {
    let status = read_text(&root.join("proc/self/status"))?;
    cpu_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

fn numa_nodes(folder: &Path) -> HashMap<usize, usize> {
    let mut nodes = HashMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let cpus = read_text(&entry.path().join("cpulist")).and_then(|list| cpu_list(&list));
        if let (Some(number), Some(cpus)) = (number, cpus) {
            nodes.extend(cpus.into_iter().map(|cpu| (cpu, number)));
        }
    }
    nodes
}

/// The performance cores among `ids`; all of `ids` if the machine has only one class of cores, or
/// if `ids` has only slow cores.
fn fast_cores(root: &Path, ids: &[usize]) -> Vec<usize> {
    let hybrid =
        read_text(&root.join("sys/devices/cpu_core/cpus")).and_then(|list| cpu_list(&list));
    let capacity = |id: usize| {
        read_number(&root.join(format!("sys/devices/system/cpu/cpu{id}/cpu_capacity"))).unwrap_or(0)
    };
    let fast: Vec<usize> = match hybrid {
        Some(fast) => ids.iter().copied().filter(|id| fast.contains(id)).collect(),
        None => {
            // Small cores have a quarter to a half of the largest capacity. Medium cores count as
            // fast.
            let largest = ids.iter().map(|&id| capacity(id)).max().unwrap_or(0);
            ids.iter().copied().filter(|&id| capacity(id) > largest / 2 || largest == 0).collect()
        }
    };
    if fast.is_empty() { ids.to_vec() } else { fast }
}

#[cfg(test)]
#[path = "topology_tests.rs"]
pub(crate) mod tests;
