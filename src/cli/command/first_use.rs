//! What `run` and `chat` make first where `--sparsity` asks for something that nobody has learnt yet: a profile, and a
//! predictor or thresholds, from the text that comes with the program.

use super::engine::{Machine, Opened, is_learnt};
use super::{predictor, profile};
use crate::cli::config::model::{ModelOptions, Sparsity};
use crate::cli::config::{PredictorOptions, ProfileOptions};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use crate::learned::{self, FIRST_USE, Learned, Section};
use crate::model::Model;
use crate::predictor::{Kind, Settings};
use crate::profile::Profile;
use std::path::Path;

/// Tokens of the text that are read: enough for lines, of which signs are made in seconds.
const TOKENS: usize = 8192;
/// Error of a block's output for which factors are chosen, as `predictor` has it.
const TARGET: f32 = 0.05;

/// Learns what is missing, once for a model. What cannot be learnt is left to whoever needs it.
///
/// # Errors
/// What reading, learning and saving report; Ctrl-C, after which the same command goes on.
pub(super) fn learn(
    options: &ModelOptions,
    opened: &Opened,
    machine: &Machine,
    interrupt: &Interrupt,
    terminal: &Terminal,
) -> Result<(), Failure> {
    let model = &opened.model;
    match options.computation.sparsity {
        Sparsity::Balanced | Sparsity::Fast | Sparsity::Within(_) => {}
        Sparsity::Exact | Sparsity::Predicted | Sparsity::Off => return Ok(()),
    }
    let kind = [Kind::Signs, Kind::Factors].into_iter();
    let kind = kind.into_iter().find(|kind| predictor::check(model, *kind).is_ok());
    let folder = options.computation.folder.as_ref().map(|folder| folder.path.as_path());
    // In the user's folder: beside the model only a command puts files.
    let out = folder.and_then(|folder| learned::places(&model.file, Some(folder)).pop());
    let (Some(kind), Some(out)) = (kind, out) else { return Ok(()) };
    // What is there and damaged is told by whoever reads it next.
    if is_learnt(model, &options.computation).unwrap_or(true) {
        return Ok(());
    }
    let profiles = model.is_exactly_sparse() && lacks_profile(model, folder);
    let made = match (model.is_exactly_sparse(), profiles) {
        (true, true) => "a profile and a predictor",
        (true, false) => "a predictor",
        (false, _) => "thresholds",
    };
    terminal.note(&format!(
        "nobody has learnt yet which neurons of this model can be skipped: {made} are made now, once, of {TOKENS} tokens of a text that comes with the program; `thermocline predictor -f TEXT` learns more from yours, --no-auto-profile forbids this"
    ));
    let profiling = ProfileOptions {
        model: options.clone(),
        text: None,
        tokens: Some(TOKENS),
        out: Some(out.clone()),
        restart: false,
        import: None,
        compare: None,
        plot: None,
        json: false,
    };
    if profiles {
        profile::make(&profiling, FIRST_USE, opened, machine, interrupt, terminal)?;
    }
    let learning = PredictorOptions {
        model: options.clone(),
        text: None,
        import: None,
        out: Some(out),
        restart: false,
        n_tokens: TOKENS,
        settings: Settings { kind, target: TARGET, n_steps: 0, rank: None, max_size: None },
    };
    let machine = Machine::cpu(options, terminal);
    let made = predictor::make(&learning, FIRST_USE, opened, machine, interrupt, terminal);
    match made {
        // Another program has learnt it meanwhile, so there is nothing left to do.
        Err(failure)
            if failure.exit == Exit::Failed
                && is_learnt(model, &options.computation).unwrap_or(false) =>
        {
            terminal.note(&failure.message);
            Ok(())
        }
        made => made.map(|_| ()),
    }
}

/// Whether nobody has taken a profile, or begun one. What is there and damaged is told by whoever reads it next.
fn lacks_profile(model: &Model, folder: Option<&Path>) -> bool {
    match Learned::find(&model.file, folder, Section::Profile) {
        Ok(None) => true,
        Ok(Some(found)) => match Profile::read(&found, model) {
            Ok(profile) => profile.is_none_or(|profile| profile::is_unasked(&profile)),
            Err(_) => false,
        },
        Err(_) => false,
    }
}
