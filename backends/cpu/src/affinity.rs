//! CPU affinity and priority of threads: the system calls, on systems that have them.

#[cfg(target_os = "linux")]
mod system {
    use std::io;

    use rustix::process::{Resource, getrlimit, setpriority_process};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// The calling thread's previous affinity.
    #[derive(Debug)]
    pub(crate) struct Before(CpuSet);

    /// The CPU that this thread runs on now.
    pub(crate) fn here() -> Option<usize> {
        Some(sched_getcpu())
    }

    /// Binds the calling thread to `cpus`.
    pub(crate) fn bind(cpus: &[usize]) -> io::Result<Before> {
        let before = sched_getaffinity(None)?;
        let mut set = CpuSet::new();
        let known = cpus.iter().copied().filter(|&cpu| cpu < CpuSet::MAX_CPU);
        known.for_each(|cpu| set.set(cpu));
        sched_setaffinity(None, &set)?;
        Ok(Before(before))
    }

    /// Undoes [`bind`].
    pub(crate) fn unbind(before: &Before) {
        // The CPUs were allowed before; if they no longer are, the thread keeps its affinity.
        let _ = sched_setaffinity(None, &before.0);
    }

    /// Sets the calling thread's priority; threads that it starts inherit it.
    pub(crate) fn nice(niceness: i32) -> io::Result<()> {
        Ok(setpriority_process(None, niceness)?)
    }

    /// Bytes that this process may lock in memory; `None` without a limit.
    pub(crate) fn lock_limit() -> Option<u64> {
        getrlimit(Resource::Memlock).current
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    #[derive(Debug)]
    pub(crate) struct Before(());

    pub(crate) fn here() -> Option<usize> {
        None
    }

    pub(crate) fn bind(_cpus: &[usize]) -> io::Result<Before> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn unbind(_before: &Before) {}

    pub(crate) fn nice(_niceness: i32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn lock_limit() -> Option<u64> {
        None
    }
}

pub(crate) use system::{bind, here, lock_limit, nice};

/// Binds the calling thread until dropped.
#[derive(Debug)]
pub(crate) struct Bound(Option<system::Before>);

impl Bound {
    /// Binds the calling thread to `cpus`, if there are any and the system supports it.
    pub(crate) fn to(cpus: &[usize]) -> Bound {
        Bound(if cpus.is_empty() { None } else { bind(cpus).ok() })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.0.iter().for_each(system::unbind);
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]
mod tests {
    use super::*;
    use crate::files::{cpu_list, text};

    fn allowed() -> Vec<usize> {
        let status = text(std::path::Path::new("/proc/thread-self/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        cpu_list(line.unwrap()).unwrap()
    }

    #[test]
    fn a_thread_is_bound_for_a_while() {
        let before = allowed();
        for &cpu in &before {
            let bound = Bound::to(&[cpu]);
            assert_eq!((allowed(), here()), (vec![cpu], Some(cpu)));
            drop(bound);
            assert_eq!(allowed(), before);
        }
        drop(Bound::to(&[]));
        drop(Bound::to(&[usize::MAX]));
        assert_eq!(allowed(), before);
    }
}
