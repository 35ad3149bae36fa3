//! A short profile of a model that has none, from what is done with it: after the text is out and for at most a tenth
//! of the time that it took, so that nobody waits. A few uses add up to a whole one.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cli::config::model::Computation;
use crate::cli::terminal::Terminal;
use crate::engine::Engine;
use crate::learned::{self, Learned, Section};
use crate::profile::{Gatherer, Profile};

/// What such a profile says that it comes from.
pub(in crate::cli) const SOURCE: &str = "use";
/// Tokens of a whole one.
const WANTED: u64 = 2048;
/// Fewer tokens are not worth a file.
const FEWEST: usize = 32;
/// Tokens between two looks at the clock.
const PIECE: usize = 64;
/// Time that nobody notices.
const FREE: Duration = Duration::from_millis(100);
/// The most time that is taken.
const MOST: Duration = Duration::from_secs(1);

/// A use of the model that ended.
pub(super) struct Use<'a> {
    /// Its text.
    pub(super) tokens: &'a [u32],
    /// Time it took.
    pub(super) took: Duration,
}

/// Looks at some tokens of a use where the model can skip neurons and lacks a profile. What fails is told with `-v` and
/// has no other effect.
pub(super) fn after(
    used: &Use<'_>,
    engine: &mut Engine,
    computation: &Computation,
    interrupt: &AtomicBool,
    terminal: &Terminal,
) {
    let Some(folder) = computation.folder.as_ref().map(|folder| folder.path.as_path()) else {
        return;
    };
    let n = affordable(used.tokens.len(), used.took).min(WANTED as usize);
    let model = engine.shared_model();
    // Where only thresholds drop neurons, a count tells nothing of which are used; of experts it does.
    let counts = engine.is_sparse() && model.is_exactly_sparse() || model.hyper.experts.is_some();
    if !counts || n < FEWEST || interrupt.load(Ordering::Relaxed) {
        return;
    }
    let Some(path) = learned::places(&model.file, Some(folder)).pop() else { return };
    let found = match Learned::find(&model.file, Some(folder), Section::Profile) {
        Ok(None) => None,
        // What a file beside the model has is not for this command to change.
        Ok(Some(learned)) if Path::new(learned.name()) != path => return,
        Ok(Some(learned)) => match Profile::read(&learned, &model) {
            Ok(found) => found,
            Err(refused) => return terminal.detail(&refused.to_string()),
        },
        Err(refused) => return terminal.note(&format!("no profile is used: {refused}")),
    };
    let (is_new, before) = (found.is_none(), found.as_ref().map(Profile::n_tokens));
    let mut profile = match found {
        Some(profile) if profile.source() != SOURCE || profile.is_finished() => return,
        Some(profile) => profile,
        None => Profile::counts(&model, SOURCE, WANTED),
    };
    let mut gatherer = Gatherer::counting(&model);
    let mut session = engine.open();
    // The newest words: those before are the same from use to use, such as a chat's first message.
    let tokens = &used.tokens[used.tokens.len() - n..];
    // Looking can be slower than the use was: all experts are looked at.
    let (began, time) = (Instant::now(), allowed(used.took));
    let mut seen = Ok(());
    for piece in tokens.chunks(PIECE) {
        if seen.is_err() || began.elapsed() >= time {
            break;
        }
        let step = engine.observe(&mut session, piece, interrupt, &mut |layer, observed| {
            gatherer.see(&profile, layer, observed);
        });
        seen = step.map(|_| ());
    }
    engine.close(session);
    if let Err(error) = seen {
        return terminal.detail(&format!("no profile was taken: {error}"));
    }
    gatherer.commit(&mut profile);
    let contents = profile.contents(&model);
    // A profile that another program has saved meanwhile stays.
    let same = |now: &Learned| match Profile::read(now, &model) {
        Ok(Some(now)) => now.source() == SOURCE && Some(now.n_tokens()) == before,
        Ok(None) | Err(_) => true,
    };
    match learned::save_if(&path, &model.file, Section::Profile, &contents, true, &same) {
        Err(error) => terminal.detail(&format!("no profile was kept: {error}")),
        Ok(false) => terminal.detail("another program has saved a profile meanwhile, which stays"),
        Ok(true) if is_new => terminal.note(&format!(
            "which neurons fire is counted after each text, {WANTED} tokens in all, and kept in {}; --no-auto-profile forbids it, `thermocline profile` takes a full profile",
            path.display()
        )),
        Ok(true) => {
            let (done, all) = (profile.n_tokens(), profile.n_wanted());
            terminal.detail(&format!("the profile has {done} of {all} tokens"));
        }
    }
}

/// Time that looking may take after a use.
fn allowed(took: Duration) -> Duration {
    (took / 10).clamp(FREE, MOST)
}

/// Tokens of `n_tokens` that can be looked at in the time there is, if looking is as fast as the use was.
fn affordable(n_tokens: usize, took: Duration) -> usize {
    let time = allowed(took);
    let rate = n_tokens as f64 / took.as_secs_f64().max(1e-9);
    ((rate * time.as_secs_f64()) as usize).min(n_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_long() {
        let ms = Duration::from_millis;
        assert_eq!(affordable(500, ms(50)), 500, "a tenth of a second is free");
        assert_eq!(affordable(500, ms(1000)), 50);
        assert_eq!(affordable(500, ms(5000)), 50);
        assert_eq!(affordable(1000, ms(100_000)), 10, "a second at most");
        assert_eq!(affordable(0, ms(0)), 0);
    }
}
