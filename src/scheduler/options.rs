//! Options of a scheduler, and its notices.

use std::path::PathBuf;
use std::sync::Arc;

use hal::Bytes;

/// Callback for notices. It runs on the scheduler's thread.
pub type Observer = Arc<dyn Fn(&Notice) + Send + Sync>;

/// Options of a scheduler.
///
/// All sequences, running and idle, share the engine's context of `n_ctx` tokens. Each one may use
/// up to `n_ctx` tokens, or the model's number of learned positions if that is smaller.
#[derive(Clone)]
pub struct SchedulerOptions {
    /// Maximum number of generations that run at once; others wait. `None` for the engine's
    /// `n_seq`, which is also the upper limit.
    pub n_parallel: Option<usize>,
    /// Maximum number of waiting requests. Further requests are refused with
    /// [`SubmitError::QueueFull`](crate::SubmitError::QueueFull).
    pub max_queued: usize,
    /// Tokens of prefill between two decode steps; `None` for 128 if the CPU computes the model,
    /// and for the engine's micro-batch if other devices do. The last bits of logits depend on it.
    pub prefill_piece: Option<usize>,
    /// With recurrent layers: number of tokens between two checkpoints of a long prompt.
    /// Checkpoints are made only while checkpoint rows are free.
    pub checkpoint_every: usize,
    /// Whether generations reuse the cached tokens of other generations.
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

/// A message that is not the result of a call.
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
    /// A step failed, which may have ended some generations.
    StepFailed {
        /// The problem.
        reason: String,
    },
    /// The scheduler's thread panicked. All generations failed, and new requests are refused.
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
            Notice::Panicked => f.write_str(
                "the scheduler failed and refuses further requests; restart the program",
            ),
        }
    }
}
