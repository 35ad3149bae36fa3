//! The two ends of a hand-off inside a program.

use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

op! {
    /// Puts `x` and, if given, the list of wanted rows into a mailbox and goes on without waiting.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n_embd]` | F32 |
    /// | `weights` | `[n_tokens, n_group]` | F32 |
    ///
    /// The host gets it from [`crate::Run::next_post`]. Only the step's real tokens are sent.
    Post {
        /// What the other side works on.
        read x,
        /// The step's facts: how many tokens are real.
        batch batch,
        /// Rows the other side is to compute; `None`: it computes all of its rows.
        maybe_set rows,
        /// What its groups of rows weigh: decided here once, as the list is.
        maybe weights,
        ;
        /// Which of the program's mailboxes.
        mailbox: usize,
    }
}

impl<T: Operand> Post<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Post");
        let x = self.x.desc();
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.batch(&self.batch, x.n_rows)?;
        if let Some(weights) = &self.weights {
            c.f32("weights", weights, x.n_rows, weights.desc().n_cols)?;
        }
        match &self.rows {
            Some(rows) => c.set("rows", rows, x.n_rows),
            None => Ok(()),
        }
    }
}

op! {
    /// Waits for the answer to the [`Post`] of the same mailbox: `y = answer`, or `y += answer` if `accumulate`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `y` | `[n_tokens, n_out]` | F32 |
    ///
    /// The wait ends in [`crate::Error::Cancelled`] when the host gives the step up.
    Merge {
        /// The step's facts: how many tokens are real.
        batch batch,
        /// Where the answer goes.
        update y,
        ;
        /// Which of the program's mailboxes.
        mailbox: usize,
        /// Add to `y` instead of overwriting it.
        accumulate: bool,
    }
}

impl<T: Operand> Merge<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Merge");
        let y = self.y.desc();
        c.f32("y", &self.y, y.n_rows, y.n_cols)?;
        c.batch(&self.batch, y.n_rows)
    }
}
