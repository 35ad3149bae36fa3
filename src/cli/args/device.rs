//! Which devices, how much of their memory, and what goes there.

use super::boolish;
use crate::cli::parse::{self, Budgets};
use clap::{Args, ValueEnum};

/// Names are PowerInfer's and llama.cpp's.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Devices")]
pub(crate) struct DeviceArgs {
    /// What devices are reached by: auto takes what is there. `bench` compares several: cpu,cuda,wgpu; the devices of each
    /// are those of --device that it has, or without --device all but software drivers
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_BACKEND", default_value = "auto")]
    #[arg(value_delimiter = ',')]
    pub(crate) backend: Vec<BackendName>,
    /// Devices to use, separated by commas; none or cpu is the CPU alone (-dev)
    #[arg(long, value_name = "LIST", env = "THERMOCLINE_ARG_DEVICE")]
    pub(crate) device: Option<String>,
    /// Of the devices, use this one alone, counted from 0 (-mg)
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_MAIN_GPU")]
    pub(crate) main_gpu: Option<usize>,
    /// Device memory to use at most, the driver's part included: 8GiB, 8192MiB, 80%, or GiB as a number; -1 is what is free
    /// less a margin. One for all devices (each may use so much), or with colons one for each: 2:4. Commas are the same,
    /// but in `bench`, which takes what they part one after the other: 2:4,4:8. Its table tells the budget of each device,
    /// vram_budget_bytes the sum
    #[arg(long, value_name = "SIZE", env = "THERMOCLINE_ARG_VRAM_BUDGET", value_parser = parse::budgets)]
    #[arg(value_delimiter = ',', allow_negative_numbers = true)]
    pub(crate) vram_budget: Vec<Budgets>,
    /// Place so many whole layers on devices and split none, instead of placing neurons by use: a number, all, or auto
    /// for placing by use (-ngl)
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_N_GPU_LAYERS", value_parser = parse::layers)]
    #[arg(alias = "gpu-layers", allow_negative_numbers = true)]
    pub(crate) n_gpu_layers: Option<parse::Layers>,
    /// Keep the KV cache, and with it attention, on the CPU (-nkvo)
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
    /// Leave each neuron where the plan has it, instead of letting those that the text uses come to the device
    #[arg(long, env = "THERMOCLINE_ARG_NO_ADAPT", value_parser = boolish())]
    pub(crate) no_adapt: bool,
    /// Measure the devices anew for the plan, instead of taking kept figures
    #[arg(long, env = "THERMOCLINE_ARG_RESET_GPU_INDEX", value_parser = boolish())]
    pub(crate) reset_gpu_index: bool,
}

/// `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// What is there.
    Auto,
    /// The CPU alone.
    Cpu,
    /// NVIDIA's cards through CUDA's driver.
    Cuda,
    /// AMD's cards through ROCm.
    Hip,
    /// Vulkan, Metal or DX12.
    Wgpu,
}
