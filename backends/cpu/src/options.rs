//! How the processor is used, in the user's terms.

use std::fmt;
use std::sync::Arc;

use crate::seats::Seats;
use crate::topology::Topology;

/// How the processor is used.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the calling one included; `None` for the physical cores (of the fast kind, if there are two) that
    /// this process may use.
    pub threads: Option<usize>,
    /// Threads for programs of more than one token, where they shall be others.
    pub threads_batch: Option<usize>,
    /// CPUs to stay on, by the system's numbers; `None` for all that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// Bind each thread to one CPU instead of all of them to the same set.
    pub strict: bool,
    /// How threads and weights are spread over NUMA nodes; `None` leaves that to the system.
    pub numa: Option<Numa>,
    /// The threads' priority.
    pub priority: Priority,
    /// How long a waiting thread keeps its core, in percent of the longest: 0 sleeps at once, 50 is the default.
    pub poll: Option<u8>,
    /// Lock tensor memory, so that the system cannot page it out.
    pub lock: bool,
    /// Told what the system refuses.
    pub notice: Notice,
}

/// How threads and weights are spread over NUMA nodes. Both stay within the process's affinity in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    /// Over all nodes.
    Distribute,
    /// On the node on which the program was started.
    Isolate,
    /// As `numactl` set it up, which is what [`Numa::Distribute`] does within the affinity.
    Numactl,
}

/// Priority of threads against other programs'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Gives way to others.
    Low,
    /// As it was.
    #[default]
    Normal,
    /// Above others; the system may refuse this.
    Medium,
    /// Further above.
    High,
    /// As far above as there is without a real-time class.
    Realtime,
}

/// Takes sentences for the user.
#[derive(Clone)]
pub struct Notice(Arc<dyn Fn(&str) + Send + Sync>);

impl Notice {
    /// Calls `tell` with each sentence.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Notice {
        Notice(Arc::new(tell))
    }

    pub(crate) fn tell(&self, text: &str) {
        (self.0)(text);
    }
}

impl Default for Notice {
    /// Nobody is told.
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
