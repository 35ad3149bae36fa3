//! Compares several backends and budgets: checks that the devices are available and that all
//! engines compute the same logits, and draws the comparison.

use super::Combination;
use super::facts::Facts;
use super::plot::Plot;
use crate::bench::{Difference, difference, rounding_bound};
use crate::cli::args::{BenchSetup, policy_name};
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::write_file;
use crate::cli::parse::values;
use crate::cli::terminal::Terminal;
use crate::model::Model;
use crate::placement::Placement;
use hal::Bytes;
use runtime::{Accelerator, Machine, Runtime};
use std::collections::BTreeSet;

/// Checks that the devices of every configuration are available, before the first measurement.
///
/// # Errors
/// [`Exit::BackendMissing`] for a backend or device that was requested by name and is not
/// available.
pub(super) fn check_devices(setup: &BenchSetup<'_>, terminal: &Terminal) -> Result<(), Failure> {
    let Some(combination) = super::combinations(setup).into_iter().next() else { return Ok(()) };
    if setup.device_options.len() > 1 {
        let quiet = terminal.quiet();
        for device_index in 0..setup.device_options.len() {
            let options = Combination { device_index, ..combination }
                .run_options(setup, &setup.computations[0]);
            Runtime::new(options, quiet.observer())?;
        }
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct EngineLogits {
    pub(super) combination: Combination,
    /// The engine's name in messages.
    pub(super) label: String,
    /// Names of the engine's devices.
    pub(super) devices: Vec<String>,
    pub(super) placement: Placement,
    pub(super) logits: Vec<f32>,
}

impl EngineLogits {
    /// Whether both engines have the same placement, micro-batch size and number of threads, so
    /// that their logits are equal by construction.
    fn has_same_plan(&self, other: &EngineLogits) -> bool {
        let steps = |one: &EngineLogits| {
            let Combination { threads, n_batch, n_ubatch, .. } = one.combination;
            (threads, n_ubatch.min(n_batch))
        };
        let placed = |one: &EngineLogits| (one.devices.clone(), one.placement.clone());
        steps(self) == steps(other) && placed(self) == placed(other)
    }
}

/// Devices by name, and the memory limit of each.
type Limits = Vec<(String, Bytes)>;

/// The engines compared so far.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    setup: &'a BenchSetup<'a>,
    pub(super) plot: Plot,
    /// The first engine of a model for each pair of KV cache formats.
    first: Vec<EngineLogits>,
    /// Backend, remaining options and device limits of each engine already measured for the
    /// current model.
    measured: BTreeSet<(Option<&'static str>, String, Limits)>,
    /// Whether a note said that a combination without a GPU is measured once.
    noted_repeat: bool,
    /// The models, for the title of the plot.
    titles: Vec<String>,
    /// Number of engines compared with another one.
    n_compared: usize,
    /// A message for each difference that exceeds the rounding bound.
    mismatches: Vec<String>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(setup: &'a BenchSetup<'a>) -> Comparison<'a> {
        Comparison {
            setup,
            plot: Plot::default(),
            first: Vec::new(),
            measured: BTreeSet::new(),
            noted_repeat: false,
            titles: Vec::new(),
            n_compared: 0,
            mismatches: Vec::new(),
        }
    }

    /// Forgets the engines of the previous model.
    pub(super) fn next_model(&mut self) {
        self.first.clear();
        self.measured.clear();
    }

    /// Whether an equivalent combination was measured already; a note says so. Budgets above a
    /// device's memory set the same limit, and without a device the budget has no effect.
    pub(super) fn was_measured(
        &mut self,
        machine: &Machine,
        combination: Combination,
        terminal: &Terminal,
    ) -> bool {
        let devices = &self.setup.device_options[combination.device_index];
        let others = Combination { device_index: 0, ..combination };
        let limit = |other: &Accelerator| (other.candidate.name.clone(), other.budget);
        let limits: Limits = machine.others.iter().map(limit).collect();
        let limits_text: Vec<_> =
            limits.iter().map(|(name, budget)| format!("{budget} on {name}")).collect();
        // Without a device, where layers are placed makes no difference.
        let placed = (devices.constraints, devices.experts_on_cpu, devices.main);
        let constraints = (!limits.is_empty()).then_some(placed);
        let others = format!("{others:?} {constraints:?} {:?}", devices.ram_budget);
        let backend = if limits.is_empty() { Some("cpu") } else { devices.backend };
        let is_new = self.measured.insert((backend, others, limits));
        if !is_new && limits_text.is_empty() && !std::mem::replace(&mut self.noted_repeat, true) {
            terminal
                .note("without a GPU, values that differ only in what GPUs do are measured once");
        } else if !is_new && !limits_text.is_empty() {
            let limits_text = limits_text.join(", ");
            terminal.note(&format!(
                "skipping a budget that is equivalent to an earlier one ({limits_text})"
            ));
        }
        !is_new
    }

    /// Adds the model to the title of the plot.
    pub(super) fn add_title(&mut self, facts: &Facts) {
        if !self.titles.contains(&facts.model_type) {
            self.titles.push(facts.model_type.clone());
        }
    }

    /// A name that distinguishes an engine from the others of this run.
    pub(super) fn label(&self, facts: &Facts) -> String {
        let args = self.setup.args;
        let mut label = facts.backends();
        if facts.devices.names.is_empty() && !facts.devices.empty.is_empty() {
            label += &format!(", nothing on {}", facts.devices.empty.join(","));
        }
        if let Some(budget) = &facts.devices.budgets {
            label += &format!(" within {budget}");
        }
        if args.placement.devices.layers().len() > 1 {
            label += &format!(", {} layers", facts.devices.n_layers);
        }
        if args.placement.devices.placement.len() > 1 {
            label += &format!(", {}", policy_name(facts.devices.policy));
        }
        if args.thread_counts().len() > 1 {
            label += &format!(", {} threads", facts.n_threads);
        }
        if values(&args.ubatch_size).len() > 1 || values(&args.batch_size).len() > 1 {
            label += &format!(", -b {} -ub {}", facts.n_batch, facts.n_ubatch);
        }
        if args.cache_type_k.len() > 1 || args.cache_type_v.len() > 1 {
            label += &format!(", {}/{}", facts.type_k, facts.type_v);
        }
        if self.setup.subjects.len() > 1 {
            label = format!("{}: {label}", facts.model_type);
        }
        label
    }

    /// Compares the logits of an engine with those of the first engine, and prints the result.
    /// Returns the largest difference; `None` if there was nothing to compare.
    pub(super) fn compare_logits(
        &mut self,
        checked: EngineLogits,
        model: &Model,
        terminal: &Terminal,
    ) -> Option<f64> {
        let formats = |one: &EngineLogits| (one.combination.type_k, one.combination.type_v);
        let mut before = self.first.iter();
        let Some(first) = before.find(|first| formats(first) == formats(&checked)) else {
            self.first.push(checked);
            return None;
        };
        let (label, expected) = (&checked.label, &first.logits);
        if first.has_same_plan(&checked) {
            terminal.note(&format!(
                "{label} and {} have the same placement, so their logits are not compared",
                first.label
            ));
            return None;
        }
        let Difference { largest, n, n_same } =
            difference(expected, &checked.logits, model.n_vocab());
        let (bound, why) = rounding_bound(model);
        let message = format!(
            "the logits of {label} differ from those of {} by at most {largest:.1e} of their spread; the most probable token is the same at {n_same} of {n} positions",
            first.label
        );
        self.n_compared += 1;
        terminal.note(&format!("{message}; rounding explains up to {bound:.0e} ({why})"));
        if largest > bound {
            self.mismatches.push(message);
        }
        Some(largest)
    }

    /// Writes the plot, if requested, and returns the verdict of `--check`.
    ///
    /// # Errors
    /// The plot cannot be written; logits differ by more than rounding explains, or `--check`
    /// compared none.
    pub(super) fn finish(&self, terminal: &Terminal) -> Result<(), Failure> {
        if let Some(path) = &self.setup.args.plot {
            write_file(path, &self.plot.picture(&self.titles.join("; ")))?;
            terminal.note(&format!("the plot is in '{}'", path.display()));
        }
        match &self.mismatches[..] {
            [] if self.setup.args.check && self.n_compared == 0 => {
                let message = "--check had nothing to compare: all configurations place the model in the same way";
                Err(Failure::new(Exit::Failed, message)
                    .help("pass backends or budgets that change the placement"))
            }
            [] => Ok(()),
            [first, ..] => {
                let mut failure = Failure::new(Exit::Failed, first.clone());
                failure.causes = self.mismatches[1..].to_vec();
                Err(failure.help(
                    "rounding does not explain this difference: one configuration computes wrong results; please report it",
                ))
            }
        }
    }
}
