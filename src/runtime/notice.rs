//! Messages of the runtime while it opens and loads a model.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use hal::Bytes;

use crate::adapters::AdapterNotice;
pub use crate::repack::RepackNotice;
pub use crate::self_test::KernelNotice;
pub use crate::tiers::DiskNotice;

/// Receives notices and progress. The runtime itself prints nothing.
pub trait Observer: Send + Sync {
    /// Called for each notice, possibly by several threads at once.
    fn notice(&self, notice: &Notice);

    /// Called repeatedly while `task` runs; the last call has `done == total`.
    fn progress(&self, task: Task, done: Bytes, total: Bytes) {
        let _ = (task, done, total);
    }

    /// Whether the user has stopped the work; polled while repacked weights are written.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// A shared [`Observer`].
pub type SharedObserver = Arc<dyn Observer>;

/// A task that takes seconds with large models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The CPU's kernels are tuned to the machine. Its length is not known.
    Tune,
    /// Kernels are compiled for a device. Its length is not known.
    Compile,
    /// A device's kernels are compared with the CPU; in tests, not bytes.
    Test,
    /// The model file is read into memory, instead of being mapped.
    Read,
    /// LoRA adapters are merged into the weights.
    Merge,
    /// Weights are loaded onto the devices.
    Load,
    /// Repacked weights are written to the cache folder.
    Repack,
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentObserver;

impl Observer for SilentObserver {
    fn notice(&self, _: &Notice) {}
}

/// A message about opening, placing or loading a model. [`fmt::Display`] gives an English sentence
/// without the names of flags or settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// The system rejected a request of the CPU backend: affinity, priority, locked memory.
    Cpu(String),
    /// A message of the engine: slow paths, a smaller placement, a lost device.
    Engine(String),
    /// A problem with the vocabulary.
    Vocabulary(String),
    /// A split model is memory-mapped although the options ask to read it into memory.
    SplitFileIsMapped,
    /// LoRA adapters are merged into the weights.
    Adapters(AdapterNotice),
    /// The self-test of a device's kernels.
    Kernels(KernelNotice),
    /// RoPE settings for a model without RoPE.
    NoRope,
    /// A cache type of its own for values, in a model whose values are a part of the keys.
    ValuesInKeys {
        /// Number of layers with latent attention.
        n_latent: usize,
        /// Number of layers with attention.
        n_attention: usize,
    },
    /// The context that the runtime chose, if devices other than the CPU are used.
    Context {
        /// Context size in tokens.
        n_ctx: usize,
        /// Context size in tokens that the model was trained with.
        n_ctx_train: usize,
        /// A shorter context in tokens, and its speed-up in decode: `0.1` is 10 %. `None` if no
        /// shorter context is much faster.
        shorter: Option<(usize, f64)>,
    },
    /// The context is longer than the context of the model's training.
    ContextBeyondTraining {
        /// Context size in tokens.
        n_ctx: usize,
        /// Context size in tokens that the model was trained with.
        n_ctx_train: usize,
    },
    /// No device other than the CPU can be used.
    NoDevice {
        /// The missing driver or device.
        reason: String,
        /// Settings that expect a device ([`crate::DeviceOptions::expected_by`]).
        expected_by: Vec<&'static str>,
    },
    /// A task uses only the CPU, although settings expect a device.
    CpuOnly {
        /// Subject and verb of the sentence, such as `calibration runs`.
        what: String,
        /// Settings that expect a device.
        expected_by: Vec<&'static str>,
    },
    /// Whole layers cannot be placed on a device, because all neurons stay on the CPU.
    WholeLayersIgnored,
    /// A software driver is used, because no other device was found.
    SoftwareDevice {
        /// Name and description of the device.
        device: String,
    },
    /// A device cannot be opened.
    DeviceFailed {
        /// Name of the device.
        device: String,
        /// The driver's error.
        reason: String,
        /// The same card through another driver, which is used instead.
        instead: Option<String>,
    },
    /// The budget exceeds the device's memory.
    BudgetReduced {
        /// Name of the device.
        device: String,
        /// The requested budget.
        wanted: Bytes,
        /// The device's memory, which becomes the budget.
        total: Bytes,
    },
    /// The driver reports no memory sizes, so there is no limit.
    NoMemoryReport {
        /// Name of the device.
        device: String,
    },
    /// A device without usable memory.
    DeviceFull(DeviceFull),
    /// The speed of a device cannot be measured.
    NotMeasured {
        /// Name of the device.
        device: String,
        /// The error, as text.
        reason: String,
    },
    /// Measured speeds cannot be written to the cache folder.
    SpeedsNotKept {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The placement on a device.
    Placed(PlacementReport),
    /// A user option that the placement does not meet or that has no effect, or a part of the model
    /// that a device rejects.
    NotPlaced(String),
    /// The placement that the user requested decodes more slowly than the fastest one.
    SlowerPlacement {
        /// Estimated tokens per second with the requested placement.
        rate: f64,
        /// Estimated tokens per second with the fastest placement.
        fastest: f64,
    },
    /// Layers are split without a profile of neuron use.
    NoProfile,
    /// The profile in the side file cannot be used.
    ProfileRefused {
        /// The reason, as text.
        reason: String,
    },
    /// The predictor in the side file cannot be used.
    PredictorRefused {
        /// The reason, as text.
        reason: String,
    },
    /// Which neurons are skipped, or why none are.
    Sparsity(SparsityNotice),
    /// How weights are repacked, or why they are not.
    Repack(RepackNotice),
    /// The mapped weights exceed the machine's memory.
    LargerThanMemory {
        /// Memory that the model needs.
        wanted: Bytes,
        /// Memory of the machine.
        total: Bytes,
        /// The needed memory itemised, as text.
        items: String,
    },
    /// Weights that stay on disk.
    Disk(DiskNotice),
    /// The model needs more memory than is free now.
    LittleMemory {
        /// Memory that the model needs.
        wanted: Bytes,
        /// Free memory.
        free: Bytes,
        /// The needed memory itemised, as text.
        items: String,
    },
}

/// A device without usable memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFull {
    /// Name of the device.
    pub device: String,
    /// Free memory, or total memory if the driver does not report free memory.
    pub known: Bytes,
    /// Memory left free for other programs.
    pub margin: Bytes,
}

