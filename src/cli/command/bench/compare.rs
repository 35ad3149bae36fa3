//! Compares several backends and budgets: checks that they are available and compute the same, and
//! draws the comparison.

use super::Combination;
use super::facts::Facts;
use super::plot::Plot;
use crate::bench::{Difference, difference, rounding_bound};
use crate::cli::args::BenchSetup;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::write_file;
use crate::cli::parse::values;
use crate::cli::terminal::Terminal;
use crate::model::Model;
use crate::placement::Placement;
use hal::Bytes;
use runtime::{Accelerator, Machine, Runtime};
use std::collections::BTreeSet;

/// Checks the devices before anything is measured.
///
/// # Errors
/// [`Exit::BackendMissing`] for a backend or device that was requested by name and is not
/// available.
pub(super) fn check_places(setup: &BenchSetup<'_>, terminal: &Terminal) -> Result<(), Failure> {
    let Some(combination) = super::combinations(setup).into_iter().next() else { return Ok(()) };
    if setup.places.len() > 1 {
        let quiet = terminal.quiet();
        for place in 0..setup.places.len() {
            let options = Combination { place, ..combination }.run_options(setup);
            Runtime::new(options, quiet.observer())?;
        }
    }
    Ok(())
}

/// An engine and its logits.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) combination: Combination,
    /// Its name in messages.
    pub(super) label: String,
    /// Its devices, by name.
    pub(super) devices: Vec<String>,
    pub(super) placement: Placement,
    pub(super) logits: Vec<f32>,
}

impl Checked {
    /// Whether both compute the same in the same places, with the same step sizes and number of
    /// threads.
    fn is_run_like(&self, other: &Checked) -> bool {
        let steps = |one: &Checked| {
            let Combination { threads, n_batch, n_ubatch, .. } = one.combination;
            (threads, n_ubatch.min(n_batch))
        };
        let there = |one: &Checked| (one.devices.clone(), one.placement.clone());
        steps(self) == steps(other) && there(self) == there(other)
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
    first: Vec<Checked>,
    /// Backends, other differing options and device limits that were already measured for the
    /// current model.
    measured: BTreeSet<(Option<&'static str>, String, Limits)>,
    /// The models, for the title of the plot.
    titles: Vec<String>,
    /// Number of engines compared with another one.
    n_compared: usize,
    /// Differences that exceed the bound.
    apart: Vec<String>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(setup: &'a BenchSetup<'a>) -> Comparison<'a> {
        Comparison {
            setup,
            plot: Plot::default(),
            first: Vec::new(),
            measured: BTreeSet::new(),
            titles: Vec::new(),
            n_compared: 0,
            apart: Vec::new(),
        }
    }

    /// Starts the next model.
    pub(super) fn next_model(&mut self) {
        self.first.clear();
        self.measured.clear();
    }

    /// Whether this combination was measured already, which is reported: budgets beyond a device's
    /// memory are the same limit. Without a device, every budget of a backend is the same.
    pub(super) fn is_the_same(
        &mut self,
        machine: &Machine,
        combination: Combination,
        terminal: &Terminal,
    ) -> bool {
        let place = &self.setup.places[combination.place];
        let others = Combination { place: 0, ..combination };
        let limit = |other: &Accelerator| (other.candidate.name.clone(), other.budget);
        let limits: Limits = machine.others.iter().map(limit).collect();
        let told: Vec<_> =
            limits.iter().map(|(name, budget)| format!("{budget} on {name}")).collect();
        let is_new = self.measured.insert((place.backend, format!("{others:?}"), limits));
        if !is_new && !told.is_empty() {
            let told = told.join(", ");
            terminal
                .note(&format!("skipping a budget that is equivalent to an earlier one ({told})"));
        }
        !is_new
    }

    /// Records that a model is measured.
    pub(super) fn names(&mut self, facts: &Facts) {
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

    /// Compares the logits of an engine with those of the first one, and reports the result.
    pub(super) fn logits(
        &mut self,
        checked: Checked,
        model: &Model,
        terminal: &Terminal,
    ) -> Option<f64> {
        let formats = |one: &Checked| (one.combination.type_k, one.combination.type_v);
        let mut before = self.first.iter();
        let Some(first) = before.find(|first| formats(first) == formats(&checked)) else {
            self.first.push(checked);
            return None;
        };
        let (label, expected) = (&checked.label, &first.logits);
        if first.is_run_like(&checked) {
            terminal.note(&format!(
                "{label} and {} have the same placement, so there is nothing to compare",
                first.label
            ));
            return None;
        }
        let Difference { largest, n, n_same } =
            difference(expected, &checked.logits, model.n_vocab());
        let (bound, why) = rounding_bound(model);
        let told = format!(
            "the logits of {label} differ from those of {} by {largest:.1e} of their spread at most, the most probable token is the same at {n_same} of {n} positions",
            first.label
        );
        self.n_compared += 1;
        terminal.note(&format!("{told}; rounding explains {bound:.0e} ({why})"));
        if largest > bound {
            self.apart.push(told);
        }
        Some(largest)
    }

    /// Writes the plot.
    ///
    /// # Errors
    /// The plot cannot be written; logits differ by more than rounding explains.
    pub(super) fn finish(&self, terminal: &Terminal) -> Result<(), Failure> {
        if let Some(path) = &self.setup.args.plot {
            write_file(path, &self.plot.picture(&self.titles.join("; ")))?;
            terminal.note(&format!("the plot is in '{}'", path.display()));
        }
        match &self.apart[..] {
            [] if self.setup.args.check && self.n_compared == 0 => {
                let message = "--check had nothing to compare: no two ways to run the model differ in what is on which device";
                Err(Failure::new(Exit::Failed, message))
            }
            [] => Ok(()),
            [first, ..] => {
                let mut failure = Failure::new(Exit::Failed, first.clone());
                failure.causes = self.apart[1..].to_vec();
                Err(failure.help(
                    "that is more than rounding explains: one of them computes wrong results",
                ))
            }
        }
    }
}
