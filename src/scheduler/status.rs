//! The state of a scheduler, for people and monitoring.

use std::time::Duration;

use engine::{LayerActivity, StepStats};

/// State of a scheduler after its latest step.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether it accepts requests; false after a panic of its thread.
    pub healthy: bool,
    /// Whether it is shutting down.
    pub shutting_down: bool,
    /// Generations that can run at once, each in a slot.
    pub slots: Vec<SlotStatus>,
    /// Requests that wait to run for the first time.
    pub n_queued: usize,
    /// Generations that wait for KV blocks after they ran, and choices that wait for their prompt.
    pub n_paused: usize,
    /// Idle sequences in the KV cache.
    pub n_idle: usize,
    /// Tokens of context, over all sequences.
    pub n_ctx: usize,
    /// Maximum number of tokens of one sequence.
    pub n_ctx_sequence: usize,
    /// KV blocks.
    pub n_blocks: usize,
    /// KV blocks held by running and idle sequences.
    pub n_blocks_used: usize,
    /// Sequences in the disk cache.
    pub n_disk_files: usize,
    /// Their size in bytes.
    pub disk_bytes: u64,
    /// Totals since the start.
    pub counters: Counters,
    /// Activity of each layer since the model was opened, read now and then.
    pub layers: Vec<LayerActivity>,
    /// Memory of the devices, the CPU first.
    pub devices: Vec<DeviceStatus>,
}

/// Memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Bytes allocated.
    pub used: u64,
    /// The budget in bytes; `None` for no limit.
    pub budget: Option<u64>,
}

/// State of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// Number of the slot, from 0.
    pub id: usize,
    /// What its generation does.
    pub phase: SlotPhase,
    /// Number of its latest request, from 1; 0 before the first.
    pub task: u64,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Number of these that were cached.
    pub n_cached: usize,
    /// Tokens of the sequence that are computed.
    pub n_tokens: usize,
    /// Tokens generated.
    pub n_generated: usize,
    /// Tokens that may still be generated; `None` without a limit.
    pub n_left: Option<usize>,
}

/// What the generation of a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPhase {
    /// The slot is free; its sequence may be cached.
    Idle,
    /// The prompt is computed.
    Prefill,
    /// Tokens are generated.
    Decode,
}

/// Totals since the start of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were cached.
    pub cached_tokens: u64,
    /// The number of these that came from the disk cache.
    pub disk_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens computed again after a pause, a context shift or a lost device.
    pub recomputed_tokens: u64,
    /// Time of prefill steps.
    pub prompt_time: Duration,
    /// Time of decode steps.
    pub generated_time: Duration,
    /// Decode steps.
    pub n_steps: u64,
    /// Sum over the decode steps of the generations in each.
    pub n_busy_slots: u64,
    /// Requests accepted.
    pub n_requests: u64,
    /// Generations that ended, errors excluded.
    pub n_finished: u64,
    /// Generations that an error ended.
    pub n_failed: u64,
    /// Times that a generation was paused.
    pub n_paused: u64,
    /// Idle sequences evicted from the KV cache.
    pub n_evicted: u64,
    /// Sequences written to the disk cache.
    pub n_spilled: u64,
    /// Sequences restored from it.
    pub n_restored: u64,
    /// Neuron statistics, read now and then.
    pub neurons: StepStats,
}
