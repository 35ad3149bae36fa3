//! A test and its result as named values: llama-bench's columns in its order, then our own.

use super::facts::Facts;
use crate::bench::{Measurement, Test, mean, standard_deviation};
use crate::cli::args::{mask, policy_name};
use crate::cli::date::iso_8601;
use crate::cli::version::BUILD;
use crate::engine::UnionStats;
use hal::Bytes;
use std::time::{Duration, SystemTime};

/// A typed value; `None` where it does not apply.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(Option<String>),
    Int(Option<u64>),
    Real(Option<f64>),
    Bool(bool),
}

/// One test on one engine.
#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    pub(super) facts: &'a Facts,
    pub(super) test: Test,
    pub(super) measured: Measurement,
    /// When the test started.
    pub(super) time: SystemTime,
    /// The CPU's memory for the model: allocations, and mapped weights that are read.
    pub(super) ram_used: Bytes,
}

impl Row<'_> {
    /// Nanoseconds of each run.
    pub(super) fn samples_ns(&self) -> Vec<u64> {
        self.measured.runs.iter().map(|run| nanoseconds(*run)).collect()
    }

    /// Tokens per second of each run.
    pub(super) fn samples_ts(&self) -> Vec<f64> {
        let n = self.test.n_timed() as f64;
        // Durations are positive, but the clock may report 0.
        self.measured.runs.iter().map(|run| n / run.as_secs_f64().max(1e-9)).collect()
    }

    /// Mean and standard deviation of the tokens per second.
    pub(super) fn rate(&self) -> (f64, f64) {
        let samples = self.samples_ts();
        (mean(&samples), standard_deviation(&samples))
    }

    /// Mean tokens per second of each sequence.
    pub(super) fn rate_each(&self) -> f64 {
        self.rate().0 / self.test.n_seq.max(1) as f64
    }

    /// Bytes read per token. `None` if a test computes several tokens in one step, because they
    /// share reads.
    pub(super) fn bytes_per_token(&self) -> Option<f64> {
        let Measurement { neurons, .. } = &self.measured;
        let gates = neurons.gates / neurons.neurons.max(1.0);
        let density = self.measured.density().unwrap_or(0.0);
        (self.test.n_prompt == 0 && self.test.n_seq == 1)
            .then(|| self.facts.traffic.bytes_per_token(density, gates, self.test))
    }

    /// Bytes read per second as a fraction of the measured memory bandwidth.
    pub(super) fn bandwidth_share(&self) -> Option<f64> {
        Some(self.bytes_per_token()? * self.rate().0 / (self.facts.bandwidth? * 1e9))
    }

    /// Union counts: neurons that at least one token of a step needed, and rows computed for all
    /// tokens.
    pub(super) fn union(&self) -> UnionStats {
        self.measured.neurons.union
    }

    /// Fraction of the active neurons that were not on the CPU; `None` if no layer is on a device.
    pub(super) fn off_cpu(&self) -> Option<f64> {
        let Measurement { neurons, .. } = &self.measured;
        (self.facts.devices.n_layers > 0).then(|| neurons.off_cpu / neurons.active.max(1.0))
    }

    /// Mean prefill time in nanoseconds, as time to first token; `None` without a prompt.
    pub(super) fn ttft(&self) -> Option<u64> {
        let prompts: Vec<f64> =
            self.measured.prefill_times.iter().map(|time| time.as_nanos() as f64).collect();
        (self.test.n_prompt > 0).then(|| mean(&prompts) as u64)
    }

    /// All columns, in output order.
    pub(super) fn fields(&self) -> Vec<(&'static str, Value)> {
        let mut fields = self.configuration();
        fields.extend(self.result());
        fields.extend(self.own_columns());
        fields
    }

    /// llama-bench's columns of the configuration. Settings without an equivalent here are `none`,
    /// 0 or false.
    fn configuration(&self) -> Vec<(&'static str, Value)> {
        let facts = self.facts;
        vec![
            ("build_commit", text(&BUILD)),
            ("build_number", int(0)),
            ("cpu_info", text(&facts.cpu_info)),
            ("gpu_info", text(&facts.devices.descriptions.join(", "))),
            ("backends", text(&facts.backends())),
            ("model_filename", text(&facts.model_filename)),
            ("model_type", text(&facts.model_type)),
            ("model_size", int(facts.model_size)),
            ("model_n_params", int(facts.model_n_params)),
            ("n_batch", int(facts.n_batch.into())),
            ("n_ubatch", int(facts.n_ubatch.into())),
            ("n_threads", int(facts.n_threads as u64)),
            ("cpu_mask", text(&mask(&facts.processor))),
            ("cpu_strict", Value::Bool(facts.processor.strict)),
            ("poll", int(facts.processor.poll.into())),
            ("type_k", text(facts.type_k)),
            ("type_v", text(facts.type_v)),
            ("n_gpu_layers", int(facts.devices.n_layers as u64)),
            ("n_cpu_moe", int(facts.devices.n_cpu_moe as u64)),
            ("split_mode", text("none")),
            ("main_gpu", int(facts.devices.main as u64)),
            ("no_kv_offload", Value::Bool(facts.devices.cache_on_cpu)),
            // No backend stores the scores of a whole prompt.
            ("flash_attn", Value::Bool(true)),
            ("devices", text(&facts.device_names())),
            ("tensor_split", text("0.00")),
            ("tensor_buft_overrides", text(&facts.devices.overrides)),
            ("use_mmap", Value::Bool(facts.mmap)),
            ("use_direct_io", Value::Bool(false)),
            ("embeddings", Value::Bool(false)),
            ("no_op_offload", int(0)),
            ("no_host", Value::Bool(false)),
            ("fit_target", int(0)),
            ("fit_min_ctx", int(0)),
        ]
    }

    /// llama-bench's columns of the test and its result.
    fn result(&self) -> Vec<(&'static str, Value)> {
        let (rate, rate_sd) = self.rate();
        let ns: Vec<f64> = self.samples_ns().iter().map(|&ns| ns as f64).collect();
        vec![
            ("n_prompt", int(self.test.n_prompt as u64)),
            ("n_gen", int(self.test.n_gen as u64)),
            ("n_depth", int(self.test.n_depth as u64)),
            ("test_time", text(&iso_8601(self.time))),
            ("avg_ns", int(mean(&ns) as u64)),
            ("stddev_ns", int(standard_deviation(&ns) as u64)),
            ("avg_ts", Value::Real(Some(rate))),
            ("stddev_ts", Value::Real(Some(rate_sd))),
        ]
    }

    /// Bytes by device, such as `CPU=1234,Vulkan0=567`.
    fn device_bytes(&self) -> String {
        let bytes = self.facts.device_bytes(self.ram_used).into_iter();
        bytes.map(|(name, bytes)| format!("{name}={}", bytes.0)).collect::<Vec<_>>().join(",")
    }

    fn own_columns(&self) -> Vec<(&'static str, Value)> {
        let facts = self.facts;
        let waits = self.measured.neurons.waits.shares();
        vec![
            ("engine", text(env!("CARGO_PKG_NAME"))),
            ("engine_version", text(env!("CARGO_PKG_VERSION"))),
            ("vram_budget_bytes", Value::Int(facts.devices.budget.map(|budget| budget.0))),
            ("vram_used_bytes", int(facts.devices.used.iter().map(|bytes| bytes.0).sum())),
            ("ram_used_bytes", int(self.ram_used.0)),
            ("hot_fraction", Value::Real(facts.devices.hot_fraction)),
            ("hot_fraction_measured", Value::Real(self.off_cpu())),
            ("placement", text(if facts.sparse { "sparse" } else { "dense" })),
            ("profile_hash", Value::Text(None)),
            ("predictor", Value::Text(facts.predictor.map(str::to_owned))),
            ("driver_version", Value::Text(None)),
            ("backend_api", text(&facts.backend_api())),
            ("ttft_ns", Value::Int(self.ttft())),
            ("load_ns", int(nanoseconds(facts.load))),
            ("sparsity", text(&facts.sparsity)),
            ("synthetic", Value::Bool(facts.synthetic)),
            ("prompt_file", Value::Text(facts.prompt_file.clone())),
            ("density", Value::Real(self.measured.density())),
            ("bytes_per_token", Value::Int(self.bytes_per_token().map(|bytes| bytes as u64))),
            ("read_bandwidth_gb_s", Value::Real(facts.bandwidth)),
            ("bandwidth_share", Value::Real(self.bandwidth_share())),
            ("device_bytes", text(&self.device_bytes())),
            ("cpu_waited", Value::Real(waits.map(|[cpu, _]| cpu))),
            ("devices_waited", Value::Real(waits.map(|[_, devices]| devices))),
            ("logit_difference", Value::Real(facts.difference)),
            ("n_parallel", int(self.test.n_seq as u64)),
            ("avg_ts_each", Value::Real(Some(self.rate_each()))),
            ("union_share", Value::Real(self.union().active())),
            ("dense_share", Value::Real(self.union().dense())),
            ("placement_policy", text(policy_name(facts.devices.policy))),
        ]
    }
}

fn text(text: &str) -> Value {
    Value::Text(Some(text.to_owned()))
}

fn int(n: u64) -> Value {
    Value::Int(Some(n))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
