//! Automatic profiles: after each run, some of its tokens are profiled for a tenth of the run's
//! time (at least 0.1 s, at most 1 s). A few runs add up to a complete profile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cli::terminal::Terminal;
use crate::engine::Engine;
use crate::learned::{self, Section, SideFile};
use crate::profile::{Gatherer, Profile};
use runtime::Computation;

/// The source recorded in an automatic profile.
pub(in crate::cli) const SOURCE: &str = "use";
/// Tokens of a complete automatic profile.
const TARGET_TOKENS: u64 = 2048;
/// Fewer tokens than this are not worth a file.
const MIN_TOKENS: usize = 32;
/// Tokens profiled between two checks of the clock.
const CHUNK: usize = 64;
/// Time that profiling may always take, because users do not notice it.
const MIN_TIME: Duration = Duration::from_millis(100);
/// Maximum time that profiling may take.
const MAX_TIME: Duration = Duration::from_secs(1);

pub(super) struct FinishedRun<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) took: Duration,
}

/// Profiles some tokens of a run if firing counts are useful for the model and its profile is
/// missing or unfinished. Failures are only printed.
pub(super) fn profile_run(
    used: &FinishedRun<'_>,
    engine: &mut Engine,
    computation: &Computation,
    interrupt: &AtomicBool,
    terminal: &Terminal,
) {
    let Some(folder) = computation.folder() else { return };
    let n = affordable_tokens(used.tokens.len(), used.took).min(TARGET_TOKENS as usize);
    let model = engine.shared_model();
    // Thresholds alone give no useful firing counts; exact zeros and routed experts do.
    let counts = engine.is_sparse() && model.is_exactly_sparse() || model.experts().is_some();
    if !counts || n < MIN_TOKENS || interrupt.load(Ordering::Relaxed) {
        return;
    }
    let Some(path) = learned::places(&model.file, Some(folder)).pop() else { return };
    let found = match SideFile::find(&model.file, Some(folder), Section::Profile) {
        Ok(None) => None,
        // `run` and `chat` never change a profile next to the model, only the one in the cache.
        Ok(Some(learned)) if Path::new(learned.name()) != path => return,
        Ok(Some(learned)) => match Profile::read(&learned, &model) {
            Ok(found) => found,
            Err(refused) => return terminal.detail(&refused.to_string()),
        },
        Err(refused) => return terminal.note(&format!("the profile is not used: {refused}")),
    };
    let (is_new, before) = (found.is_none(), found.as_ref().map(Profile::n_tokens));
    let mut profile = match found {
        Some(profile) if profile.source() != SOURCE || profile.is_finished() => return,
        Some(profile) => profile,
        None => Profile::counts(&model, SOURCE, TARGET_TOKENS),
    };
    let mut gatherer = Gatherer::counting(&model);
    let mut sequence = engine.new_sequence();
    // Profile the newest tokens: the first ones, such as a system message, repeat in every run.
    let tokens = &used.tokens[used.tokens.len() - n..];
    // Profiling computes all experts, so it can be slower than the run.
    let (began, time) = (Instant::now(), allowed_time(used.took));
    let mut seen = Ok(());
    for piece in tokens.chunks(CHUNK) {
        if seen.is_err() || began.elapsed() >= time {
            break;
        }
        let step = engine.observe(&mut sequence, piece, interrupt, &mut |layer, observed| {
            gatherer.add(&profile, layer, observed);
        });
        seen = step.map(|_| ());
    }
    drop(sequence);
    if let Err(error) = seen {
        return terminal.detail(&format!("no profile was collected: {error}"));
    }
    gatherer.commit(&mut profile);
    let contents = profile.contents(&model);
    // Do not overwrite a profile that another process saved in the meantime.
    let same = |now: &SideFile| match Profile::read(now, &model) {
        Ok(Some(now)) => now.source() == SOURCE && Some(now.n_tokens()) == before,
        Ok(None) | Err(_) => true,
    };
    let file = &model.file;
    match learned::save_if(&path, file, Section::Profile, &contents, true, interrupt, &same) {
        Err(error) => terminal.detail(&format!("the profile was not saved: {error}")),
        Ok(false) => terminal.detail("another process saved a profile in the meantime; keeping that one"),
        Ok(true) if is_new => terminal.note(&format!(
            "collecting an activation profile ({TARGET_TOKENS} tokens in all) in {}; disable with --no-auto-profile; `thermocline profile` makes a full one",
            path.display()
        )),
        Ok(true) => {
            let (done, all) = (profile.n_tokens(), profile.n_wanted());
            terminal.detail(&format!("the profile has {done} of {all} tokens"));
        }
    }
}

/// Time that profiling may take after a run.
fn allowed_time(took: Duration) -> Duration {
    (took / 10).clamp(MIN_TIME, MAX_TIME)
}

/// Number of tokens, at most `n_tokens`, that fit into the allowed time if profiling is as fast as
/// the run was.
fn affordable_tokens(n_tokens: usize, took: Duration) -> usize {
    let time = allowed_time(took);
    let rate = n_tokens as f64 / took.as_secs_f64().max(1e-9);
    ((rate * time.as_secs_f64()) as usize).min(n_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiling_time_is_limited() {
        let ms = Duration::from_millis;
        assert_eq!(affordable_tokens(500, ms(50)), 500, "a tenth of a second is free");
        assert_eq!(affordable_tokens(500, ms(1000)), 50);
        assert_eq!(affordable_tokens(500, ms(5000)), 50);
        assert_eq!(affordable_tokens(1000, ms(100_000)), 10, "a second at most");
        assert_eq!(affordable_tokens(0, ms(0)), 0);
    }
}
