//! Flags that select the devices, limit their memory and decide the placement.

use super::boolish;
use super::choice::{Choice, choice, name_of, one_of};
use crate::cli::folders::this_program;
use crate::cli::parse::{self, Budgets, Layers, List, values};
use crate::devices::backend_of;
use crate::placement::{PlacementPolicy, PlanConstraints};
use clap::Args;
use runtime::{Budget, DeviceOptions, DeviceSwitches, TensorOverride};

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
    ///
    /// `bench` runs each value of a list in turn.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_MAIN_GPU", value_parser = parse::counts)]
    pub(crate) main_gpu: Vec<List<u32>>,
    /// Hard limit on device memory: 8GiB, 80%, or a number of GiB
    ///
    /// The limit includes the driver's own memory; -1 is the free memory minus a margin. One value
    /// applies to each device; colons separate one value per device: 2:4. `bench` runs each
    /// comma-separated value in turn: 2:4,4:8; other commands treat commas as colons. In bench's
    /// report, vram_budget_bytes is the sum over devices.
    #[arg(long, value_name = "SIZE", env = "THERMOCLINE_ARG_VRAM_BUDGET", value_parser = parse::budgets)]
    #[arg(value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) vram_budget: Vec<Budgets>,
    /// Hard limit on host memory; weights beyond it stay on disk
    ///
    /// 8GiB, 80%, or a number of GiB. The limit covers weights, KV cache and scratch; -1 is the
    /// free memory, within the container's limit, minus a margin. Weights that do not fit are read
    /// from the file when they are needed, past the system's page cache. `bench` runs each
    /// comma-separated value in turn.
    #[arg(long, value_name = "SIZE", env = "THERMOCLINE_ARG_RAM_BUDGET", value_parser = parse::budget)]
    #[arg(value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) ram_budget: Vec<Budget>,
    /// Number of whole layers to place on devices, all, or auto (-ngl)
    ///
    /// A number or all keeps layers whole, except with --placement fill and where -ot, -cmoe or
    /// -ncmoe keeps neurons on the CPU. auto places single neurons by how often they fire.
    /// `bench` runs each value of a list or range in turn: 0,99 or 10-30+10.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_N_GPU_LAYERS", value_parser = parse::layer_list)]
    #[arg(alias = "gpu-layers", allow_negative_numbers = true)]
    pub(crate) n_gpu_layers: Vec<LayerList>,
    /// How layers and neurons are placed within the memory budget
    ///
    /// fastest, fill and layers give the same text. If fill or layers is slower than fastest by the
    /// estimate, a note says by how much. Without a GPU, fill uses a software driver if there is
    /// one. `bench` runs each comma-separated value in turn.
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_PLACEMENT", default_value = "fastest")]
    #[arg(value_delimiter = ',', value_parser = one_of(&POLICIES))]
    pub(crate) placement: Vec<PlacementPolicy>,
    /// Keep the KV cache, and therefore attention, on the CPU (-nkvo)
    #[arg(
        long,
        value_name = "on|off",
        env = "THERMOCLINE_ARG_NO_KV_OFFLOAD",
        default_value = "off"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_delimiter = ',', value_parser = boolish())]
    pub(crate) no_kv_offload: Vec<bool>,
    /// Tensors to place on the CPU or a device, as PATTERN=BUFFER,... (-ot)
    ///
    /// PATTERN is a regular expression for names of tensors, BUFFER is CPU or the name of a device.
    /// The first match counts. Attention, neurons, embedding and output matrix are placed as wholes;
    /// norms, routers and shared experts follow the attention.
    #[arg(long, value_name = "PATTERN=BUFFER", env = "THERMOCLINE_ARG_OVERRIDE_TENSOR")]
    #[arg(value_delimiter = ',', value_parser = tensor_override)]
    pub(crate) override_tensor: Vec<TensorOverride>,
    /// Keep all experts on the CPU (-cmoe)
    #[arg(long, env = "THERMOCLINE_ARG_CPU_MOE", value_parser = boolish())]
    pub(crate) cpu_moe: bool,
    /// Keep the experts of the first N layers on the CPU (-ncmoe)
    ///
    /// `bench` runs each value of a list or range in turn.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_N_CPU_MOE", value_parser = parse::counts)]
    pub(crate) n_cpu_moe: Vec<List<u32>>,
    /// Keep all feed-forward neurons on the CPU
    #[arg(long, env = "THERMOCLINE_ARG_DISABLE_GPU_INDEX", value_parser = boolish())]
    #[arg(alias = "no-offload-ffn")]
    pub(crate) disable_gpu_index: bool,
    /// Do not swap neurons between CPU and device during generation
    #[arg(long, env = "THERMOCLINE_ARG_NO_ADAPT", value_parser = boolish())]
    pub(crate) no_adapt: bool,
    #[command(flatten)]
    pub(crate) switches: SwitchArgs,
    /// Measure the devices again instead of using cached speeds
    #[arg(long, env = "THERMOCLINE_ARG_RESET_GPU_INDEX", value_parser = boolish())]
    pub(crate) reset_gpu_index: bool,
}

