//! Options of a scheduler, and its notices.

use std::path::PathBuf;
use std::sync::Arc;

use hal::Bytes;

/// Callback for notices, called on the scheduler's thread.
pub type Observer = Arc<dyn Fn(&Notice) + Send + Sync>;

/// Options of a scheduler.
///
/// The context is shared: all sequences together, running and idle, have the `n_ctx` tokens of the
/// engine, and each one may use up to `n_ctx` (or up to the model's learned positions).
#[derive(Clone)]
pub struct SchedulerOptions {
    /// Generations that run at once; `None` for the `n_seq` of the engine, which is also the
    /// maximum. Others wait.
    pub n_parallel: Option<usize>,
    /// Maximum number of requests that wait; further ones are refused with
    /// [`SubmitError::QueueFull`](crate::SubmitError::QueueFull).
    pub max_queued: usize,
    /// Tokens of prefill between two decode steps; `None` for 128 if the CPU computes the model,
    /// and for the engine's micro-batch if other devices do. The last bits of logits depend on it.
    pub prefill_piece: Option<usize>,
    /// With recurrent layers: tokens of a long prompt between two checkpoints, while rows for them
    /// are free.
    pub checkpoint_every: usize,
    /// Whether the cached tokens of other generations are reused.
    pub cache_reuse: bool,
    /// Folder of [`Scheduler::save_slot`](crate::Scheduler::save_slot) and
    /// [`Scheduler::restore_slot`](crate::Scheduler::restore_slot); `None` turns them off.
    pub slot_folder: Option<PathBuf>,
    /// Folder for sequences that no longer fit into the KV cache, and its maximum size; `None`
    /// drops them.
    pub disk_cache: Option<(PathBuf, Bytes)>,
    /// Receives notices.
    pub observer: Observer,
}

impl std::fmt::Debug for SchedulerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SchedulerOptions")
            .field("n_parallel", &self.n_parallel)
            .field("max_queued", &self.max_queued)
            .field("prefill_piece", &self.prefill_piece)
            .field("checkpoint_every", &self.checkpoint_every)
            .field("cache_reuse", &self.cache_reuse)
            .field("slot_folder", &self.slot_folder)
            .field("disk_cache", &self.disk_cache)
            .finish_non_exhaustive()
    }
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            n_parallel: None,
            max_queued: 256,
            prefill_piece: None,
            checkpoint_every: 2048,
            cache_reuse: true,
            slot_folder: None,
            disk_cache: None,
            observer: Arc::new(|_: &Notice| {}),
        }
    }
}

/// An event that is not the result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A file in the folder of the disk cache is skipped.
    FileSkipped {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A damaged file of the disk cache was deleted.
    FileDeleted {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A sequence could not be written to the disk cache, and was dropped.
    NotSpilled {
        /// The problem.
        reason: String,
    },
    /// A step failed, and with it some generations.
    StepFailed {
        /// The problem.
        reason: String,
    },
    /// The scheduler's thread panicked: all generations failed, and none is accepted any more.
    Panicked,
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Notice::FileSkipped { file, reason } => {
                write!(f, "skipping '{}' in the disk cache: {reason}", file.display())
            }
            Notice::FileDeleted { file, reason } => {
                write!(f, "deleted '{}' from the disk cache: {reason}", file.display())
            }
            Notice::NotSpilled { reason } => {
                write!(f, "cannot write a sequence to the disk cache: {reason}")
            }
            Notice::StepFailed { reason } => write!(f, "a step failed: {reason}"),
            Notice::Panicked => {
                f.write_str("the scheduler failed and accepts no requests any more; restart it")
            }
        }
    }
}
