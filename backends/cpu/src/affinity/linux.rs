use std::io;

use rustix::process::{Resource, getrlimit, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::options::Priority;

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

/// Sets the calling thread's niceness. Threads that it starts inherit the value.
pub(crate) fn set_priority(priority: Priority) -> io::Result<()> {
    match priority.niceness() {
        Some(niceness) => Ok(setpriority_process(None, niceness)?),
        None => Ok(()),
    }
}

/// Maximum bytes that this process may lock in memory; `None` without a limit.
pub(crate) fn lock_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}
