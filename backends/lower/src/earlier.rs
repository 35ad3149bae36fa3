//! Work that a launch does for the ops after it, and the results that it leaves in the workspace.

use hal::{Op, Operand, Tensor};

/// Words that a launch also sets: the first `n_zero` of `n` to 0, the others to `word`.
#[derive(Clone, Copy, Debug)]
pub struct WordFill<S> {
    /// Where the words are.
    pub span: S,
    /// Number of words.
    pub n: usize,
    /// Number of words that are set to 0.
    pub n_zero: usize,
    /// The value of the other words.
    pub word: u32,
}

/// Work fused into a norm.
#[derive(Clone, Copy, Debug)]
pub struct FusedWork<'a, S> {
    /// Added to x before the norm.
    pub add: Option<&'a Tensor>,
    /// Destination of the result in Q8 blocks.
    pub quantized: Option<S>,
    /// Words to initialise.
    pub clear: Option<WordFill<S>>,
}

impl<S> Default for FusedWork<'_, S> {
    fn default() -> Self {
        FusedWork { add: None, quantized: None, clear: None }
    }
}

/// Results that earlier launches left in the workspace. They last until another op uses the
/// workspace or overwrites the quantised values, or a merge follows.
#[derive(Clone, Debug)]
pub struct EarlierResults<S> {
    /// Values that are also stored in Q8 blocks, and the location of the blocks.
    quantized: Option<(Tensor, S)>,
    /// Words that are already initialised as the next op expects.
    initialised: Option<S>,
}

impl<S> Default for EarlierResults<S> {
    fn default() -> EarlierResults<S> {
        EarlierResults { quantized: None, initialised: None }
    }
}

/// Whether two operands are the same rows of one buffer.
pub(crate) fn is_same(a: &Tensor, b: &Tensor) -> bool {
    a.overlaps(b)
        && (a.first_row(), a.first_col()) == (b.first_row(), b.first_col())
        && a.desc() == b.desc()
}

impl<S: Clone + PartialEq> EarlierResults<S> {
    /// A launch left the values of `x` in Q8 blocks, or words initialised, or both.
    #[must_use]
    pub fn new(x: &Tensor, quantized: Option<S>, initialised: Option<S>) -> EarlierResults<S> {
        EarlierResults { quantized: quantized.map(|at| (x.clone(), at)), initialised }
    }

    /// Location of the values of `x` in Q8 blocks, if an earlier launch quantised them.
    #[must_use]
    pub fn quantized(&self, x: &Tensor) -> Option<S> {
        let found = self.quantized.as_ref().filter(|(source, _)| is_same(source, x));
        found.map(|(_, at)| at.clone())
    }

    /// Records that a launch stored the values of `x` in Q8 blocks.
    pub fn set_quantized(&mut self, x: &Tensor, at: S) {
        self.quantized = Some((x.clone(), at));
    }

    /// Whether an earlier launch initialised these words. Their contents count once.
    pub fn take_initialised(&mut self, words: &S) -> bool {
        self.initialised.take().as_ref() == Some(words)
    }

    /// Drops the results that `op` may have overwritten; all of them unless it `keeps` the
    /// workspace.
    pub(crate) fn drop_stale(&mut self, op: &Op, keeps: bool) {
        if !keeps {
            *self = EarlierResults::default();
        }
        let Some((x, _)) = &self.quantized else { return };
        let mut stale = false;
        op.visit(&mut |_, how, operand: &Tensor| {
            stale |= how.writes() && operand.overlaps(x);
        });
        if stale {
            self.quantized = None;
        }
    }
}
