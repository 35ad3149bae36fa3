//! Simulated machines: trees of `/sys` and `/proc` in a temporary folder.

use std::path::PathBuf;

use super::*;

pub(crate) struct Machine(tempfile::TempDir);

impl Machine {
    pub(crate) fn new(files: &[(&str, &str)]) -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, text)| machine.write(path, text));
        machine
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path: PathBuf = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// CPUs `0..n` online, without further information.
    fn online(n: usize) -> Machine {
        Machine::new(&[("sys/devices/system/cpu/online", &format!("0-{}\n", n - 1))])
    }

    fn siblings(&self, cpu: usize, list: &str) {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        self.write(&path, list);
    }

    /// Two sockets of eight cores with two threads each; the second threads come last, as Linux
    /// numbers them.
    pub(crate) fn two_sockets() -> Machine {
        let machine = Machine::online(32);
        for cpu in 0..32 {
            machine.siblings(cpu, &format!("{},{}\n", cpu % 16, cpu % 16 + 16));
        }
        machine.write("sys/devices/system/node/node0/cpulist", "0-7,16-23\n");
        machine.write("sys/devices/system/node/node1/cpulist", "8-15,24-31\n");
        machine
    }

    fn topology(&self) -> Topology {
        Topology::read(self.root()).unwrap()
    }

    fn default_threads(&self) -> usize {
        let topology = self.topology();
        topology.n_threads(&topology.cpus)
    }
}

#[test]
fn cores_hardware_threads_and_nodes_are_read() {
    let machine = Machine::two_sockets();
    let topology = machine.topology();
    assert_eq!(topology.cpus.len(), 32);
    assert_eq!(machine.default_threads(), 16);
    let expected = Cpu { id: 25, core: 9, thread: 1, node: 1, fast: true };
    assert_eq!(topology.cpus[25], expected);
    assert_eq!(topology.cpus.iter().filter(|cpu| cpu.node == 0).count(), 16);
}

#[test]
fn affinity_and_cpuset_limit_the_cpus() {
    let machine = Machine::two_sockets();
    machine.write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t16-19,24\n");
    let topology = machine.topology();
    assert_eq!(topology.cpus.iter().map(|cpu| cpu.id).collect::<Vec<_>>(), [16, 17, 18, 19, 24]);
    // A second hardware thread counts as a core if the core's first thread is not allowed.
    assert!(topology.cpus.iter().all(|cpu| cpu.thread == 0));
    assert_eq!(machine.default_threads(), 5);
}

#[test]
fn a_quota_limits_the_threads() {
    let quotas =
        [("150000 100000\n", 1), ("50000 100000", 1), ("450000 100000", 4), ("max 100000", 16)];
    for (text, threads) in quotas {
        let machine = Machine::two_sockets();
        machine.write("proc/self/cgroup", "0::/box\n");
        machine.write("sys/fs/cgroup/box/cpu.max", text);
        assert_eq!(machine.default_threads(), threads, "{text}");
    }
    for (quota, threads) in [("300000\n", 3), ("-1\n", 16)] {
        let machine = Machine::two_sockets();
        machine.write("proc/self/cgroup", "4:cpu,cpuacct:/a/b\n");
        machine.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", quota);
        machine.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
        assert_eq!(machine.default_threads(), threads, "{quota}");
    }
}

#[test]
fn a_quota_of_one_and_a_half_cpus_gives_one_thread() {
    let machine = Machine::two_sockets();
    machine.write("proc/self/status", "Cpus_allowed_list:\t2-3,18-19\n");
    machine.write("proc/self/cgroup", "0::/\n");
    machine.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
    assert_eq!(machine.topology().cpus.len(), 4);
    assert_eq!(machine.default_threads(), 1);
}

#[test]
fn fast_cores_are_preferred() {
    // Eight performance cores with two threads each, sixteen efficiency cores.
    let hybrid = Machine::online(32);
    for cpu in 0..16 {
        hybrid.siblings(cpu, &format!("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1));
    }
    (16..32).for_each(|cpu| hybrid.siblings(cpu, &cpu.to_string()));
    hybrid.write("sys/devices/cpu_core/cpus", "0-15\n");
    hybrid.write("sys/devices/cpu_atom/cpus", "16-31\n");
    assert_eq!(hybrid.default_threads(), 8);
    // Only slow cores are allowed, so all of them are used.
    hybrid.write("proc/self/status", "Cpus_allowed_list:\t20-23\n");
    assert_eq!(hybrid.default_threads(), 4);

    let phone = Machine::online(8);
    for (cpu, capacity) in [250, 250, 250, 250, 871, 871, 871, 1024].into_iter().enumerate() {
        phone
            .write(&format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), &capacity.to_string());
    }
    assert_eq!(phone.default_threads(), 4);
}

#[test]
fn missing_and_invalid_entries_are_ignored() {
    assert_eq!(Topology::read(Machine::new(&[]).root()), None);
    assert_eq!(Machine::online(4).default_threads(), 4);
    let machine = Machine::online(4);
    for cpu in 0..4 {
        // Not a list, a list without the CPU itself, a list that would fill the memory, an empty
        // list.
        let lists = ["\u{fffd}..", "9,10", "0-4294967295", ""];
        machine.siblings(cpu, lists[cpu]);
        machine.write(&format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), "-7");
    }
    machine.write("sys/devices/system/node/node0/cpulist", "0-1");
    machine.write("sys/devices/system/node/nodeX/cpulist", "0-3");
    machine.write("sys/devices/system/node/node99999999999999999999/cpulist", "0-3");
    machine.write("sys/devices/system/node/node1/cpulist", "two");
    machine.write("sys/devices/cpu_core/cpus", "0-99999999");
    machine.write("proc/self/status", "Cpus_allowed_list:\tall\n");
    machine.write("proc/self/cgroup", "0::/\n");
    machine.write("sys/fs/cgroup/cpu.max", "5 0\n");
    let topology = machine.topology();
    assert_eq!(topology, Topology::uniform(4));
    let nowhere = Machine::new(&[
        ("sys/devices/system/cpu/online", "0-1"),
        ("proc/self/status", "Cpus_allowed_list:\t7\n"),
    ]);
    assert_eq!(Topology::read(nowhere.root()), None);
}

#[test]
fn this_machine_has_a_cpu() {
    let topology = Topology::of_this_machine();
    assert!((1..=topology.cpus.len()).contains(&topology.n_threads(&topology.cpus)));
}
