//! Topologies from what Windows and macOS say of the processor. Pure functions, so that every system tests them.

use crate::files::MAX_CPUS;
use crate::topology::{Cpu, Topology};

/// CPUs of a processor group of Windows at most; group `g` has the numbers from `g * GROUP` on.
#[cfg(any(windows, test))]
pub(crate) const GROUP: usize = 64;

/// The topology in `records`, as `GetLogicalProcessorInformationEx` writes them for `RelationAll` on a system of 64
/// bits; `None` if they list no CPU. `allowed` is a group and a mask of its CPUs, if this process may use only those.
#[cfg(any(windows, test))]
pub(crate) fn of_records(records: &[u8], allowed: Option<(usize, u64)>) -> Option<Topology> {
    const CORE: u32 = 0;
    const NODE: u32 = 1;
    /// `RelationNumaNodeEx`, which newer systems write for nodes of several groups.
    const NODES: u32 = 6;
    let usable = |id: &usize| {
        allowed.is_none_or(|(group, mask)| id / GROUP == group && mask >> (id % GROUP) & 1 == 1)
    };
    let (mut cores, mut nodes) = (Vec::new(), Vec::new());
    let mut rest = records;
    while let (Some(kind), Some(size)) = (number::<4>(rest, 0), number::<4>(rest, 4)) {
        let Some((record, after)) = rest.split_at_checked(size as usize).filter(|_| size >= 8)
        else {
            break;
        };
        rest = after;
        if kind == u64::from(CORE) {
            cores.push((number::<1>(record, 9)?, cpus_of(record)));
        } else if kind == u64::from(NODE) || kind == u64::from(NODES) {
            nodes.push((number::<4>(record, 8)? as usize, cpus_of(record)));
        }
    }
    let fastest = cores.iter().filter(|(_, cpus)| cpus.iter().any(usable)).map(|core| core.0).max();
    let mut cpus = Vec::new();
    for (class, ids) in cores {
        let Some(&core) = ids.first() else { continue };
        for (thread, id) in ids.into_iter().filter(usable).enumerate() {
            let node =
                nodes.iter().find(|(_, cpus)| cpus.contains(&id)).map_or(0, |(node, _)| *node);
            cpus.push(Cpu { id, core, thread, node, fast: Some(class) == fastest });
        }
    }
    cpus.sort_by_key(|cpu| cpu.id);
    cpus.dedup_by_key(|cpu| cpu.id);
    (!cpus.is_empty()).then_some(Topology { cpus, quota: None })
}

/// The CPUs of a record of a core or a node, in order.
#[cfg(any(windows, test))]
fn cpus_of(record: &[u8]) -> Vec<usize> {
    // Older systems write a node's only mask without their number.
    let n_groups = number::<2>(record, 30).unwrap_or(0).max(1) as usize;
    let mut cpus = Vec::new();
    for mask in 0..n_groups {
        let at = 32 + 16 * mask;
        let (Some(mask), Some(group)) = (number::<8>(record, at), number::<2>(record, at + 8))
        else {
            break;
        };
        let ids =
            (0..GROUP).filter(|bit| mask >> bit & 1 == 1).map(|bit| group as usize * GROUP + bit);
        cpus.extend(ids.filter(|&id| id < MAX_CPUS));
    }
    cpus.sort_unstable();
    cpus
}

/// The number of `N` bytes at `at`.
#[cfg(any(windows, test))]
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut value = [0; 8];
    value[..N].copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(value))
}

