//! Assigns threads to CPUs and nodes: a pure function of the machine and the user's options.

use crate::options::{CpuOptions, Numa};
use crate::thread_pool::MAX_THREADS;
use crate::topology::{Cpu, Topology};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuBinding {
    /// Index of the thread's NUMA node among the nodes in use.
    pub(crate) node: usize,
    /// CPUs that the thread is bound to; empty if the thread is not bound.
    pub(crate) cpus: Vec<usize>,
}

/// CPU assignments of a thread pool's threads; the first is for the calling thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadPlan {
    pub(crate) bindings: Vec<CpuBinding>,
    /// CPUs of each node over which memory is spread; empty if the operating system places memory.
    pub(crate) nodes: Vec<Vec<usize>>,
    /// Number of active threads for programs of one token, and for programs of several tokens.
    pub(crate) active: [usize; 2],
    /// Message about options that could not be applied, or that make the threads slower.
    pub(crate) refused: Option<String>,
}

impl ThreadPlan {
    /// Plans the threads for `topology`; `current_cpu` is the CPU of the calling thread.
    pub(crate) fn plan(
        topology: &Topology,
        options: &CpuOptions,
        current_cpu: Option<usize>,
    ) -> ThreadPlan {
        let mut cpus = topology.cpus.clone();
        let mut refused = None;
        let mut bound = options.strict;
        if let Some(selected) = &options.cpus {
            cpus.retain(|cpu| selected.contains(&cpu.id));
            bound = !cpus.is_empty() || options.strict;
            // Numbers beyond the last CPU are ignored, so a mask of all ones selects all CPUs.
            let last = topology.cpus.last().map_or(0, |cpu| cpu.id);
            let n = selected.iter().filter(|&&id| id <= last).count() - cpus.len();
            if cpus.is_empty() {
                refused = Some(
                    "no selected CPU is available to this process; using all available CPUs"
                        .to_owned(),
                );
            } else if n > 0 {
                refused = Some(format!(
                    "selected CPUs that are not available to this process: {n}; using the others"
                ));
            }
            if cpus.is_empty() {
                cpus.clone_from(&topology.cpus);
            }
        }
        if options.numa == Some(Numa::Isolate) {
            let home = cpus.iter().find(|cpu| Some(cpu.id) == current_cpu).or(cpus.first());
            let home = home.map_or(0, |cpu| cpu.node);
            cpus.retain(|cpu| cpu.node == home);
        }
        let n = options.threads.unwrap_or_else(|| topology.n_threads(&cpus));
        let active = [n, options.threads_batch.unwrap_or(n)].map(|n| n.clamp(1, MAX_THREADS));
        let n_threads = active[0].max(active[1]);
        if n_threads > cpus.len() && refused.is_none() {
            let n = cpus.len();
            refused = Some(format!("{n_threads} threads share {n} CPUs, which is slower than {n}"));
        }
        // No more nodes than threads, so every node in use has a thread.
        let nodes = match options.numa {
            None => vec![cpus],
            Some(_) => group_by_node(cpus).into_iter().take(active[0].min(active[1])).collect(),
        };
        let bound = bound || options.numa.is_some();
        let binding = |index: usize| {
            let (node, turn) = (index % nodes.len(), index / nodes.len());
            let on_node = &nodes[node];
            let cpus = match (bound, options.strict) {
                (false, _) => Vec::new(),
                (true, false) => ids(on_node),
                (true, true) => vec![assignment_order(on_node)[turn % on_node.len()]],
            };
            CpuBinding { node, cpus }
        };
        ThreadPlan {
            bindings: (0..n_threads).map(binding).collect(),
            nodes: options
                .numa
                .map_or_else(Vec::new, |_| nodes.iter().map(|cpus| ids(cpus)).collect()),
            active,
            refused,
        }
    }

    /// Number of active threads for programs of one token, or of more if `several_tokens`.
    pub(crate) fn n_active_threads(&self, several_tokens: bool) -> usize {
        self.active[usize::from(several_tokens)]
    }
}

fn ids(cpus: &[Cpu]) -> Vec<usize> {
    cpus.iter().map(|cpu| cpu.id).collect()
}

/// CPUs in the order in which they are assigned to threads: fast cores, slow cores, then second
/// hardware threads.
fn assignment_order(cpus: &[Cpu]) -> Vec<usize> {
    let mut cpus = cpus.to_vec();
    cpus.sort_by_key(|cpu| (cpu.thread, !cpu.fast, cpu.id));
    ids(&cpus)
}

