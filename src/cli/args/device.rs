//! Which devices, how much of their memory, and what goes there.

use super::boolish;
use crate::cli::parse::{self, Budgets};
use clap::{Args, ValueEnum};

/// Names are PowerInfer's and llama.cpp's.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Devices")]
pub(crate) struct DeviceArgs {
    /// Backend; auto uses whatever is available
    ///
    /// `bench` compares several: cpu,cuda,wgpu. Each backend uses the --device entries it provides, or without --device all
    /// devices except software drivers.
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_BACKEND", default_value = "auto")]
    #[arg(value_delimiter = ',')]
    pub(crate) backend: Vec<BackendName>,
    /// Devices to use, separated by commas; none or cpu: only the CPU (-dev)
    #[arg(long, value_name = "LIST", env = "THERMOCLINE_ARG_DEVICE")]
    pub(crate) device: Option<String>,
    /// Use only this device, counted from 0 (-mg)
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_MAIN_GPU")]
    pub(crate) main_gpu: Option<usize>,
    /// Hard limit of device memory: 8GiB, 8192MiB, 80%, or GiB as a number
    ///
    /// The limit includes the driver's own memory; -1 is the free memory less a margin. One value applies to each device;
    /// colons give one per device: 2:4. `bench` runs each comma-separated value in turn: 2:4,4:8; elsewhere commas mean the
    /// same as colons. In bench's report, vram_budget_bytes is the sum over devices.
    #[arg(long, value_name = "SIZE", env = "THERMOCLINE_ARG_VRAM_BUDGET", value_parser = parse::budgets)]
    #[arg(value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) vram_budget: Vec<Budgets>,
    /// Number of whole layers to place on devices, all, or auto (-ngl)
    ///
    /// A number or all splits no layer. auto places single neurons by how often they are used.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_N_GPU_LAYERS", value_parser = parse::layers)]
    #[arg(alias = "gpu-layers", allow_negative_numbers = true)]
    pub(crate) n_gpu_layers: Option<parse::Layers>,
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

/// `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// Any available device.
    Auto,
    /// Only the CPU.
    Cpu,
    /// NVIDIA GPUs through the CUDA driver.
    Cuda,
    /// AMD GPUs through ROCm.
    Hip,
    /// GPUs through Vulkan, Metal or DX12.
    Wgpu,
}
