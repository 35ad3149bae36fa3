//! Facts that are the same for all tests on a loaded engine.

use super::Combination;
use crate::bench::Traffic;
use crate::cli::args::{BenchSetup, cache_type_name};
use crate::engine::Engine;
use crate::model::Model;
use crate::placement::{CPU, PlacementPolicy};
use hal::{Bytes, Device};
use runtime::{Budget, Computation, DeviceOptions, Machine, Processor, TensorOverride};
use std::collections::BTreeMap;
use std::time::Duration;

/// Facts about a model loaded in one configuration.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The CPU's name, from its backend.
    pub(super) cpu_info: String,
    /// Path of the model file, or the name of a model without a file.
    pub(super) model_filename: String,
    /// Architecture, size and format; ends with `synthetic` for a synthetic model.
    pub(super) model_type: String,
    /// Whether the model is synthetic: random weights with a planted density.
    pub(super) synthetic: bool,
    /// Bytes of all tensors.
    pub(super) model_size: u64,
    /// Values in all tensors.
    pub(super) model_n_params: u64,
    /// Logical batch size.
    pub(super) n_batch: u32,
    /// Physical batch size.
    pub(super) n_ubatch: u32,
    pub(super) n_threads: usize,
    /// Settings of the CPU's threads and memory.
    pub(super) processor: Processor,
    /// Formats of the keys and values in the KV cache.
    pub(super) type_k: &'static str,
    pub(super) type_v: &'static str,
    /// Whether the file is memory-mapped.
    pub(super) mmap: bool,
    /// `predicted`, `exact`, `balanced`, `fast`, an error or `off`.
    pub(super) sparsity: String,
    /// Whether neurons are skipped.
    pub(super) sparse: bool,
    /// The source of the predictor, as printed in the report: from the model file, or trained.
    pub(super) predictor: Option<&'static str>,
    /// Source of the prompt text.
    pub(super) prompt_file: Option<String>,
    /// Bytes of weights and KV cache read per token.
    pub(super) traffic: Traffic,
    /// Memory bandwidth measured with this number of threads, in GB/s.
    pub(super) bandwidth: Option<f64>,
    /// Time to load the weights and create the engine; the file is already open.
    pub(super) load: Duration,
    /// Devices other than the CPU.
    pub(super) devices: DeviceFacts,
    /// Largest logit difference from the first engine; `None` if it was not compared.
    pub(super) difference: Option<f64>,
}

/// Facts about the devices other than the CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceFacts {
    /// The drivers' descriptions of the devices in use.
    pub(super) descriptions: Vec<String>,
    /// Names of the devices in use.
    pub(super) names: Vec<String>,
    /// Devices that were available but hold no part of the model.
    pub(super) empty: Vec<String>,
    /// Sum of the memory budgets of all available devices, including the drivers' reserve; `None`
    /// without a limit.
    pub(super) budget: Option<Bytes>,
    /// The budget of each device, and of the CPU if one was asked for, as text.
    pub(super) budgets: Option<String>,
    /// Peak memory per device, including the driver's reserve.
    pub(super) used: Vec<Bytes>,
    /// Layers on devices, whole or split.
    pub(super) n_layers: usize,
    /// Expected fraction of the active neurons that are on devices.
    pub(super) hot_fraction: Option<f64>,
    /// The `--main-gpu` index, or 0.
    pub(super) main: usize,
    /// Whether keys and values stay on the CPU.
    pub(super) cache_on_cpu: bool,
    /// Number of first layers whose experts stay on the CPU, as requested.
    pub(super) n_cpu_moe: usize,
    /// The overrides of tensor buffers, separated by `;` as llama-bench prints them.
    pub(super) overrides: String,
    /// What the planner aimed for.
    pub(super) policy: PlacementPolicy,
}

/// The overrides as llama-bench prints them.
fn overrides_text(overrides: &[TensorOverride]) -> String {
    let text = |one: &TensorOverride| format!("{}={}", one.pattern, one.buffer);
    match overrides {
        [] => "none".to_owned(),
        all => all.iter().map(text).collect::<Vec<_>>().join(";"),
    }
}

