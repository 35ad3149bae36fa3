//! Runs a text through a model and collects its activation profile.

use std::sync::atomic::AtomicBool;

use rayon::prelude::*;

use engine::{self, Engine, StepStats};
use gguf::Hash;
use model::{Ffn, LayerWeights, Model};

use super::{Gatherer, Profile, order};

/// Maximum number of tokens of a window; each window starts with an empty context.
const WINDOW: usize = 512;

/// A calibration text, divided into windows of token ids.
#[derive(Clone, Debug)]
pub struct Text {
    windows: Vec<Vec<u32>>,
    source: String,
}

impl Text {
    /// Splits `tokens`, at most `limit` of them, into windows that fit a context of `n_ctx`. `bos`
    /// replaces the first token of each window, for models that expect it.
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

    /// The same text; profiles record its source with this `prefix`.
    #[must_use]
    pub fn with_source_prefix(self, prefix: &str) -> Text {
        Text { source: format!("{prefix}{}", self.source), ..self }
    }

    /// The windows, in order.
    pub fn windows(&self) -> impl Iterator<Item = &[u32]> {
        self.windows.iter().map(Vec::as_slice)
    }

    /// Number of tokens in all windows.
    #[must_use]
    pub fn n_tokens(&self) -> u64 {
        self.windows.iter().map(|window| window.len() as u64).sum()
    }

    /// Smallest context size that fits every window.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.windows.iter().map(Vec::len).max().unwrap_or(1)
    }

    /// An empty profile for this text.
    #[must_use]
    pub fn start(&self, model: &Model) -> Profile {
        Profile::new(model, &self.source, self.n_tokens())
    }

    /// Whether `profile` was started with this text and can be continued.
    #[must_use]
    pub fn continues(&self, profile: &Profile) -> bool {
        profile.source == self.source
            && profile.n_wanted == self.n_tokens()
            && self.windows_done(profile).is_some()
    }

    /// Number of windows that `profile` covers; `None` if it does not end at the end of a window.
    fn windows_done(&self, profile: &Profile) -> Option<usize> {
        let mut end = 0;
        let ends = self.windows.iter().map(|window| {
            end += window.len() as u64;
            end
        });
        [0].into_iter().chain(ends).position(|end| end == profile.n_tokens)
    }
}

/// Continues `profile`, which `text` [started](Text::start). `on_progress` receives it with the
/// number of tokens of the unfinished window, which is 0 after every window. The result does not
/// depend on interruptions.
///
/// # Errors
/// Errors of the engine, including an interrupt. `profile` then covers all complete
/// windows.
pub fn calibrate(
    engine: &mut Engine,
    text: &Text,
    profile: &mut Profile,
    gatherer: &mut Gatherer<'_>,
    interrupt: &AtomicBool,
    on_progress: &mut dyn FnMut(&Profile, u64),
) -> engine::Result<StepStats> {
    let mut stats = StepStats::default();
    let n_done = text.windows_done(profile).unwrap_or(text.windows.len());
    for window in &text.windows[n_done..] {
        gatherer.drop_window();
        let mut sequence = engine.new_sequence();
        let (mut first, mut n_tokens) = (None, 0);
        stats += engine.observe(&mut sequence, window, interrupt, &mut |layer, observed| {
            gatherer.add(profile, layer, observed);
            if *first.get_or_insert(layer) == layer {
                n_tokens += observed.n_tokens as u64;
                on_progress(profile, n_tokens);
            }
        })?;
        gatherer.commit(profile);
        on_progress(profile, 0);
    }
    Ok(stats)
}

/// Orders the neurons of a finished profile.
pub fn finish(model: &Model, profile: &mut Profile) {
    let width = |layer: &LayerWeights| layer.ffn.as_ref().map_or(0, Ffn::n_per_expert);
    let widths: Vec<usize> = model.layers.iter().map(width).collect();
    let layers = profile.layers.par_iter_mut().zip(&widths);
    layers.for_each(|(layer, &width)| layer.order = order::order(layer, width));
}
