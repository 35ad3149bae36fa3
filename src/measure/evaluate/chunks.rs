//! Splits a text into chunks of the context size.

use super::{Error, Result};

/// Chunks of a text. Each starts with an empty context; the tokens of its second half are
/// predicted from all tokens before them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    tokens: Vec<u32>,
    n_ctx: usize,
    bos: Option<u32>,
}

impl Chunks {
    /// Splits `tokens` into at most `limit` chunks of `n_ctx` tokens, and drops an incomplete chunk
    /// at the end. `bos` replaces the first token of each chunk, for models that expect it.
    ///
    /// # Errors
    /// [`Error::TooShort`] for fewer than two chunks, [`Error::Context`] for an `n_ctx` below 3.
    pub fn new(
        mut tokens: Vec<u32>,
        n_ctx: usize,
        bos: Option<u32>,
        limit: Option<usize>,
    ) -> Result<Chunks> {
        if n_ctx < 3 {
            return Err(Error::Context { n_ctx });
        }
        let (n_tokens, needed) = (tokens.len(), n_ctx.saturating_mul(2));
        if n_tokens < needed {
            return Err(Error::TooShort { n_tokens, n_ctx, needed });
        }
        tokens.truncate(n_tokens / n_ctx * n_ctx);
        let mut chunks = Chunks { tokens, n_ctx, bos };
        chunks.limit(limit);
        Ok(chunks)
    }

    /// The chunks in a file of probabilities. The caller has checked the sizes.
    pub(super) fn from_file(tokens: Vec<u32>, n_ctx: usize, bos: Option<u32>) -> Chunks {
        Chunks { tokens, n_ctx, bos }
    }

    pub(super) fn limit(&mut self, limit: Option<usize>) {
        let most = limit.unwrap_or(usize::MAX).saturating_mul(self.n_ctx);
        self.tokens.truncate(most);
    }

    /// Tokens of a chunk.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Number of chunks.
    #[must_use]
    pub fn n_chunks(&self) -> usize {
        self.tokens.len() / self.n_ctx
    }

    /// Tokens of a chunk that are predicted.
    #[must_use]
    pub fn n_scored(&self) -> usize {
        self.n_ctx - 1 - self.first_scored()
    }

    /// Position in a chunk of the first token whose successor is predicted.
    pub(super) fn first_scored(&self) -> usize {
        self.n_ctx / 2
    }

    /// Tokens of all chunks, as in the text.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens of each chunk, the first one replaced by `bos`.
    pub(super) fn iter(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        self.tokens.chunks_exact(self.n_ctx).map(|chunk| {
            let mut chunk = chunk.to_vec();
            chunk[0] = self.bos.unwrap_or(chunk[0]);
            chunk
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_chunks_are_needed_and_an_incomplete_one_is_dropped() {
        let tokens: Vec<u32> = (0..19).collect();
        let chunks = Chunks::new(tokens.clone(), 8, Some(99), None).unwrap();
        assert_eq!((chunks.n_chunks(), chunks.first_scored(), chunks.n_scored()), (2, 4, 3));
        let read: Vec<Vec<u32>> = chunks.iter().collect();
        assert_eq!(read[1], [99, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(chunks.tokens()[8], 8);
        let limited = Chunks::new(tokens.clone(), 8, None, Some(1)).unwrap();
        assert_eq!((limited.n_chunks(), limited.iter().next().unwrap()[0]), (1, 0));
        let short = Chunks::new(tokens.clone(), 10, None, None).unwrap_err();
        assert!(matches!(short, Error::TooShort { n_tokens: 19, needed: 20, .. }));
        assert!(matches!(Chunks::new(tokens, 2, None, None), Err(Error::Context { n_ctx: 2 })));
    }
}