/// The memory budgets as text: those of devices, and that of the CPU if one was asked for.
fn budgets(machine: &Machine, ram: Budget) -> Option<String> {
    let ram = match ram {
        Budget::Auto => None,
        Budget::Bytes(bytes) => Some(format!("RAM {}", Bytes(bytes))),
        Budget::Share(share) => Some(format!("RAM {share}")),
    };
    let all: Vec<String> = machine.budgets().into_iter().chain(ram).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

impl DeviceFacts {
    fn new(engine: &Engine, machine: &Machine, wanted: &DeviceOptions) -> Self {
        let used = |number: usize| {
            let placement = engine.placement();
            let layers = placement.layers.iter().map(|layer| layer.home);
            layers.chain([placement.embed, placement.head]).any(|home| home == number)
        };
        let all = engine.devices().iter().enumerate().skip(1);
        let (in_use, empty): (Vec<_>, Vec<_>) = all.partition(|(number, _)| used(*number));
        let reserve = |number: usize| machine.others[number - 1].reserve();
        let taken = in_use.iter().map(|(number, device)| device.ledger().peak() + reserve(*number));
        let taken = taken.collect();
        let devices: Vec<_> = in_use.into_iter().map(|(_, device)| device).collect();
        let name = |device: &Device| device.info().name.clone();
        let n_layers = engine.placement().layers.iter().filter(|layer| layer.home != CPU).count();
        Self {
            descriptions: devices.iter().map(|d| d.info().description.clone()).collect(),
            names: devices.iter().copied().map(name).collect(),
            empty: empty.into_iter().map(|(_, device)| name(device)).collect(),
            budget: machine.budget(),
            budgets: budgets(machine, wanted.ram_budget),
            used: taken,
            n_layers,
            hot_fraction: engine.forecast().filter(|_| n_layers > 0).map(|f| f.off_cpu),
            main: wanted.main.unwrap_or(0),
            cache_on_cpu: wanted.constraints.cache_on_cpu,
            n_cpu_moe: match wanted.experts_on_cpu {
                Some(usize::MAX) => engine.placement().layers.len(),
                n => n.unwrap_or(0),
            },
            overrides: overrides_text(&wanted.overrides),
            policy: wanted.constraints.policy,
        }
    }
}

impl Facts {
    /// `CPU`, and the other devices in use.
    pub(super) fn backends(&self) -> String {
        [&["CPU".to_owned()][..], &self.devices.names[..]].concat().join(",")
    }

    /// Memory per device; `ram` is the CPU's memory.
    pub(super) fn device_bytes(&self, ram: Bytes) -> Vec<(&str, Bytes)> {
        let others = self.devices.names.iter().map(String::as_str).zip(self.devices.used.clone());
        [("CPU", ram)].into_iter().chain(others).collect()
    }

    /// The devices in use, in llama-bench's form.
    pub(super) fn device_names(&self) -> String {
        match &self.devices.names[..] {
            [] => "none".to_owned(),
            names => names.join("/"),
        }
    }

    /// Names of the backends in use, such as `cuda`; `cpu` if no other device is used.
    pub(super) fn backend_api(&self) -> String {
        let mut backends: Vec<&str> =
            self.devices.names.iter().map(|name| crate::devices::backend_of(name)).collect();
        backends.dedup();
        if backends.is_empty() { "cpu".to_owned() } else { backends.join(",") }
    }

    /// Facts from the engine and the options; the caller fills in the measured fields.
    pub(super) fn new(
        engine: &Engine,
        machine: &Machine,
        setup: &BenchSetup<'_>,
        computation: &Computation,
        combination: Combination,
    ) -> Self {
        use runtime::Sparsity;
        let model = engine.model();
        let name = model.file.metadata().str("general.name").ok().flatten().unwrap_or("");
        let synthetic = name.starts_with("synthetic ");
        Self {
            cpu_info: engine
                .devices()
                .first()
                .map_or_else(String::new, |cpu| cpu.info().description.clone()),
            model_filename: model.file.name().to_owned(),
            model_type: model_type(model, synthetic),
            synthetic,
            model_size: tensors(model).map(|(_, bytes, _)| bytes).sum(),
            model_n_params: tensors(model).map(|(.., values)| values).sum(),
            n_batch: combination.n_batch.get(),
            n_ubatch: combination.n_ubatch.get(),
            n_threads: 1,
            processor: computation.processor.clone(),
            type_k: cache_type_name(combination.type_k),
            type_v: cache_type_name(combination.type_v),
            mmap: computation.mmap,
            sparsity: match computation.sparsity {
                Sparsity::Predicted if engine.predicts() => "predicted".to_owned(),
                Sparsity::Predicted | Sparsity::Exact => "exact".to_owned(),
                Sparsity::Balanced => "balanced".to_owned(),
                Sparsity::Fast => "fast".to_owned(),
                Sparsity::Within(error) => error.to_string(),
                Sparsity::Off => "off".to_owned(),
            },
            sparse: engine.is_sparse(),
            predictor: engine.predicts().then_some(match computation.sparsity {
                Sparsity::Balanced | Sparsity::Fast | Sparsity::Within(_) => "trained",
                Sparsity::Predicted | Sparsity::Exact | Sparsity::Off => "file",
            }),
            prompt_file: setup.args.prompt_file.as_ref().map(|path| path.display().to_string()),
            traffic: Traffic::new(engine),
            bandwidth: None,
            load: Duration::ZERO,
            devices: DeviceFacts::new(engine, machine, &computation.devices),
            difference: None,
        }
    }
}

/// Format, size in bytes and number of values of every tensor in a known format.
fn tensors(model: &Model) -> impl Iterator<Item = (&'static str, u64, u64)> {
    model.file.tensors().iter().filter_map(|tensor| {
        let block = tensor.ty.block()?;
        let values = tensor.shape.iter().fold(1u64, |n, &size| n.saturating_mul(size));
        Some((tensor.ty.name(), values / block.values * block.bytes, values))
    })
}

/// Architecture, number of parameters and most common format, such as `llama 1.1B Q4_0`.
fn model_type(model: &Model, synthetic: bool) -> String {
    let mut by_format = BTreeMap::new();
    let mut n_params = 0;
    for (format, bytes, values) in tensors(model) {
        *by_format.entry(format).or_insert(0) += bytes;
        n_params += values;
    }
    let format = by_format.iter().max_by_key(|(_, bytes)| **bytes).map_or("?", |(name, _)| name);
    let label = if synthetic { " synthetic" } else { "" };
    format!("{} {} {format}{label}", model.spec.name, short_count(n_params))
}

/// A number of parameters as `6.7B`, `15M` or `260K`.
fn short_count(n: u64) -> String {
    let (value, unit) = match n {
        0..1_000_000 => (n as f64 / 1e3, "K"),
        1_000_000..1_000_000_000 => (n as f64 / 1e6, "M"),
        _ => (n as f64 / 1e9, "B"),
    };
    if value < 10.0 {
        format!("{}{unit}", (value * 10.0).round() / 10.0)
    } else {
        format!("{value:.0}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_abbreviated() {
        assert_eq!(short_count(6_738_415_616), "6.7B");
        assert_eq!(short_count(1_000_000_000), "1B");
        assert_eq!(short_count(69_000_000_000), "69B");
        assert_eq!(short_count(15_200_000), "15M");
        assert_eq!(short_count(260_000), "260K");
    }
}