/// The placement on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementReport {
    /// Name of the device.
    pub device: String,
    /// Number of layers whose home is the device.
    pub n_home: usize,
    /// Number of layers among [`PlacementReport::n_home`] whose neurons are split with the CPU.
    pub n_split: usize,
    /// Number of layers of the model.
    pub n_layer: usize,
    /// Memory used, including the driver's reserve.
    pub used: Bytes,
    /// The budget; `None` without a limit.
    pub budget: Option<Bytes>,
    /// Why no layer is on the device; `None` if the user's options explain it.
    pub why_empty: Option<String>,
}

/// Which neurons are skipped, or why none are.
#[derive(Clone, Debug, PartialEq)]
pub enum SparsityNotice {
    /// Skipping is turned off.
    Off,
    /// Neurons whose activation is zero are skipped; the result does not change.
    Exact {
        /// Name of the activation.
        activation: &'static str,
    },
    /// The model has no feed-forward blocks.
    NoNeurons,
    /// The activation has no exact zeros.
    Nothing {
        /// Name of the activation.
        activation: &'static str,
        /// Whether the model has experts, of which a token uses some.
        experts: bool,
    },
    /// A trained predictor of the side file chooses neurons.
    TrainedPredictor {
        /// Number of layers with a predictor.
        n_layers: usize,
        /// Number of layers of the model.
        n_layer: usize,
        /// Relative error of a block's output.
        error: f32,
    },
    /// Neurons below the thresholds of the side file are skipped.
    Thresholds {
        /// Relative error of a block's output.
        error: f32,
    },
    /// An imported predictor, or the model file's predictor, chooses neurons.
    Predictor {
        /// Whether the predictor was imported into the side file.
        is_imported: bool,
        /// Number of layers with a predictor.
        n_layers: usize,
        /// Minimum score of an active neuron.
        threshold: f32,
    },
    /// A threshold was set, but it has no effect.
    ThresholdIgnored {
        /// Whether the trained predictor or the thresholds of the side file are used; otherwise no
        /// predictor is.
        other_predictor: bool,
    },
    /// Predictors of the file are not used, because they need a repacked `ffn_down`.
    NeedRepacking {
        /// Number of unused predictors.
        n: usize,
    },
    /// Predictors of the file are not used, because their format is not supported.
    PredictorFormat {
        /// Number of unused predictors.
        n: usize,
        /// Number of predictors in the file.
        n_in_file: usize,
    },
}

