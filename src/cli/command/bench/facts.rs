//! What is the same for all tests on a loaded engine.

use super::Combination;
use crate::bench::Traffic;
use crate::cli::command::engine::Machine;
use crate::cli::config::BenchOptions;
use crate::cli::config::device::DeviceOptions;
use crate::cli::config::processor::Processor;
use crate::engine::Engine;
use crate::model::Model;
use crate::placement::CPU;
use hal::{Bytes, Device};
use std::collections::BTreeMap;
use std::time::Duration;

/// A model, loaded in one way on this machine.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// What the CPU's driver calls it.
    pub(super) cpu_info: String,
    /// Path of the file, or the name of a model without one.
    pub(super) model_filename: String,
    /// Architecture, size, format; `synthetic` if it is.
    pub(super) model_type: String,
    /// Random weights with planted activity.
    pub(super) synthetic: bool,
    /// Bytes of all tensors.
    pub(super) model_size: u64,
    /// Values in all tensors.
    pub(super) model_n_params: u64,
    /// Logical batch size.
    pub(super) n_batch: u32,
    /// Physical batch size.
    pub(super) n_ubatch: u32,
    /// Threads at work.
    pub(super) n_threads: usize,
    /// How the CPU is used.
    pub(super) processor: Processor,
    /// Formats of keys and values.
    pub(super) type_k: &'static str,
    pub(super) type_v: &'static str,
    /// The file is mapped.
    pub(super) mmap: bool,
    /// `predicted`, `exact`, `balanced`, `fast`, an error or `off`.
    pub(super) sparsity: String,
    /// Neurons are skipped.
    pub(super) sparse: bool,
    /// What chooses some of them: `file` or `learnt`.
    pub(super) predictor: Option<&'static str>,
    /// Where the text came from.
    pub(super) prompt_file: Option<String>,
    /// Bytes read per token.
    pub(super) traffic: Traffic,
    /// GB/s that as many threads read from memory.
    pub(super) bandwidth: Option<f64>,
    /// From an open file to an engine that can step.
    pub(super) load: Duration,
    /// Devices beside the CPU.
    pub(super) devices: DeviceFacts,
    /// How far its logits are from those of the first engine, if that was asked for.
    pub(super) difference: Option<f64>,
}

/// What is on devices beside the CPU, all together.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceFacts {
    /// What their drivers call them.
    pub(super) descriptions: Vec<String>,
    /// Their names.
    pub(super) names: Vec<String>,
    /// Those that could be used and nothing is on.
    pub(super) empty: Vec<String>,
    /// What may be used of all of them together, the drivers' part included, whether or not something is there; `None`
    /// without a limit.
    pub(super) budget: Option<Bytes>,
    /// The same of each, for people.
    pub(super) budgets: Option<String>,
    /// The most that was booked at once, by device, and what is left to its driver.
    pub(super) used: Vec<Bytes>,
    /// Layers there, whole or split.
    pub(super) n_layers: usize,
    /// The expected share of the neurons that a token uses which are there.
    pub(super) hot_fraction: Option<f64>,
    /// The one that was asked for by its number.
    pub(super) main: usize,
    /// Keys and values stay on the CPU.
    pub(super) cache_on_cpu: bool,
}

impl DeviceFacts {
    fn new(engine: &Engine, machine: &Machine, wanted: &DeviceOptions) -> Self {
        let used = |number: usize| {
            let placement = engine.placement();
            let layers = placement.layers.iter().map(|layer| layer.home);
            layers.chain([placement.embed, placement.head]).any(|home| home == number)
        };
        let all = engine.devices().iter().enumerate().skip(1);
        let (there, empty): (Vec<_>, Vec<_>) = all.partition(|(number, _)| used(*number));
        let reserve = |number: usize| machine.others[number - 1].reserve();
        let taken = there.iter().map(|(number, device)| device.ledger().peak() + reserve(*number));
        let taken = taken.collect();
        let devices: Vec<_> = there.into_iter().map(|(_, device)| device).collect();
        let name = |device: &Device| device.info().name.clone();
        let n_layers = engine.placement().layers.iter().filter(|layer| layer.home != CPU).count();
        Self {
            descriptions: devices.iter().map(|d| d.info().description.clone()).collect(),
            names: devices.iter().copied().map(name).collect(),
            empty: empty.into_iter().map(|(_, device)| name(device)).collect(),
            budget: machine.budget(),
            budgets: machine.budgets(),
            used: taken,
            n_layers,
            hot_fraction: engine.forecast().filter(|_| n_layers > 0).map(|f| f.off_cpu),
            main: wanted.main.unwrap_or(0),
            cache_on_cpu: wanted.wishes.cache_on_cpu,
        }
    }
}