/// The flag that switches features of devices.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Devices")]
pub(crate) struct SwitchArgs {
    /// Turn off features of devices: CUDA0:graphs=off,flags=off
    ///
    /// For a driver that fails or gives wrong results. CUDA and HIP have graphs, flags (the device
    /// waits for the CPU inside a step) and mma (matrix instructions); CUDA has prefetch (of the next
    /// weight into the L2 cache); Vulkan, Metal and DX12 have subgroups; all have self-test (kernels
    /// are compared with the CPU when a model is loaded).
    /// Without a device's name, a switch applies to all devices. `doctor` shows what is in use.
    #[arg(long, value_name = "LIST", env = "THERMOCLINE_ARG_DEVICE_OPTIONS")]
    device_options: Vec<DeviceSwitches>,
}

impl SwitchArgs {
    /// The switches of all occurrences of the flag.
    pub(crate) fn all(&self) -> DeviceSwitches {
        self.device_options.iter().fold(DeviceSwitches::default(), DeviceSwitches::and)
    }
}

/// A list of layer counts.
pub(crate) type LayerList = List<Layers>;

/// One of [`crate::devices::BACKENDS`]; `None` for any.
pub(crate) type BackendChoice = Option<&'static str>;

static BACKENDS: [Choice<BackendChoice>; 5] = [
    choice("auto", "Any available device", None),
    choice("cpu", "Only the CPU", Some("cpu")),
    choice("cuda", "NVIDIA GPUs through the CUDA driver", Some("cuda")),
    choice("hip", "AMD GPUs through ROCm", Some("hip")),
    choice("wgpu", "GPUs through Vulkan, Metal or DX12", Some("wgpu")),
];

static POLICIES: [Choice<PlacementPolicy>; 3] = [
    choice("fastest", "The fastest by the planner's estimate", PlacementPolicy::Fastest),
    choice(
        "fill",
        "As in PowerInfer: attention, then the hottest neurons, until the budget is spent",
        PlacementPolicy::Fill,
    ),
    choice(
        "layers",
        "As in llama.cpp: whole layers, the last layers first",
        PlacementPolicy::Layers,
    ),
];

/// The name of a value of --placement.
pub(crate) fn policy_name(policy: PlacementPolicy) -> &'static str {
    name_of(&POLICIES, &policy).unwrap_or_default()
}

impl DeviceArgs {
    /// The values of --n-gpu-layers.
    pub(crate) fn layers(&self) -> Vec<Layers> {
        values(&self.n_gpu_layers)
    }

