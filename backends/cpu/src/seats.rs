//! Assigns threads to CPUs and nodes: a pure function of the machine and the user's options.

use crate::options::{CpuOptions, Numa};
use crate::thread_pool::MAX_THREADS;
use crate::topology::{Cpu, Topology};

/// CPU assignment of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seat {
    /// Its node, numbered from 0 over the nodes in use.
    pub(crate) node: usize,
    /// CPUs that it is bound to; empty if it is not bound.
    pub(crate) cpus: Vec<usize>,
}

/// The assignments of a thread pool; the first is the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seats {
    pub(crate) seats: Vec<Seat>,
    /// CPUs of each node in use, if memory is placed by node; empty if the system places it.
    pub(crate) nodes: Vec<Vec<usize>>,
    /// Active threads for one token, and for more.
    pub(crate) active: [usize; 2],
    /// Message about the options that could not be fulfilled.
    pub(crate) refused: Option<String>,
}

impl Seats {
    /// The plan for `topology`, made by a thread that runs on CPU `here`.
    pub(crate) fn plan(topology: &Topology, options: &CpuOptions, here: Option<usize>) -> Seats {
        let mut cpus = topology.cpus.clone();
        let mut refused = None;
        let mut bound = options.strict;
        if let Some(wanted) = &options.cpus {
            cpus.retain(|cpu| wanted.contains(&cpu.id));
            bound = !cpus.is_empty() || options.strict;
            // Numbers beyond the last CPU mean "and all others", as in a mask of all ones.
            let last = topology.cpus.last().map_or(0, |cpu| cpu.id);
            let n = wanted.iter().filter(|&&id| id <= last).count() - cpus.len();
            if cpus.is_empty() {
                refused = Some("none of the selected CPUs is available to this process".to_owned());
            } else if n > 0 {
                refused = Some(format!("{n} of the selected CPUs not available to this process"));
            }
            if cpus.is_empty() {
                cpus.clone_from(&topology.cpus);
            }
        }
        if options.numa == Some(Numa::Isolate) {
            let home = cpus.iter().find(|cpu| Some(cpu.id) == here).or(cpus.first());
            let home = home.map_or(0, |cpu| cpu.node);
            cpus.retain(|cpu| cpu.node == home);
        }
        let n = options.threads.unwrap_or_else(|| topology.n_threads(&cpus));
        let active = [n, options.threads_batch.unwrap_or(n)].map(|n| n.clamp(1, MAX_THREADS));
        let n_seats = active[0].max(active[1]);
        // Every node in use gets threads.
        let nodes = match options.numa {
            None => vec![cpus],
            Some(_) => by_node(cpus).into_iter().take(active[0].min(active[1])).collect(),
        };
        let bound = bound || options.numa.is_some();
        let seat = |index: usize| {
            let (node, turn) = (index % nodes.len(), index / nodes.len());
            let on_node = &nodes[node];
            let cpus = match (bound, options.strict) {
                (false, _) => Vec::new(),
                (true, false) => ids(on_node),
                (true, true) => vec![best_first(on_node)[turn % on_node.len()]],
            };
            Seat { node, cpus }
        };
        Seats {
            seats: (0..n_seats).map(seat).collect(),
            nodes: options
                .numa
                .map_or_else(Vec::new, |_| nodes.iter().map(|cpus| ids(cpus)).collect()),
            active,
            refused,
        }
    }

    /// Active threads for programs of one token, or of `many`.
    pub(crate) fn n_active(&self, many: bool) -> usize {
        self.active[usize::from(many)]
    }
}

fn ids(cpus: &[Cpu]) -> Vec<usize> {
    cpus.iter().map(|cpu| cpu.id).collect()
}

/// CPUs in the order in which threads take them: fast cores, slow cores, then second hardware
/// threads.
fn best_first(cpus: &[Cpu]) -> Vec<usize> {
    let mut cpus = cpus.to_vec();
    cpus.sort_by_key(|cpu| (cpu.thread, !cpu.fast, cpu.id));
    ids(&cpus)
}

