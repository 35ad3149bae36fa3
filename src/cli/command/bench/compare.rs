//! Several backends and budgets side by side: that they are there, that they compute the same, and the picture of them.

use super::Combination;
use super::facts::Facts;
use super::plot::Plot;
use crate::bench::{Difference, difference, rounding_bound};
use crate::cli::command::engine::Machine;
use crate::cli::config::BenchOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::write_file;
use crate::cli::terminal::Terminal;
use crate::model::Model;
use std::collections::BTreeSet;

/// Finds out what is missing before anything is measured.
///
/// # Errors
/// [`Exit::BackendMissing`] for what was asked for by name and is not there.
pub(super) fn check_places(options: &BenchOptions, terminal: &Terminal) -> Result<(), Failure> {
    let Some(combination) = super::combinations(options).into_iter().next() else { return Ok(()) };
    if options.places.len() > 1 {
        let quiet = terminal.quiet();
        for place in 0..options.places.len() {
            Machine::new(&Combination { place, ..combination }.model_options(options), &quiet)?;
        }
    }
    Ok(())
}

/// What is known of the engines so far.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    options: &'a BenchOptions,
    pub(super) plot: Plot,
    /// Logits of the first engine of a model with these formats of the cache, and what it is called.
    first: Vec<(Combination, String, Vec<f32>)>,
    /// Backends of which all budgets are the CPU alone, of the model at hand.
    on_cpu: BTreeSet<(Option<&'static str>, String)>,
    /// The models, for the picture's title.
    titles: Vec<String>,
    /// Engines that were compared with another.
    n_compared: usize,
    /// What differs by more than it may.
    apart: Vec<String>,
}

impl<'a> Comparison<'a> {
    pub(super) fn new(options: &'a BenchOptions) -> Comparison<'a> {
        Comparison {
            options,
            plot: Plot::default(),
            first: Vec::new(),
            on_cpu: BTreeSet::new(),
            titles: Vec::new(),
            n_compared: 0,
            apart: Vec::new(),
        }
    }

    /// What follows is another model.
    pub(super) fn next_model(&mut self) {
        self.first.clear();
        self.on_cpu.clear();
    }

    /// Whether this was measured already: without a device, every budget of a backend is the same.
    pub(super) fn is_the_same(&mut self, machine: &Machine, combination: Combination) -> bool {
        let place = &self.options.places[combination.place];
        let others = Combination { place: 0, ..combination };
        machine.others.is_empty() && !self.on_cpu.insert((place.backend, format!("{others:?}")))
    }

    /// Takes down that a model is measured.
    pub(super) fn names(&mut self, facts: &Facts) {
        if !self.titles.contains(&facts.model_type) {
            self.titles.push(facts.model_type.clone());
        }
    }

    /// A name for an engine that tells it from the others of this run.
    pub(super) fn label(&self, facts: &Facts) -> String {
        let mut label = facts.backends();
        if let Some(budget) = facts.devices.budget {
            label += &format!(" within {budget}");
        }
        if self.options.threads.len() > 1 {
            label += &format!(", {} threads", facts.n_threads);
        }
        if self.options.n_ubatch.len() > 1 || self.options.n_batch.len() > 1 {
            label += &format!(", -b {} -ub {}", facts.n_batch, facts.n_ubatch);
        }
        if self.options.type_k.len() > 1 || self.options.type_v.len() > 1 {
            label += &format!(", {}/{}", facts.type_k, facts.type_v);
        }
        if self.options.subjects.len() > 1 {
            label = format!("{}: {label}", facts.model_type);
        }
        label
    }

    /// Compares the logits of an engine with those of the first one, and says what came out.
    pub(super) fn logits(
        &mut self,
        label: &str,
        model: &Model,
        logits: Vec<f32>,
        combination: Combination,
        terminal: &Terminal,
    ) -> Option<f64> {
        let of = |other: &Combination| {
            (other.type_k, other.type_v) == (combination.type_k, combination.type_v)
        };
        let Some((_, first, expected)) = self.first.iter().find(|(other, ..)| of(other)) else {
            self.first.push((combination, label.to_owned(), logits));
            return None;
        };
        if first == label {
            terminal.note(&format!(
                "nothing of the model is on a device ({label}), so there is nothing to compare"
            ));
            return None;
        }
        let Difference { largest, n, n_same } = difference(expected, &logits, model.n_vocab());
        let (bound, why) = rounding_bound(model);
        let told = format!(
            "the logits of {label} differ from those of {first} by {largest:.1e} of their spread at most, the most probable token is the same at {n_same} of {n} positions"
        );
        self.n_compared += 1;
        terminal.note(&format!("{told}; rounding explains {bound:.0e} ({why})"));
        if largest > bound {
            self.apart.push(told);
        }
        Some(largest)
    }

    /// Draws the picture.
    ///
    /// # Errors
    /// Where it cannot be written; logits that differ by more than rounding explains.
    pub(super) fn finish(&self, terminal: &Terminal) -> Result<(), Failure> {
        if let Some(path) = &self.options.plot {
            write_file(path, &self.plot.picture(&self.titles.join("; ")))?;
            terminal.note(&format!("the picture is in '{}'", path.display()));
        }
        match &self.apart[..] {
            [] if self.options.check && self.n_compared == 0 => {
                let message = "--check had nothing to compare: nothing of the model was on a device beside the CPU";
                Err(Failure::new(Exit::Failed, message))
            }
            [] => Ok(()),
            [first, ..] => {
                let mut failure = Failure::new(Exit::Failed, first.clone());
                failure.causes = self.apart[1..].to_vec();
                Err(failure.help(
                    "that is more than rounding explains: one of them computes something else",
                ))
            }
        }
    }
}