    /// The device options of a single run. The last value of each list applies.
    pub(crate) fn options(&self) -> DeviceOptions {
        let wanted_layers = match self.layers().last() {
            Some(Layers::Whole(n)) => Some(*n),
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
        let policy = self.placement.last().copied().unwrap_or_default();
        let last = |lists: &[List<u32>]| values(lists).last().map(|&n| n as usize);
        let main = last(&self.main_gpu);
        let device_flags = [
            ("--placement", policy != PlacementPolicy::Fastest),
            ("--vram-budget", budgets.iter().any(|budget| *budget != Budget::Bytes(0))),
            ("--override-tensor", self.override_tensor.iter().any(|o| !is_word(&o.buffer, "cpu"))),
            ("--n-gpu-layers", whole_layers.is_some_and(|n| n > 0)),
            ("--main-gpu", main.is_some()),
            ("--device", named.is_some() && !cpu_only),
            ("--backend", backend.is_some_and(|backend| backend != "cpu")),
        ];
        let expected_by = device_flags.into_iter().filter(|(_, expects)| *expects);
        DeviceOptions {
            backend: if cpu_only || whole_layers == Some(0) { Some("cpu") } else { backend },
            named: named.filter(|_| !cpu_only),
            main,
            budgets,
            ram_budget: self.ram_budget.last().copied().unwrap_or(Budget::Auto),
            constraints: PlanConstraints {
                policy,
                whole_layers,
                cache_on_cpu: self.no_kv_offload.last() == Some(&true),
                neurons_on_cpu: self.disable_gpu_index,
            },
            overrides: self.override_tensor.clone(),
            experts_on_cpu: if self.cpu_moe { Some(usize::MAX) } else { last(&self.n_cpu_moe) },
            adapt: !self.no_adapt,
            remeasure: self.reset_gpu_index,
            compiler: this_program(),
            switches: self.switches.all(),
            expected_by: expected_by.map(|(flag, _)| flag).collect(),
            layers_ignored: wanted_layers != whole_layers,
        }
    }

    /// Device options for each combination of the values of --backend, --vram-budget, --ram-budget,
    /// --n-gpu-layers, --no-kv-offload, --placement, --main-gpu and --n-cpu-moe, without duplicates.
    pub(crate) fn combinations(&self) -> Vec<DeviceOptions> {
        let mut combinations: Vec<DeviceOptions> = Vec::new();
        let compared: Vec<_> = self.backend.iter().copied().flatten().collect();
        for &name in &self.backend {
            let budgets = self.vram_budget.iter().map(|budgets| vec![budgets.clone()]);
            let none = self.vram_budget.is_empty().then(Vec::new);
            for vram_budget in budgets.chain(none) {
                for layers in self.with_single_values() {
                    let vram_budget = vram_budget.clone();
                    let options = DeviceArgs { backend: vec![name], vram_budget, ..layers };
                    let mut options = options.options();
                    drop_other_backends(&mut options, &compared);
                    if options.backend == Some("cpu") {
                        options.budgets.clear();
                        options.expected_by.clear();
                    }
                    if !combinations.contains(&options) {
                        combinations.push(options);
                    }
                }
            }
        }
        combinations
    }

    /// These flags with each combination of single values of the other lists.
    fn with_single_values(&self) -> Vec<DeviceArgs> {
        let mut combinations = vec![self.clone()];
        split(&mut combinations, &singles(&self.n_gpu_layers), |args, n| args.n_gpu_layers = n);
        split(&mut combinations, &self.no_kv_offload, |args, cpu| args.no_kv_offload = vec![cpu]);
        split(&mut combinations, &self.ram_budget, |args, budget| args.ram_budget = vec![budget]);
        split(&mut combinations, &self.placement, |args, policy| args.placement = vec![policy]);
        split(&mut combinations, &singles(&self.main_gpu), |args, n| args.main_gpu = n);
        split(&mut combinations, &singles(&self.n_cpu_moe), |args, n| args.n_cpu_moe = n);
        combinations
    }

    /// The names given with `--device`; `None` without the flag.
    fn device_names(&self) -> Option<Vec<String>> {
        let names = self.device.as_deref()?.split([',', '/']).map(|name| name.trim().to_owned());
        Some(names.filter(|name| !name.is_empty()).collect())
    }
}

/// The values of all occurrences of a flag, each as the only value; none if the flag is not given.
fn singles<T: Copy>(lists: &[List<T>]) -> Vec<Vec<List<T>>> {
    values(lists).into_iter().map(|value| vec![List(vec![value])]).collect()
}

/// Replaces each of the `combinations` by one for each of the `values`, unless there are none.
fn split<T: Clone>(
    combinations: &mut Vec<DeviceArgs>,
    values: &[T],
    set: impl Fn(&mut DeviceArgs, T),
) {
    if values.is_empty() {
        return;
    }
    let with = |args: &DeviceArgs, value: &T| {
        let mut args = args.clone();
        set(&mut args, value.clone());
        args
    };
    let split = combinations.iter().flat_map(|args| values.iter().map(|value| with(args, value)));
    *combinations = split.collect();
}

/// Parses llama.cpp's `PATTERN=BUFFER`.
fn tensor_override(text: &str) -> Result<TensorOverride, String> {
    match text.split_once('=') {
        Some((pattern, buffer)) if !pattern.is_empty() && !buffer.trim().is_empty() => {
            let (pattern, buffer) = (pattern.to_owned(), buffer.trim().to_owned());
            Ok(TensorOverride { pattern, buffer })
        }
        _ => Err(format!("'{text}' is not PATTERN=BUFFER, such as exps=CPU")),
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
