//! Options to open and run a model, as data. Every field has a default ([`Options::default`]).

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hal::format::Format;
use hal::{Bytes, KvCache};
use model::RopeOverrides;
use placement::PlanConstraints;

use crate::adapters::AdapterFile;
use crate::devices::{CpuOptions, KernelCompilation, Numa, Priority};
use crate::notice::{SharedObserver, Task};
use crate::overrides::TensorOverride;
use crate::switches::DeviceSwitches;

/// Context, batch, threads, KV cache and computation of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Context in tokens; `None` for the default.
    pub n_ctx: Option<ContextSize>,
    /// Micro-batch: the maximum number of tokens of one step.
    pub n_ubatch: NonZeroU32,
    /// Maximum number of sequences that decode at once; they share the context.
    pub n_parallel: NonZeroU32,
    /// Threads for decode; `None` for the physical cores that this process may use.
    pub threads: Option<NonZeroUsize>,
    /// Threads for prefill; `None` for the same as [`Options::threads`].
    pub threads_batch: Option<NonZeroUsize>,
    /// Formats of the KV cache.
    pub kv_formats: KvCache<Format>,
    /// Devices, memory and sparsity.
    pub computation: Computation,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            n_ctx: None,
            n_ubatch: NonZeroU32::new(512).unwrap_or(NonZeroU32::MIN),
            n_parallel: NonZeroU32::MIN,
            threads: None,
            threads_batch: None,
            kv_formats: KvCache { k: Format::F16, v: Format::F16 },
            computation: Computation::default(),
        }
    }
}

impl Options {
    /// Options of the CPU backend, without a receiver for its notices.
    pub(crate) fn cpu(&self) -> CpuOptions {
        CpuOptions {
            threads: self.threads.map(NonZeroUsize::get),
            threads_batch: self.threads_batch.map(NonZeroUsize::get),
            lock: self.computation.mlock,
            ..self.computation.processor.options()
        }
    }
}

/// A context size set by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextSize {
    /// The context that the model was trained with.
    OfModel,
    /// A number of tokens.
    Tokens(NonZeroU32),
}

/// Which neurons are computed, on which devices, and how the model file is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Computation {
    /// Lock the weights in memory.
    pub mlock: bool,
    /// Map the file; otherwise read it into memory.
    pub mmap: bool,
    /// Reject a model that needs more memory than the machine has, even if it could run from the
    /// mapped file.
    pub must_fit: bool,
    /// Repack weights into the layout that the CPU's kernels read fastest.
    pub repack: bool,
    /// Folder for repacked weights, measured speeds, compiled kernels and side files; `None`
    /// writes nothing to disk.
    pub cache: Option<CacheFolder>,
    /// The feed-forward activation, which replaces the file's: `relu`, `silu`, `gelu`, `gelu_erf`,
    /// `relu2` or `drelu`. `None` keeps the file's activation or, if the file names none, uses the
    /// architecture's default.
    pub activation: Option<String>,
    /// LoRA adapters, merged into the weights.
    pub adapters: Vec<AdapterFile>,
    /// RoPE settings that replace those of the file.
    pub rope: RopeOverrides,
    /// Which neurons are skipped.
    pub sparsity: Sparsity,
    /// Minimum score of a neuron that an imported predictor or the file's own selects; `None` for
    /// the predictor's own value.
    pub sparse_threshold: Option<f32>,
    /// Which devices are used, and what is placed on them.
    pub devices: DeviceOptions,
    /// How the CPU is used.
    pub processor: Processor,
}

impl Default for Computation {
    fn default() -> Computation {
        Computation {
            mlock: false,
            mmap: true,
            must_fit: false,
            repack: true,
            cache: None,
            activation: None,
            adapters: Vec::new(),
            rope: RopeOverrides::default(),
            sparsity: Sparsity::Predicted,
            sparse_threshold: None,
            devices: DeviceOptions::default(),
            processor: Processor::default(),
        }
    }
}

impl Computation {
    /// Path of the cache folder; `None` without a cache.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.cache.as_ref().map(|cache| cache.path.as_path())
    }

    /// How kernels are compiled, with progress for `observer`.
    pub(crate) fn kernel_compilation(&self, observer: &SharedObserver) -> KernelCompilation {
        let (observer, n_running) = (Arc::clone(observer), AtomicUsize::new(0));
        let watch = move |begins: bool| {
            let others = if begins {
                n_running.fetch_add(1, Ordering::Relaxed)
            } else {
                n_running.fetch_sub(1, Ordering::Relaxed) - 1
            };
            if others == 0 {
                observer.progress(Task::Compile, Bytes(u64::from(!begins)), Bytes(1));
            }
        };
        let (folder, program) = (self.folder().map(Path::to_owned), self.devices.compiler.clone());
        KernelCompilation { folder, program, watch: Some(Arc::new(watch)) }
    }
}