fn group_by_node(mut cpus: Vec<Cpu>) -> Vec<Vec<Cpu>> {
    cpus.sort_by_key(|cpu| (cpu.node, cpu.id));
    cpus.chunk_by(|a, b| a.node == b.node).map(<[Cpu]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::Machine;

    fn plan(options: &CpuOptions, current_cpu: usize) -> ThreadPlan {
        let topology = Topology::read(Machine::two_sockets().root()).unwrap();
        ThreadPlan::plan(&topology, options, Some(current_cpu))
    }

    fn cpus(planned: &ThreadPlan) -> Vec<Vec<usize>> {
        planned.bindings.iter().map(|binding| binding.cpus.clone()).collect()
    }

    #[test]
    fn threads_are_not_bound_by_default() {
        let planned = plan(&CpuOptions::default(), 0);
        assert_eq!(planned.bindings, vec![CpuBinding::default(); 16]);
        assert_eq!((planned.nodes.len(), planned.active, planned.refused), (0, [16, 16], None));
    }

    #[test]
    fn threads_are_distributed_over_nodes() {
        for numa in [Numa::Distribute, Numa::Numactl] {
            let planned =
                plan(&CpuOptions { threads: Some(3), numa: Some(numa), ..Default::default() }, 0);
            let nodes: [Vec<usize>; 2] =
                [(0..8).chain(16..24).collect(), (8..16).chain(24..32).collect()];
            assert_eq!(planned.nodes, nodes);
            assert_eq!(cpus(&planned), [&nodes[0], &nodes[1], &nodes[0]].map(Clone::clone));
            assert_eq!(
                planned.bindings.iter().map(|binding| binding.node).collect::<Vec<_>>(),
                [0, 1, 0]
            );
        }
        // One thread uses one node.
        let one =
            CpuOptions { threads: Some(1), numa: Some(Numa::Distribute), ..Default::default() };
        assert_eq!(plan(&one, 0).nodes.len(), 1);
    }

    #[test]
    fn isolate_uses_the_node_of_the_calling_thread() {
        let planned = plan(&CpuOptions { numa: Some(Numa::Isolate), ..Default::default() }, 25);
        assert_eq!(planned.nodes, [(8..16).chain(24..32).collect::<Vec<_>>()]);
        assert_eq!(planned.active, [8, 8]);
        assert!(
            planned
                .bindings
                .iter()
                .all(|binding| binding.node == 0 && binding.cpus == planned.nodes[0])
        );
    }

    #[test]
    fn selected_cpus_are_shared_or_one_per_thread() {
        let chosen = CpuOptions { cpus: Some(vec![2, 3, 18, 19]), ..Default::default() };
        let planned = plan(&chosen, 0);
        assert_eq!(cpus(&planned), [[2, 3, 18, 19], [2, 3, 18, 19]]);
        let strict = CpuOptions { strict: true, threads: Some(5), ..chosen };
        assert_eq!(cpus(&plan(&strict, 0)), [[2], [3], [18], [19], [2]]);
        let spread = CpuOptions { cpus: None, numa: Some(Numa::Distribute), ..strict };
        assert_eq!(cpus(&plan(&spread, 0)), [[0], [8], [1], [9], [2]]);
    }

    #[test]
    fn unavailable_cpus_are_reported() {
        let chosen = |cpus| CpuOptions { cpus: Some(cpus), ..Default::default() };
        let all_from = plan(&chosen((31..5000).collect()), 0);
        assert_eq!((cpus(&all_from), all_from.refused), (vec![vec![31]], None));
        let none = plan(&chosen(vec![77]), 0);
        assert_eq!(none.bindings, vec![CpuBinding::default(); 16]);
        assert_eq!(
            none.refused.as_deref(),
            Some("no selected CPU is available to this process; using all available CPUs")
        );
        let mut few = Topology::uniform(6);
        few.cpus.remove(2);
        let some = ThreadPlan::plan(&few, &chosen(vec![1, 2, 3, 99]), None);
        assert_eq!(cpus(&some), [[1, 3], [1, 3]]);
        assert_eq!(
            some.refused.as_deref(),
            Some("selected CPUs that are not available to this process: 1; using the others")
        );
    }

    #[test]
    fn prefill_may_use_more_threads() {
        let options = CpuOptions { threads: Some(4), threads_batch: Some(6), ..Default::default() };
        let planned = plan(&options, 0);
        assert_eq!(
            (
                planned.bindings.len(),
                planned.n_active_threads(false),
                planned.n_active_threads(true)
            ),
            (6, 4, 6)
        );
        let absurd = CpuOptions { threads: Some(0), threads_batch: Some(usize::MAX), ..options };
        assert_eq!(plan(&absurd, 0).active, [1, MAX_THREADS]);
    }
}