impl Notice {
    /// Whether only verbose output should show this notice.
    #[must_use]
    pub fn is_detail(&self) -> bool {
        matches!(
            self,
            Notice::SpeedsNotKept { .. }
                | Notice::Sparsity(SparsityNotice::Off | SparsityNotice::Exact { .. })
        ) || matches!(self, Notice::Kernels(kernels) if kernels.is_clean())
    }
}

fn has_or_have(names: &[&str]) -> &'static str {
    if names.len() == 1 { "has" } else { "have" }
}

/// Flags that change nothing because `what` happens on the CPU.
fn write_no_effect(f: &mut fmt::Formatter<'_>, flags: &[&str], what: &str) -> fmt::Result {
    write!(f, "{} {} no effect: {what} on the CPU", flags.join(" and "), has_or_have(flags))
}

fn write_failed(
    f: &mut fmt::Formatter<'_>,
    device: &str,
    reason: &str,
    instead: Option<&str>,
) -> fmt::Result {
    write!(f, "{device} is not used: {reason}")?;
    instead.map_or(Ok(()), |twin| write!(f, "; {twin}, the same card, is used instead"))
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Cpu(text) | Notice::Engine(text) | Notice::Vocabulary(text) => {
                f.write_str(text)
            }
            Notice::NotPlaced(what) => f.write_str(what),
            Notice::SplitFileIsMapped => {
                f.write_str("a model in several files is always memory-mapped")
            }
            Notice::Adapters(notice) => fmt::Display::fmt(notice, f),
            Notice::Kernels(notice) => fmt::Display::fmt(notice, f),
            Notice::NoRope => f.write_str("RoPE settings have no effect: the model has no RoPE"),
            Notice::ValuesInKeys { n_latent, n_attention } => write!(
                f,
                "the cache type of values has no effect on {n_latent} of {n_attention} layers: their values are a part of the keys"
            ),
            Notice::Context { n_ctx, n_ctx_train, shorter } => {
                write!(f, "the context is {n_ctx} tokens; the model was trained with {n_ctx_train}")?;
                let Some((n, gain)) = shorter else { return Ok(()) };
                write!(f, "; a context of {n} would decode {:.0} % faster", 100.0 * gain)
            }
            Notice::ContextBeyondTraining { n_ctx, n_ctx_train } => write!(
                f,
                "a context of {n_ctx} is longer than the {n_ctx_train} tokens the model was trained with; text beyond that may be poor"
            ),
            Notice::NoDevice { reason, expected_by } => match &expected_by[..] {
                [] => f.write_str("no GPU was found, so everything runs on the CPU"),
                names => write_no_effect(f, names, &format!("{reason}, so everything runs")),
            },
            Notice::CpuOnly { what, expected_by } => write_no_effect(f, expected_by, what),
            Notice::WholeLayersIgnored => f.write_str(
                "the number of layers has no effect: the neurons of all layers stay on the CPU",
            ),
            Notice::SoftwareDevice { device } => write!(
                f,
                "no GPU was found: {device}, a software driver, shows the placement but is slow"
            ),
            Notice::DeviceFailed { device, reason, instead } => {
                write_failed(f, device, reason, instead.as_deref())
            }
            Notice::BudgetReduced { device, wanted, total } => {
                write!(f, "{device} has {total} of memory: the budget is reduced from {wanted}")
            }
            Notice::NoMemoryReport { device } => write!(
                f,
                "the driver of {device} does not report free memory; allocating until it refuses"
            ),
            Notice::DeviceFull(full) => fmt::Display::fmt(full, f),
            Notice::NotMeasured { device, reason } => write!(
                f,
                "the speed of {device} cannot be measured, so plans do not rely on it: {reason}"
            ),
            Notice::SpeedsNotKept { path, reason } => {
                write!(f, "measured speeds are not saved in {}: {reason}", path.display())
            }
            Notice::Placed(placed) => fmt::Display::fmt(placed, f),
            Notice::SlowerPlacement { rate, fastest } => write!(
                f,
                "the requested placement decodes {rate:.1} tokens/s by the estimate, {:.0} % fewer than the fastest one ({fastest:.1} tokens/s)",
                // Rounding must not claim that nothing is left.
                (100.0 * (1.0 - rate / fastest)).min(99.0)
            ),
            Notice::NoProfile => f.write_str(
                "no activation profile for this model, so all neurons rank equally; with a profile the hot neurons go to the device",
            ),
            Notice::ProfileRefused { reason } => write!(f, "the profile is not used: {reason}"),
            Notice::PredictorRefused { reason } => {
                write!(f, "the side file's predictor is not used: {reason}")
            }
            Notice::Sparsity(notice) => fmt::Display::fmt(notice, f),
            Notice::Repack(notice) => fmt::Display::fmt(notice, f),
            Notice::LargerThanMemory { wanted, total, items } => write!(
                f,
                "the model needs {wanted} of memory, but this machine has {total}: weights are read from the file again and again, which is slow ({items})"
            ),
            Notice::Disk(notice) => fmt::Display::fmt(notice, f),
            Notice::LittleMemory { wanted, free, items } => write!(
                f,
                "the model needs {wanted} of memory, but only {free} are free, so it may run slowly ({items})"
            ),
        }
    }
}