/// A folder for data that is computed once: repacked weights, measured speeds, compiled kernels,
/// side files.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheFolder {
    /// Path of the folder, which is created when needed.
    pub path: PathBuf,
    /// Repacked weights smaller than this are not cached, but repacked at each start.
    pub least: Bytes,
}

/// Which neurons are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sparsity {
    /// Neurons that an imported predictor or the file's own selects; without either, as
    /// [`Sparsity::Exact`].
    Predicted,
    /// Neurons that can contribute. The result is the same as with [`Sparsity::Off`].
    Exact,
    /// Neurons that the side file's predictor or thresholds select, with hardly any change of the
    /// output.
    Balanced,
    /// As `Balanced` with fewer neurons: faster and less exact.
    Fast,
    /// As `Balanced` for this relative error of a block's output.
    Within(f32),
    /// All neurons.
    Off,
}

/// How much memory of a device may be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// The free memory minus a margin for other programs.
    Auto,
    /// A number of bytes.
    Bytes(u64),
    /// A fraction of the device's memory, in `0..=1`.
    Share(f32),
}

/// Which devices are used, and what is placed on them.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceOptions {
    /// Only devices of this backend, one of [`crate::devices::BACKENDS`]; `Some("cpu")` uses only
    /// the CPU, `None` uses all backends.
    pub backend: Option<&'static str>,
    /// Devices by name; `None` for every hardware device, each once.
    pub named: Option<Vec<String>>,
    /// Index of the only device to use, among those that `backend` and `named` select; `None` uses
    /// all of them.
    pub main: Option<usize>,
    /// One budget per device, or one for all devices; empty for [`Budget::Auto`].
    pub budgets: Vec<Budget>,
    /// Host memory for weights, cache and scratch. Weights beyond it stay on disk, and are read
    /// when they are needed.
    pub ram_budget: Budget,
    /// User options for the placement.
    pub constraints: PlanConstraints,
    /// The user's overrides of tensor buffers; the first one that matches a tensor counts.
    pub overrides: Vec<TensorOverride>,
    /// Number of first layers whose experts stay on the CPU, where `overrides` do not match them;
    /// `usize::MAX` for all layers.
    pub experts_on_cpu: Option<usize>,
    /// Swap neurons between CPU and devices as the text changes.
    pub adapt: bool,
    /// Measure speeds again instead of using cached speeds.
    pub remeasure: bool,
    /// Ways of using the devices that are switched on or off.
    pub switches: DeviceSwitches,
    /// The program that compiles kernels in a process of its own
    /// ([`crate::devices::KernelCompilation::program`]).
    pub compiler: Option<PathBuf>,
    /// Names of the settings that expect a device, for the text of [`crate::Notice::NoDevice`].
    pub expected_by: Vec<&'static str>,
    /// Whether a request for whole layers was dropped, because their neurons have to stay on the
    /// CPU.
    pub layers_ignored: bool,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions {
            backend: None,
            named: None,
            main: None,
            budgets: Vec::new(),
            ram_budget: Budget::Auto,
            constraints: PlanConstraints::default(),
            overrides: Vec::new(),
            experts_on_cpu: None,
            adapt: true,
            remeasure: false,
            switches: DeviceSwitches::default(),
            compiler: None,
            expected_by: Vec::new(),
            layers_ignored: false,
        }
    }
}

impl DeviceOptions {
    /// The overrides of tensors, those for experts last.
    #[must_use]
    pub fn tensor_overrides(&self) -> Vec<TensorOverride> {
        let n_layers = self.experts_on_cpu.map(|n| Some(n).filter(|n| *n < usize::MAX));
        let experts = n_layers.map(TensorOverride::experts_on_cpu).into_iter().flatten();
        self.overrides.iter().cloned().chain(experts).collect()
    }
}

/// Thread, affinity, priority and NUMA options of the CPU backend, without the number of threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// CPUs to run on, by the system's numbers; `None` for all that the process may use.
    pub cpus: Option<Vec<usize>>,
    /// Bind each thread to one CPU.
    pub strict: bool,
    /// Priority of the threads relative to other programs.
    pub priority: Priority,
    /// How long an idle worker spins before it parks, in percent of the longest time.
    pub poll: u8,
    /// How threads and weights are spread over NUMA nodes.
    pub numa: Option<Numa>,
    /// How far ahead kernels prefetch rows of weights, in bytes; `None` for the measured distance.
    pub prefetch: Option<usize>,
}

impl Default for Processor {
    fn default() -> Processor {
        let (cpus, priority) = (None, Priority::Normal);
        Processor { cpus, strict: false, priority, poll: 50, numa: None, prefetch: None }
    }
}

impl Processor {
    /// Options of the CPU backend, without thread counts and notices.
    #[must_use]
    pub fn options(&self) -> CpuOptions {
        CpuOptions {
            cpus: self.cpus.clone(),
            strict: self.strict,
            numa: self.numa,
            priority: self.priority,
            poll: Some(self.poll),
            ..CpuOptions::default()
        }
    }
}
