//! First use: when `--sparsity` needs a predictor or thresholds that do not exist yet, `run` and
//! `chat` train them from the built-in text, with a profile if that is missing too.

use super::profile::SourceText;
use super::{predictor, profile};
use crate::cli::args::{ProfileSourceArgs, TrainingArgs};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use crate::learned::{self, FIRST_USE, Section, SideFile};
use crate::model::Model;
use crate::predictor::PredictorKind as Kind;
use crate::profile::Profile;
use runtime::{Opened, Runtime, Sparsity, has_predictor};
use std::path::Path;

/// Number of tokens taken from the text: enough to compute thresholds or the biases of a sign
/// predictor, within seconds.
const TOKENS: usize = 8192;
/// Target for the relative error of a feed-forward block's output, the default of
/// `predictor --target`.
const TARGET: f32 = 0.05;

/// Trains the missing predictor or thresholds, once per model; collects a missing profile first. If
/// the model does not support any predictor, the code that opens the predictor later reports the
/// error.
///
/// # Errors
/// Errors of reading, training and saving; Ctrl-C. The same command then resumes the training.
pub(super) fn train_missing(
    opened: &Opened,
    runtime: &Runtime,
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> Result<(), Failure> {
    let (model, computation) = (&opened.model, &runtime.options().computation);
    match computation.sparsity {
        Sparsity::Balanced | Sparsity::Fast | Sparsity::Within(_) => {}
        Sparsity::Exact | Sparsity::Predicted | Sparsity::Off => return Ok(()),
    }
    let kind = [Kind::Signs, Kind::Factors].into_iter();
    let kind = kind.into_iter().find(|kind| predictor::check(model, *kind).is_ok());
    let folder = computation.folder();
    // Save to the user's cache: only `profile` and `predictor` write files next to the model.
    let out = folder.and_then(|folder| learned::places(&model.file, Some(folder)).pop());
    let (Some(kind), Some(out)) = (kind, out) else { return Ok(()) };
    // A damaged file counts as trained; the code that opens it reports the damage.
    if has_predictor(model, computation).unwrap_or(true) {
        return Ok(());
    }
    let profiles = model.is_exactly_sparse() && lacks_profile(model, folder);
    let made = match (model.is_exactly_sparse(), profiles) {
        (true, true) => "a profile and a predictor",
        (true, false) => "a predictor",
        (false, _) => "thresholds",
    };
    terminal.note(&format!(
        "no predictor for this model yet; creating {made} now, once, from {TOKENS} tokens of a built-in text; `thermocline predictor -f TEXT` trains on your text, --no-auto-profile disables this"
    ));
    let text = SourceText { text: None, why: FIRST_USE };
    if profiles {
        let source = ProfileSourceArgs {
            file: None,
            tokens: Some(TOKENS),
            out: Some(out.clone()),
            restart: false,
            import: None,
        };
        profile::make(&source, text, opened, runtime, interrupt, terminal).map_err(without_out)?;
    }
    let training = TrainingArgs {
        file: None,
        outfile: Some(out),
        restart: false,
        tokens: TOKENS,
        error: TARGET,
        kind,
        train: 0,
        rank: None,
        max_size: None,
        import: None,
    };
    let cpu = Runtime::cpu(runtime.options().clone(), terminal.observer());
    let made = predictor::make(&training, text, opened, cpu, interrupt, terminal);
    match made {
        // Another process finished the same work in the meantime.
        Err(failure)
            if failure.exit == Exit::Failed
                && has_predictor(model, computation).unwrap_or(false) =>
        {
            terminal.note(&failure.message);
            Ok(())
        }
        made => made.map(|_| ()).map_err(without_out),
    }
}

/// The failure with help for a command that has no `--out`.
fn without_out(failure: Failure) -> Failure {
    match &failure.help {
        Some(help) if help.contains("--out") => failure.help(
            "free some space, choose another folder with --repack-cache DIR, or use --sparsity exact, which needs no such file",
        ),
        Some(_) | None => failure,
    }
}

/// Whether the model lacks a profile that the user asked for, complete or unfinished. A damaged
/// file counts as a profile; the code that opens it reports the damage.
fn lacks_profile(model: &Model, folder: Option<&Path>) -> bool {
    match SideFile::find(&model.file, folder, Section::Profile) {
        Ok(None) => true,
        Ok(Some(found)) => match Profile::read(&found, model) {
            Ok(profile) => profile.is_none_or(|profile| profile::is_automatic(&profile)),
            Err(_) => false,
        },
        Err(_) => false,
    }
}
