//! Runs a text through a model and gathers what its neurons do.

use std::sync::atomic::AtomicBool;

use rayon::prelude::*;

use crate::engine::{self, Engine, StepStats};
use crate::gguf::Hash;
use crate::model::Model;

use super::{Gatherer, Profile, order};

/// Tokens of a window, at most: each begins anew.
const WINDOW: usize = 512;

/// A text to calibrate with, as the model reads it.
#[derive(Clone, Debug)]
pub struct Text {
    windows: Vec<Vec<u32>>,
    source: String,
}

impl Text {
    /// Cuts `tokens`, at most `limit` of them, into windows that fit into a context of `n_ctx`. `bos` takes the place
    /// of the first token of each window, for models that expect it.
    #[must_use]
    pub fn new(tokens: &[u32], bos: Option<u32>, n_ctx: usize, limit: Option<usize>) -> Text {
        let tokens = &tokens[..limit.unwrap_or(usize::MAX).min(tokens.len())];
        let window = |window: &[u32]| {
            let mut window = window.to_vec();
            window[0] = bos.unwrap_or(window[0]);
            window
        };
        let windows: Vec<Vec<u32>> = tokens.chunks(WINDOW.min(n_ctx).max(1)).map(window).collect();
        let mut hash = Hash::default();
        windows.iter().for_each(|window| hash.add(bytemuck::cast_slice(window)));
        Text { windows, source: format!("text {:016x}", hash.finish()) }
    }

    /// The same text, of which a profile says besides why it was taken.
    #[must_use]
    pub fn because(self, why: &str) -> Text {
        Text { source: format!("{why}{}", self.source), ..self }
    }

    /// The windows, in order.
    pub fn windows(&self) -> impl Iterator<Item = &[u32]> {
        self.windows.iter().map(Vec::as_slice)
    }

    /// Tokens of all windows.
    #[must_use]
    pub fn n_tokens(&self) -> u64 {
        self.windows.iter().map(|window| window.len() as u64).sum()
    }

    /// Tokens of a context that holds each window.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.windows.iter().map(Vec::len).max().unwrap_or(1)
    }

    /// An empty profile, to be made from this text.
    #[must_use]
    pub fn start(&self, model: &Model) -> Profile {
        Profile::new(model, &self.source, self.n_tokens())
    }

    /// Whether `profile` was begun with this very text and can go on with it.
    #[must_use]
    pub fn continues(&self, profile: &Profile) -> bool {
        profile.source == self.source
            && profile.n_wanted == self.n_tokens()
            && self.windows_done(profile).is_some()
    }

    /// How many windows a profile has.
    fn windows_done(&self, profile: &Profile) -> Option<usize> {
        let mut end = 0;
        let ends = self.windows.iter().map(|window| {
            end += window.len() as u64;
            end
        });
        [0].into_iter().chain(ends).position(|end| end == profile.n_tokens)
    }
}

/// Goes on with `profile`, which `text` [started](Text::start), and shows it to `each` after every window. The same
/// whether or not it was interrupted.
///
/// # Errors
/// The engine's, among them an interrupt: `profile` then has all windows that were whole.
pub fn calibrate(
    engine: &mut Engine,
    text: &Text,
    profile: &mut Profile,
    gatherer: &mut Gatherer<'_>,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(&Profile),
) -> engine::Result<StepStats> {
    let mut stats = StepStats::default();
    let done = text.windows_done(profile).unwrap_or(text.windows.len());
    for window in &text.windows[done..] {
        gatherer.drop_window();
        let mut session = engine.open();
        let seen = engine.observe(&mut session, window, interrupt, &mut |layer, observed| {
            gatherer.see(profile, layer, observed);
        });
        engine.close(session);
        stats += seen?;
        gatherer.commit(profile);
        each(profile);
    }
    Ok(stats)
}

/// Brings the neurons of a finished profile into order.
pub fn finish(model: &Model, profile: &mut Profile) {
    let width = model.hyper.experts.map_or(model.hyper.n_ff, |experts| experts.n_ff);
    profile.layers.par_iter_mut().for_each(|layer| layer.order = order::order(layer, width));
}
