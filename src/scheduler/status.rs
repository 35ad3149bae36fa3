//! The state of a scheduler, for monitoring.

use std::time::Duration;

use engine::{FiredNeurons, LayerActivity, StepStats};

/// State of a scheduler after its latest step.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether the scheduler works; false after a panic of its thread.
    pub healthy: bool,
    /// Whether the scheduler is shutting down.
    pub shutting_down: bool,
    /// The slots. Each can run one generation at a time.
    pub slots: Vec<SlotStatus>,
    /// Number of requests that have not started yet.
    pub n_queued: usize,
    /// Number of paused generations, which wait for KV blocks, and of choices whose prompt was
    /// computed by the first choice.
    pub n_paused: usize,
    /// Number of idle sequences in the KV cache.
    pub n_idle: usize,
    /// Context size in tokens, over all sequences.
    pub n_ctx: usize,
    /// Maximum number of tokens of one sequence.
    pub n_ctx_sequence: usize,
    /// Number of KV blocks.
    pub n_blocks: usize,
    /// KV blocks held by running and idle sequences.
    pub n_blocks_used: usize,
    /// Number of sequences in the disk cache.
    pub n_disk_files: usize,
    /// Size of the disk cache in bytes.
    pub disk_bytes: u64,
    /// Totals since the start.
    pub counters: Counters,
    /// Activity of each layer since the model was opened, updated periodically.
    pub layers: Vec<LayerActivity>,
    /// The neurons that fired in a recent decode step; without layers if no client watches
    /// ([`Scheduler::watch`](crate::Scheduler::watch)).
    pub fired: FiredNeurons,
    /// Memory of the devices, the CPU first.
    pub devices: Vec<DeviceStatus>,
}

/// Memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Name of the device.
    pub name: String,
    /// Bytes allocated.
    pub used: u64,
    /// The budget in bytes; `None` for no limit.
    pub budget: Option<u64>,
}

/// State of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// Index of the slot.
    pub id: usize,
    /// Phase of the slot's generation.
    pub phase: SlotPhase,
    /// Id of the slot's latest request, from 1; 0 before the first request.
    pub task: u64,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Number of prompt tokens that were cached.
    pub n_cached: usize,
    /// Computed tokens of the sequence.
    pub n_tokens: usize,
    /// Tokens generated.
    pub n_generated: usize,
    /// Tokens that may still be generated; `None` without a limit.
    pub n_left: Option<usize>,
}

/// The phase of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPhase {
    /// The slot is free; its sequence may be cached.
    Idle,
    /// The prompt is being computed.
    Prefill,
    /// Tokens are being generated.
    Decode,
}

/// Totals since the start of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Prompt tokens reused from a cache.
    pub cached_tokens: u64,
    /// Number of `cached_tokens` that came from the disk cache.
    pub disk_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens computed again after a pause, a context shift or a lost device.
    pub recomputed_tokens: u64,
    /// Time of prefill steps, of embeddings, and of the prompt's share of decode steps.
    pub prompt_time: Duration,
    /// Time of decode steps without the prompt's share.
    pub generated_time: Duration,
    /// Number of decode steps, and of steps that compute embeddings.
    pub n_steps: u64,
    /// Sum over `n_steps` of the generations or texts in each step.
    pub n_busy_slots: u64,
    /// Tokens of the longest sequence so far.
    pub n_tokens_max: u64,
    /// Requests accepted.
    pub n_requests: u64,
    /// Generations that ended without an error.
    pub n_finished: u64,
    /// Generations that ended with an error.
    pub n_failed: u64,
    /// Number of times that a generation was paused.
    pub n_paused: u64,
    /// Idle sequences evicted from the KV cache.
    pub n_evicted: u64,
    /// Sequences written to the disk cache.
    pub n_spilled: u64,
    /// Sequences restored from the disk cache.
    pub n_restored: u64,
    /// Neuron statistics, updated periodically.
    pub neurons: StepStats,
}
