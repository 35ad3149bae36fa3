//! User options of the CPU backend.

use std::fmt;
use std::sync::Arc;

use crate::seats::Seats;
use crate::topology::Topology;

/// User options of the CPU backend.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads, including the calling one; `None` for the physical cores (only the fast ones on a
    /// hybrid CPU) that this process may use.
    pub threads: Option<usize>,
    /// Threads for programs of more than one token, if different.
    pub threads_batch: Option<usize>,
    /// CPUs to run on, by the system's numbers; `None` for all that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// Bind each thread to one CPU instead of all of them to the same set.
    pub strict: bool,
    /// How threads and weights are spread over NUMA nodes; `None` leaves that to the system.
    pub numa: Option<Numa>,
    /// The threads' priority.
    pub priority: Priority,
    /// How long an idle thread spins before it parks, in percent of the maximum: 0 parks at once,
    /// 50 is the default.
    pub poll: Option<u8>,
    /// Lock tensor memory, so that the system cannot page it out.
    pub lock: bool,
    /// Receives a message for each request that the system refuses.
    pub notice: Notice,
}

/// How threads and weights are spread over NUMA nodes. Both always stay within the process's
/// affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    /// Over all nodes.
    Distribute,
    /// On the node on which the program was started.
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
    /// Further above.
    High,
    /// The highest without a real-time scheduling class.
    Realtime,
}

/// Receives messages for the user.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Calls `tell` with each message.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Notice {
        Notice(Arc::new(tell))
    }

    pub(crate) fn tell(&self, text: &str) {
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
    /// Threads for programs of one token.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        Seats::plan(&Topology::of_this_machine(), self, crate::affinity::here()).n_active(false)
    }
}