impl fmt::Display for DeviceFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeviceFull { device, known, margin } = self;
        write!(
            f,
            "{device}: none of its {known} of memory can be used, because {margin} are left free for other programs"
        )
    }
}

impl fmt::Display for PlacementReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlacementReport { device, n_home, n_split, n_layer, used, budget, why_empty } = self;
        if *n_home == 0 {
            write!(f, "{device}: none of the {n_layer} layers is placed on it")?;
            return why_empty.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"));
        }
        write!(f, "{device}: {n_home} of {n_layer} layers ({n_split} split with the CPU), {used}")?;
        budget.map_or(Ok(()), |budget| write!(f, " of {budget}"))
    }
}

impl fmt::Display for SparsityNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SparsityNotice::Off => f.write_str("every neuron is computed"),
            SparsityNotice::Exact { activation } => write!(
                f,
                "the activation is {activation}: neurons whose gate is not positive are skipped, which does not change the result"
            ),
            SparsityNotice::NoNeurons => {
                f.write_str("the model has no feed-forward blocks, so there are no neurons to skip")
            }
            SparsityNotice::Nothing { activation, experts: false } => write!(
                f,
                "the activation is {activation}, which has no exact zeros: every neuron is computed"
            ),
            SparsityNotice::Nothing { activation, experts: true } => write!(
                f,
                "the activation is {activation}, which has no exact zeros: every neuron of a token's experts is computed"
            ),
            SparsityNotice::TrainedPredictor { n_layers, n_layer, error } => write!(
                f,
                "a trained predictor chooses neurons in {n_layers} of {n_layer} layers, for a relative error of {error} per block"
            ),
            SparsityNotice::Thresholds { error } => write!(
                f,
                "neurons below calibrated thresholds are skipped, for a relative error of {error} per block"
            ),
            SparsityNotice::Predictor { is_imported, n_layers, threshold } => {
                let whose = if *is_imported { "an imported" } else { "the file's" };
                write!(
                    f,
                    "{whose} predictor chooses neurons in {n_layers} layers (score at least {threshold}), as in PowerInfer; neurons that it misses change the result"
                )
            }
            SparsityNotice::ThresholdIgnored { other_predictor: true } => f.write_str(
                "the score threshold has no effect: it applies only to an imported predictor or the model file's own",
            ),
            SparsityNotice::ThresholdIgnored { other_predictor: false } => {
                f.write_str("the score threshold has no effect: no predictor is used")
            }
            SparsityNotice::NeedRepacking { n } => write!(
                f,
                "{n} of the file's predictors are not used: they need a repacked ffn_down; their layers skip neurons by the gate alone, which is exact"
            ),
            SparsityNotice::PredictorFormat { n, n_in_file } => write!(
                f,
                "{n} of the file's {n_in_file} predictors are in an unsupported format: their layers skip neurons by the gate alone, which is exact"
            ),
        }
    }
}