impl Facts {
    /// `CPU`, and the devices beside it that something is on.
    pub(super) fn backends(&self) -> String {
        [&["CPU".to_owned()][..], &self.devices.names[..]].concat().join(",")
    }

    /// What is on each device, `ram` being what is in memory for the CPU.
    pub(super) fn device_bytes(&self, ram: Bytes) -> Vec<(&str, Bytes)> {
        let others = self.devices.names.iter().map(String::as_str).zip(self.devices.used.clone());
        [("CPU", ram)].into_iter().chain(others).collect()
    }

    /// Those devices, llama-bench's way.
    pub(super) fn device_names(&self) -> String {
        match &self.devices.names[..] {
            [] => "none".to_owned(),
            names => names.join("/"),
        }
    }

    /// What they are reached by: `cpu` where there is none.
    pub(super) fn backend_api(&self) -> String {
        let mut backends: Vec<&str> =
            self.devices.names.iter().map(|name| crate::devices::backend_of(name)).collect();
        backends.dedup();
        if backends.is_empty() { "cpu".to_owned() } else { backends.join(",") }
    }

    /// What the engine and the options tell; what was measured is still missing.
    pub(super) fn new(
        engine: &Engine,
        machine: &Machine,
        options: &BenchOptions,
        combination: Combination,
    ) -> Self {
        use crate::cli::config::model::Sparsity;
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
            processor: options.computation.processor.clone(),
            type_k: combination.type_k.name(),
            type_v: combination.type_v.name(),
            mmap: options.computation.mmap,
            sparsity: match options.computation.sparsity {
                Sparsity::Predicted if engine.predicts() => "predicted".to_owned(),
                Sparsity::Predicted | Sparsity::Exact => "exact".to_owned(),
                Sparsity::Balanced => "balanced".to_owned(),
                Sparsity::Fast => "fast".to_owned(),
                Sparsity::Within(error) => error.to_string(),
                Sparsity::Off => "off".to_owned(),
            },
            sparse: engine.is_sparse(),
            predictor: engine.predicts().then_some(match options.computation.sparsity {
                Sparsity::Balanced | Sparsity::Fast | Sparsity::Within(_) => "learnt",
                Sparsity::Predicted | Sparsity::Exact | Sparsity::Off => "file",
            }),
            prompt_file: options.prompt.as_ref().map(|(path, _)| path.display().to_string()),
            traffic: Traffic::new(engine),
            bandwidth: None,
            load: Duration::ZERO,
            devices: DeviceFacts::new(engine, machine, &options.computation.devices),
            difference: None,
        }
    }
}

/// Format, bytes and values of every tensor whose type has a size.
fn tensors(model: &Model) -> impl Iterator<Item = (&'static str, u64, u64)> {
    model.file.tensors().iter().filter_map(|tensor| {
        let block = tensor.ty.block()?;
        let values = tensor.shape.iter().fold(1u64, |n, &size| n.saturating_mul(size));
        Some((tensor.ty.name(), values / block.values * block.bytes, values))
    })
}

/// `llama 1.10B Q4_0`: the format is that of most bytes.
fn model_type(model: &Model, synthetic: bool) -> String {
    let mut by_format = BTreeMap::new();
    let mut n_params = 0;
    for (format, bytes, values) in tensors(model) {
        *by_format.entry(format).or_insert(0) += bytes;
        n_params += values;
    }
    let format = by_format.iter().max_by_key(|(_, bytes)| **bytes).map_or("?", |(name, _)| name);
    let label = if synthetic { " synthetic" } else { "" };
    format!("{} {} {format}{label}", model.spec.name, short(n_params))
}

/// `7B`, `1.1B`, `15M`, `260K`.
fn short(n: u64) -> String {
    let (value, unit) = match n {
        0..1_000_000 => (n as f64 / 1e3, "K"),
        1_000_000..1_000_000_000 => (n as f64 / 1e6, "M"),
        _ => (n as f64 / 1e9, "B"),
    };
    match value < 10.0 {
        true => format!("{}{unit}", (value * 10.0).round() / 10.0),
        false => format!("{value:.0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_say_them() {
        assert_eq!(short(6_738_415_616), "6.7B");
        assert_eq!(short(1_000_000_000), "1B");
        assert_eq!(short(69_000_000_000), "69B");
        assert_eq!(short(15_200_000), "15M");
        assert_eq!(short(260_000), "260K");
    }
}
