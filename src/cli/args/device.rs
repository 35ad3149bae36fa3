//! Flags that select the devices, limit their memory and decide the placement.

use super::boolish;
use super::choice::{Choice, choice, one_of};
use crate::cli::parse::{self, Budgets, Layers};
use crate::devices::backend_of;
use crate::placement::PlanConstraints;
use clap::Args;
use runtime::{Budget, DeviceOptions};

/// Device flags, named as in PowerInfer and llama.cpp.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Devices")]
pub(crate) struct DeviceArgs {
    /// Backend; auto uses whatever is available
    ///
    /// `bench` compares several: cpu,cuda,wgpu. Each backend uses the --device entries it provides,
    /// or, without --device, all its devices except software drivers.
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_BACKEND", default_value = "auto")]
    #[arg(value_delimiter = ',', value_parser = one_of(&BACKENDS))]
    pub(crate) backend: Vec<BackendChoice>,
    /// Devices to use, separated by commas; none or cpu: only the CPU (-dev)
    #[arg(long, value_name = "LIST", env = "THERMOCLINE_ARG_DEVICE")]
    pub(crate) device: Option<String>,
    /// Use only this device, counted from 0 (-mg)
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_MAIN_GPU")]
    pub(crate) main_gpu: Option<usize>,
    /// Hard limit on device memory: 8GiB, 8192MiB, 80%, or a number of GiB
    ///
    /// The limit includes the driver's own memory; -1 is the free memory minus a margin. One value
    /// applies to each device; colons separate one value per device: 2:4. `bench` runs each
    /// comma-separated value in turn: 2:4,4:8; other commands treat commas as colons. In bench's
    /// report, vram_budget_bytes is the sum over devices.
    #[arg(long, value_name = "SIZE", env = "THERMOCLINE_ARG_VRAM_BUDGET", value_parser = parse::budgets)]
    #[arg(value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) vram_budget: Vec<Budgets>,
    /// Number of whole layers to place on devices, all, or auto (-ngl)
    ///
    /// A number or all keeps each layer whole. auto places single neurons by how often they fire.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_N_GPU_LAYERS", value_parser = parse::layers)]
    #[arg(alias = "gpu-layers", allow_negative_numbers = true)]
    pub(crate) n_gpu_layers: Option<Layers>,
    /// Keep the KV cache, and therefore attention, on the CPU (-nkvo)
    #[arg(
        long,
        value_name = "on|off",
        env = "THERMOCLINE_ARG_NO_KV_OFFLOAD",
        default_value = "off"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) no_kv_offload: bool,
    /// Keep all feed-forward neurons on the CPU
    #[arg(long, env = "THERMOCLINE_ARG_DISABLE_GPU_INDEX", value_parser = boolish())]
    pub(crate) disable_gpu_index: bool,
    /// Do not swap neurons between CPU and device during generation
    #[arg(long, env = "THERMOCLINE_ARG_NO_ADAPT", value_parser = boolish())]
    pub(crate) no_adapt: bool,
    /// Measure the devices again instead of using cached speeds
    #[arg(long, env = "THERMOCLINE_ARG_RESET_GPU_INDEX", value_parser = boolish())]
    pub(crate) reset_gpu_index: bool,
}

/// One of [`crate::devices::BACKENDS`]; `None` for any.
pub(crate) type BackendChoice = Option<&'static str>;

static BACKENDS: [Choice<BackendChoice>; 5] = [
    choice("auto", "Any available device", None),
    choice("cpu", "Only the CPU", Some("cpu")),
    choice("cuda", "NVIDIA GPUs through the CUDA driver", Some("cuda")),
    choice("hip", "AMD GPUs through ROCm", Some("hip")),
    choice("wgpu", "GPUs through Vulkan, Metal or DX12", Some("wgpu")),
];

impl DeviceArgs {
    /// The device options of a single run. The last --backend value applies.
    pub(crate) fn options(&self) -> DeviceOptions {
        let wanted_layers = match self.n_gpu_layers {
            Some(Layers::Whole(n)) => Some(n),
            Some(Layers::Auto) | None => None,
        };
        // A layer cannot be whole if its neurons stay on the CPU.
        let whole_layers = wanted_layers.filter(|n| *n == 0 || !self.disable_gpu_index);
        let names = self.device_names();
        let cpu_only = names.as_ref().is_some_and(|names| {
            names.iter().all(|name| is_word(name, "none") || is_word(name, "cpu"))
        });
        let named = names.filter(|names| !names.iter().any(|name| is_word(name, "auto")));
        let backend = self.backend.last().copied().flatten();
        let budgets = self.vram_budget.iter().flat_map(|Budgets(budgets)| budgets.iter().copied());
        let budgets: Vec<Budget> = budgets.collect();
        let device_flags = [
            ("--vram-budget", budgets.iter().any(|budget| *budget != Budget::Bytes(0))),
            ("--n-gpu-layers", whole_layers.is_some_and(|n| n > 0)),
            ("--main-gpu", self.main_gpu.is_some()),
            ("--device", named.is_some() && !cpu_only),
            ("--backend", backend.is_some_and(|backend| backend != "cpu")),
        ];
        let expected_by = device_flags.into_iter().filter(|(_, expects)| *expects);
        DeviceOptions {
            backend: if cpu_only || whole_layers == Some(0) { Some("cpu") } else { backend },
            named: named.filter(|_| !cpu_only),
            main: self.main_gpu,
            budgets,
            constraints: PlanConstraints {
                whole_layers,
                cache_on_cpu: self.no_kv_offload,
                neurons_on_cpu: self.disable_gpu_index,
            },
            adapt: !self.no_adapt,
            remeasure: self.reset_gpu_index,
            expected_by: expected_by.map(|(flag, _)| flag).collect(),
            layers_ignored: wanted_layers != whole_layers,
        }
    }

    /// Device options for each combination of backend and budget, without duplicates.
    pub(crate) fn combinations(&self) -> Vec<DeviceOptions> {
        let mut all: Vec<DeviceOptions> = Vec::new();
        let compared: Vec<_> = self.backend.iter().copied().flatten().collect();
        for &name in &self.backend {
            let budgets = self.vram_budget.iter().map(|budgets| vec![budgets.clone()]);
            let none = self.vram_budget.is_empty().then(Vec::new);
            for vram_budget in budgets.chain(none) {
                let one = DeviceArgs { backend: vec![name], vram_budget, ..self.clone() };
                let mut one = one.options();
                drop_other_backends(&mut one, &compared);
                if one.backend == Some("cpu") {
                    one.budgets.clear();
                    one.expected_by.clear();
                }
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        all
    }

    /// The names given with `--device`; `None` without the flag.
    fn device_names(&self) -> Option<Vec<String>> {
        let names = self.device.as_deref()?.split([',', '/']).map(|name| name.trim().to_owned());
        Some(names.filter(|name| !name.is_empty()).collect())
    }
}

fn is_word(name: &str, word: &str) -> bool {
    name.eq_ignore_ascii_case(word)
}

/// Removes named devices that belong to another backend of the comparison.
fn drop_other_backends(options: &mut DeviceOptions, compared: &[&str]) {
    let Some(backend) = options.backend.filter(|backend| *backend != "cpu") else { return };
    if let Some(named) = &mut options.named {
        named.retain(|name| {
            let own = backend_of(name);
            own == backend || !compared.contains(&own)
        });
    }
}
