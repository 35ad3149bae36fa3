//! User options of the CPU backend.

use std::fmt;
use std::sync::Arc;

use crate::prefetch::PrefetchDistance;
use crate::thread_plan::ThreadPlan;
use crate::topology::Topology;

/// User options of the CPU backend.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Number of threads, including the calling thread. `None` means one thread per physical core
    /// among the usable CPUs (performance cores only, on a hybrid CPU), at most the container's CPU
    /// quota.
    pub threads: Option<usize>,
    /// Number of threads for programs of more than one token; `None` uses `threads`.
    pub threads_batch: Option<usize>,
    /// Numbers of the CPUs to run on; `None` for all CPUs that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// Binds each thread to one CPU instead of a set of CPUs.
    pub strict: bool,
    /// How threads and weights are spread over NUMA nodes; `None` leaves their placement to the
    /// operating system.
    pub numa: Option<Numa>,
    /// Priority of the threads.
    pub priority: Priority,
    /// How long an idle thread polls before it parks, in percent of the maximum of 160
    /// microseconds: 0 parks immediately; `None` means 50.
    pub poll: Option<u8>,
    /// Locks tensor memory, so the system cannot page it out.
    pub lock: bool,
    /// How far ahead kernels prefetch rows of weights; the holder of a clone can change it.
    pub prefetch: PrefetchDistance,
    /// Receives a message for each option that cannot be applied.
    pub notice: Notice,
}

/// How threads and weights are spread over NUMA nodes, within the process's CPU affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    /// Over all nodes.
    Distribute,
    /// On the node of the CPU that runs the calling thread when the backend is created.
    Isolate,
    /// As set up by `numactl`: the same as [`Numa::Distribute`] within the affinity.
    Numactl,
}

/// Priority of threads relative to other programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Below other programs.
    Low,
    /// Unchanged.
    #[default]
    Normal,
    /// Above other programs; the system may refuse this.
    Medium,
    /// Above [`Priority::Medium`]; the system may refuse this.
    High,
    /// The highest priority outside the real-time scheduling classes.
    Realtime,
}

impl Priority {
    /// The niceness of a Unix system (-20 to 19; lower is more urgent), as in llama.cpp; `None` keeps the current one.
    #[cfg_attr(windows, allow(dead_code, reason = "Windows has classes"))]
    pub(crate) fn niceness(self) -> Option<i32> {
        match self {
            Priority::Low => Some(5),
            Priority::Normal => None,
            Priority::Medium => Some(-5),
            Priority::High => Some(-10),
            Priority::Realtime => Some(-20),
        }
    }
}

/// Receives messages for the user.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Calls `handler` with each message.
    pub fn new(handler: impl Fn(&str) + Send + Sync + 'static) -> Notice {
        Notice(Arc::new(handler))
    }

    pub(crate) fn send(&self, text: &str) {
        (self.0)(text);
    }
}

impl Default for Notice {
    /// Discards all messages.
    fn default() -> Notice {
        Notice::new(|_| {})
    }
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notice")
    }
}

impl CpuOptions {
    /// Number of threads that run programs of one token on this machine.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        ThreadPlan::plan(&Topology::of_this_machine(), self, crate::affinity::current_cpu())
            .n_active_threads(false)
    }
}
