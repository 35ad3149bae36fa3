//! The CPU affinity and priority of threads, and limits on locked memory: one module for each system.
//!
//! | System | Affinity | Priority |
//! | --- | --- | --- |
//! | Linux | any set of CPUs | niceness of this thread and of threads that it starts |
//! | Windows | CPUs of one group of up to 64 | priority class of the process |
//! | macOS | none; threads ask for performance cores | niceness of the process |

use std::io;

#[cfg(target_os = "linux")]
#[path = "affinity/linux.rs"]
mod system;
#[cfg(target_vendor = "apple")]
use crate::macos::threads as system;
#[cfg(windows)]
use crate::windows::threads as system;
#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
#[path = "affinity/other.rs"]
mod system;

pub(crate) use system::{bind, current_cpu, lock_limit, set_priority};

/// Binds the calling thread to CPUs; dropping this value restores the previous affinity.
#[derive(Debug)]
pub(crate) struct BoundThread(Option<system::PreviousAffinity>);

impl BoundThread {
    /// If `cpus` is empty or the system cannot bind threads, the system chooses the CPUs; on macOS, it is asked for
    /// performance cores.
    pub(crate) fn new(cpus: &[usize]) -> BoundThread {
        #[cfg(target_vendor = "apple")]
        system::prefer_performance_cores();
        BoundThread(if cpus.is_empty() { None } else { bind(cpus).ok() })
    }
}

impl Drop for BoundThread {
    fn drop(&mut self) {
        self.0.iter().for_each(system::unbind);
    }
}

/// The error of a system that cannot do what was asked.
#[cfg_attr(any(target_os = "linux", windows), allow(dead_code, reason = "these systems can"))]
pub(crate) fn unsupported(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text)
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
