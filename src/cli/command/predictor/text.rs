//! The training text, cut into windows. Some windows are held out to measure the result.

use crate::cli::failure::{Exit, Failure};
use crate::evaluate::Chunks;
use crate::gguf::Hash;
use crate::predictor::Error;
use crate::tokenizer::Tokenizer;

/// Maximum tokens of a window.
pub(super) const WINDOW: usize = 512;
/// Distance between held-out windows, in windows.
const HELD_OUT_EVERY: usize = 8;
/// Maximum number of tokens that are held out.
const MAX_HELD_OUT: usize = 4096;
/// Minimum number of tokens of a text.
const MIN_TOKENS: usize = 1024;

/// The tokens of a text, cut into independent windows.
#[derive(Debug)]
pub(super) struct Windows {
    tokens: Vec<u32>,
    n_ctx: usize,
    bos: Option<u32>,
}

impl Windows {
    /// The first `most` tokens of `text`, for a model trained with a context of `n_ctx_train`.
    pub(super) fn new(
        text: &str,
        tokenizer: &Tokenizer,
        n_ctx_train: usize,
        most: usize,
    ) -> Result<Windows, Failure> {
        let mut tokens = tokenizer
            .encode(text, false, false)
            .map_err(|e| Failure::new(Exit::Failed, "cannot tokenize the text").caused_by(&e))?;
        let found = tokens.len();
        if found < MIN_TOKENS {
            return Err(Error::TooShort { found, needed: MIN_TOKENS }.into());
        }
        tokens.truncate(most.max(MIN_TOKENS));
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        // Shorten the windows of a short text, so that both training and measuring get some.
        let n_ctx = WINDOW.min(n_ctx_train.max(2)).min(tokens.len() / HELD_OUT_EVERY);
        Ok(Windows { tokens, n_ctx, bos })
    }

    /// Maximum number of tokens of a window, with BOS.
    pub(super) fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Tokens of all windows, without BOS.
    pub(super) fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// A hash that identifies the text.
    pub(super) fn hash(&self) -> String {
        let mut hash = Hash::default();
        self.tokens.iter().for_each(|token| hash.word(u64::from(*token)));
        format!("{:016x}", hash.finish())
    }

    fn stride(&self) -> usize {
        self.n_ctx - usize::from(self.bos.is_some())
    }

    fn len(&self) -> usize {
        self.tokens.len().div_ceil(self.stride())
    }

    /// Number of BOS tokens of all windows.
    pub(super) fn n_bos(&self) -> usize {
        if self.bos.is_some() { self.len() } else { 0 }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        self.tokens
            .chunks(self.stride())
            .map(|piece| self.bos.iter().chain(piece).copied().collect())
    }

    /// The held-out windows, for measuring.
    pub(super) fn held_out_windows(&self) -> Result<Chunks, Failure> {
        let held = self.iter().enumerate().filter(|(i, _)| self.is_held(*i));
        let tokens: Vec<u32> = held.flat_map(|(_, window)| window).collect();
        Ok(Chunks::new(tokens, self.n_ctx, self.bos, None)?)
    }

    /// Whether window `i` is held out: every eighth complete window, fewer if the tokens would
    /// exceed [`MAX_HELD_OUT`], but at least two windows, because a comparison needs two.
    pub(super) fn is_held(&self, i: usize) -> bool {
        let n_whole = self.tokens.len() / self.stride();
        let most = (MAX_HELD_OUT / self.n_ctx).max(2);
        let every = (n_whole / most).max(HELD_OUT_EVERY).min((n_whole / 2).max(1));
        i < n_whole && i % every == every - 1 && i / every < most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_windows_are_held_out() {
        for (n, n_ctx, bos) in
            [(1024, 128, None), (6692, 512, Some(1)), (65_536, 512, None), (70_001, 333, Some(1))]
        {
            let tokens: Vec<u32> = (0..n).map(|i| 2 + i as u32).collect();
            let windows = Windows { tokens, n_ctx, bos };
            let held = (0..windows.len()).filter(|i| windows.is_held(*i)).count();
            assert!(held >= 2 && held * n_ctx <= MAX_HELD_OUT.max(2 * n_ctx), "{n}: {held}");
            assert!(2 * held <= windows.len(), "{n}: most is for training");
            assert!(windows.held_out_windows().is_ok(), "{n}");
        }
    }
}