fn by_node(mut cpus: Vec<Cpu>) -> Vec<Vec<Cpu>> {
    cpus.sort_by_key(|cpu| (cpu.node, cpu.id));
    cpus.chunk_by(|a, b| a.node == b.node).map(<[Cpu]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::Machine;

    fn plan(options: &CpuOptions, here: usize) -> Seats {
        let topology = Topology::read(Machine::two_sockets().root()).unwrap();
        Seats::plan(&topology, options, Some(here))
    }

    fn cpus(seats: &Seats) -> Vec<Vec<usize>> {
        seats.seats.iter().map(|seat| seat.cpus.clone()).collect()
    }

    #[test]
    fn nothing_is_bound_unless_asked_for() {
        let seats = plan(&CpuOptions::default(), 0);
        assert_eq!(seats.seats, vec![Seat::default(); 16]);
        assert_eq!((seats.nodes.len(), seats.active, seats.refused), (0, [16, 16], None));
    }

    #[test]
    fn distributed_over_nodes() {
        for numa in [Numa::Distribute, Numa::Numactl] {
            let seats =
                plan(&CpuOptions { threads: Some(3), numa: Some(numa), ..Default::default() }, 0);
            let nodes: [Vec<usize>; 2] =
                [(0..8).chain(16..24).collect(), (8..16).chain(24..32).collect()];
            assert_eq!(seats.nodes, nodes);
            assert_eq!(cpus(&seats), [&nodes[0], &nodes[1], &nodes[0]].map(Clone::clone));
            assert_eq!(seats.seats.iter().map(|seat| seat.node).collect::<Vec<_>>(), [0, 1, 0]);
        }
        // One thread uses one node.
        let one =
            CpuOptions { threads: Some(1), numa: Some(Numa::Distribute), ..Default::default() };
        assert_eq!(plan(&one, 0).nodes.len(), 1);
    }

    #[test]
    fn isolated_on_the_node_of_the_start() {
        let seats = plan(&CpuOptions { numa: Some(Numa::Isolate), ..Default::default() }, 25);
        assert_eq!(seats.nodes, [(8..16).chain(24..32).collect::<Vec<_>>()]);
        assert_eq!(seats.active, [8, 8]);
        assert!(seats.seats.iter().all(|seat| seat.node == 0 && seat.cpus == seats.nodes[0]));
    }

    #[test]
    fn chosen_cpus_together_or_one_by_one() {
        let chosen = CpuOptions { cpus: Some(vec![2, 3, 18, 19]), ..Default::default() };
        let seats = plan(&chosen, 0);
        assert_eq!(cpus(&seats), [[2, 3, 18, 19], [2, 3, 18, 19]]);
        let strict = CpuOptions { strict: true, threads: Some(5), ..chosen };
        assert_eq!(cpus(&plan(&strict, 0)), [[2], [3], [18], [19], [2]]);
        let spread = CpuOptions { cpus: None, numa: Some(Numa::Distribute), ..strict };
        assert_eq!(cpus(&plan(&spread, 0)), [[0], [8], [1], [9], [2]]);
    }

    #[test]
    fn cpus_that_cannot_be_used_are_told() {
        let chosen = |cpus| CpuOptions { cpus: Some(cpus), ..Default::default() };
        let all_from = plan(&chosen((31..5000).collect()), 0);
        assert_eq!((cpus(&all_from), all_from.refused), (vec![vec![31]], None));
        let none = plan(&chosen(vec![77]), 0);
        assert_eq!(none.seats, vec![Seat::default(); 16]);
        assert_eq!(
            none.refused.as_deref(),
            Some("none of the selected CPUs is available to this process")
        );
        let mut few = Topology::alike(6);
        few.cpus.remove(2);
        let some = Seats::plan(&few, &chosen(vec![1, 2, 3, 99]), None);
        assert_eq!(cpus(&some), [[1, 3], [1, 3]]);
        assert_eq!(
            some.refused.as_deref(),
            Some("1 of the selected CPUs not available to this process")
        );
    }

    #[test]
    fn prompts_may_have_other_threads() {
        let options = CpuOptions { threads: Some(4), threads_batch: Some(6), ..Default::default() };
        let seats = plan(&options, 0);
        assert_eq!((seats.seats.len(), seats.n_active(false), seats.n_active(true)), (6, 4, 6));
        let absurd = CpuOptions { threads: Some(0), threads_batch: Some(usize::MAX), ..options };
        assert_eq!(plan(&absurd, 0).active, [1, MAX_THREADS]);
    }
}
