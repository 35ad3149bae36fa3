//! System calls for the CPU affinity and priority of threads. Outside Linux they fail or return
//! `None`.

#[cfg(target_os = "linux")]
mod system {
    use std::io;

    use rustix::process::{Resource, getrlimit, setpriority_process};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// The affinity of the calling thread before [`bind`].
    #[derive(Debug)]
    pub(crate) struct PreviousAffinity(CpuSet);

    pub(crate) fn current_cpu() -> Option<usize> {
        Some(sched_getcpu())
    }

    pub(crate) fn bind(cpus: &[usize]) -> io::Result<PreviousAffinity> {
        let before = sched_getaffinity(None)?;
        let mut set = CpuSet::new();
        let known = cpus.iter().copied().filter(|&cpu| cpu < CpuSet::MAX_CPU);
        known.for_each(|cpu| set.set(cpu));
        sched_setaffinity(None, &set)?;
        Ok(PreviousAffinity(before))
    }

    pub(crate) fn unbind(before: &PreviousAffinity) {
        // This fails only if the CPUs are no longer allowed; the thread then keeps its affinity.
        let _ = sched_setaffinity(None, &before.0);
    }

    /// Sets the calling thread's niceness (-20 to 19; lower is more urgent). Threads that the
    /// calling thread starts inherit the value.
    pub(crate) fn set_niceness(niceness: i32) -> io::Result<()> {
        Ok(setpriority_process(None, niceness)?)
    }

    /// Maximum bytes that this process may lock in memory; `None` without a limit.
    pub(crate) fn lock_limit() -> Option<u64> {
        getrlimit(Resource::Memlock).current
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    #[derive(Debug)]
    pub(crate) struct PreviousAffinity(());

    pub(crate) fn current_cpu() -> Option<usize> {
        None
    }

    pub(crate) fn bind(_cpus: &[usize]) -> io::Result<PreviousAffinity> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn unbind(_before: &PreviousAffinity) {}

    pub(crate) fn set_niceness(_niceness: i32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn lock_limit() -> Option<u64> {
        None
    }
}

pub(crate) use system::{bind, current_cpu, lock_limit, set_niceness};

/// Binds the calling thread to CPUs; dropping this value restores the previous affinity.
#[derive(Debug)]
pub(crate) struct BoundThread(Option<system::PreviousAffinity>);

impl BoundThread {
    /// Does nothing if `cpus` is empty or the system cannot bind threads.
    pub(crate) fn new(cpus: &[usize]) -> BoundThread {
        BoundThread(if cpus.is_empty() { None } else { bind(cpus).ok() })
    }
}

impl Drop for BoundThread {
    fn drop(&mut self) {
        self.0.iter().for_each(system::unbind);
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::files::{cpu_list, read_text};

    fn allowed_cpus() -> Vec<usize> {
        let status = read_text(std::path::Path::new("/proc/thread-self/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        cpu_list(line.unwrap()).unwrap()
    }

    #[test]
    fn dropping_a_bound_thread_restores_the_affinity() {
        let before = allowed_cpus();
        for &cpu in &before {
            let bound = BoundThread::new(&[cpu]);
            assert_eq!((allowed_cpus(), current_cpu()), (vec![cpu], Some(cpu)));
            drop(bound);
            assert_eq!(allowed_cpus(), before);
        }
        drop(BoundThread::new(&[]));
        drop(BoundThread::new(&[usize::MAX]));
        assert_eq!(allowed_cpus(), before);
    }
}