/// The topology of a Mac with these numbers of cores and CPUs at each performance level, the fastest first; `None`
/// without any. The numbers of its CPUs are ours: macOS names none.
#[cfg(any(target_vendor = "apple", test))]
pub(crate) fn of_levels(levels: &[(u64, u64)]) -> Option<Topology> {
    let mut cpus: Vec<Cpu> = Vec::new();
    for (level, &(n_cores, n_cpus)) in levels.iter().enumerate() {
        let n_cores = n_cores.clamp(1, MAX_CPUS as u64) as usize;
        let first = cpus.len();
        for i in 0..(n_cpus.min(MAX_CPUS as u64) as usize) {
            let (core, thread) = (first + i % n_cores, i / n_cores);
            cpus.push(Cpu { id: first + i, core, thread, node: 0, fast: level == 0 });
        }
    }
    cpus.truncate(MAX_CPUS);
    (!cpus.is_empty()).then_some(Topology { cpus, quota: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a core or a node with these masks of groups.
    fn record(kind: u32, head: [u8; 4], masks: &[(u16, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; 32 + 16 * masks.len()];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        let size = bytes.len() as u32;
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes[8..12].copy_from_slice(&head);
        bytes[30..32].copy_from_slice(&(masks.len() as u16).to_le_bytes());
        for (i, (group, mask)) in masks.iter().enumerate() {
            bytes[32 + 16 * i..][..8].copy_from_slice(&mask.to_le_bytes());
            bytes[40 + 16 * i..][..2].copy_from_slice(&group.to_le_bytes());
        }
        bytes
    }

    fn core(class: u8, group: u16, mask: u64) -> Vec<u8> {
        record(0, [0, class, 0, 0], &[(group, mask)])
    }

    fn seen(
        records: &[Vec<u8>],
        allowed: Option<(usize, u64)>,
    ) -> Vec<(usize, usize, usize, bool)> {
        let found = of_records(&records.concat(), allowed).map_or(Vec::new(), |found| found.cpus);
        found.iter().map(|cpu| (cpu.id, cpu.core, cpu.thread, cpu.fast)).collect()
    }

    #[test]
    fn cores_have_their_second_threads_and_classes() {
        // Two performance cores with two threads each, two efficiency cores, and a cache, which is skipped.
        let cache = record(2, [3, 0, 0, 0], &[(0, 0xff)]);
        let machine =
            [core(1, 0, 0b11), cache, core(1, 0, 0b1100), core(0, 0, 0x10), core(0, 0, 0x20)];
        let all = [
            (0, 0, 0, true),
            (1, 0, 1, true),
            (2, 2, 0, true),
            (3, 2, 1, true),
            (4, 4, 0, false),
            (5, 5, 0, false),
        ];
        assert_eq!(seen(&machine, None), all);
        let topology = of_records(&machine.concat(), None).unwrap();
        assert_eq!(topology.n_threads(&topology.cpus), 2);
        // `start /affinity 38`: a second thread becomes the first that may be used, and so does a slow core.
        assert_eq!(
            seen(&machine, Some((0, 0x38))),
            [(3, 2, 0, true), (4, 4, 0, false), (5, 5, 0, false)]
        );
        assert_eq!(seen(&machine, Some((0, 0x30))), [(4, 4, 0, true), (5, 5, 0, true)]);
        assert_eq!(seen(&machine, Some((1, 0xff))), []);
    }

    #[test]
    fn groups_and_nodes_count_on() {
        let node = |number: u8, masks: &[(u16, u64)]| record(1, [number, 0, 0, 0], masks);
        let machine = [
            core(0, 0, 1),
            core(0, 0, 1 << 63),
            core(0, 1, 2),
            node(0, &[(0, u64::MAX)]),
            node(1, &[(1, 2)]),
        ];
        let found = of_records(&machine.concat(), None).unwrap();
        let cpus: Vec<_> = found.cpus.iter().map(|cpu| (cpu.id, cpu.node, cpu.fast)).collect();
        assert_eq!(cpus, [(0, 0, true), (63, 0, true), (65, 1, true)]);
        // A node of two groups; and one from before masks were counted.
        let wide = [core(0, 0, 1), core(0, 1, 1), record(6, [4, 0, 0, 0], &[(0, 1), (1, 1)])];
        assert!(of_records(&wide.concat(), None).unwrap().cpus.iter().all(|cpu| cpu.node == 4));
        let mut old = node(7, &[(0, 1)]);
        old[30] = 0;
        let found = of_records(&[core(0, 0, 1), old].concat(), None).unwrap();
        assert_eq!(found.cpus[0].node, 7);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let machine =
            [core(1, 0, 0b11), record(6, [0; 4], &[(0, 1), (9, 1)]), core(0, u16::MAX, u64::MAX)]
                .concat();
        for end in 0..machine.len() {
            let _ = of_records(&machine[..end], None);
        }
        for at in 0..machine.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut damaged = machine.clone();
                damaged[at] = byte;
                let _ = of_records(&damaged, Some((0, 3)));
            }
        }
        assert_eq!(of_records(&[], None), None);
    }

    #[test]
    fn macs_have_levels() {
        // M1 Pro: 8 fast cores and 2 slow ones, a thread each; Intel: 4 cores of 2 threads.
        let m1 = of_levels(&[(8, 8), (2, 2)]).unwrap();
        assert_eq!((m1.cpus.len(), m1.n_threads(&m1.cpus)), (10, 8));
        let intel = of_levels(&[(4, 8)]).unwrap();
        assert_eq!((intel.cpus.len(), intel.n_threads(&intel.cpus)), (8, 4));
        assert_eq!((intel.cpus[4].core, intel.cpus[4].thread), (0, 1));
        assert_eq!(of_levels(&[]), None);
        assert_eq!(of_levels(&[(0, 0)]), None);
        assert_eq!(of_levels(&[(u64::MAX, u64::MAX)]).unwrap().cpus.len(), MAX_CPUS);
    }
}
