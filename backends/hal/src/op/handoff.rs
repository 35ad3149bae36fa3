//! The device's two ops of a hand-off: post and merge.

use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

op! {
    /// Writes `x` and, if given, the list of rows to compute to a mailbox, and continues without
    /// waiting.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n_embd]` | F32 |
    /// | `weights` | `[n_tokens, n_expert]` | F32 |
    ///
    /// The host receives the data from [`crate::Run::next_post`]. Padding tokens are not sent.
    Post {
        /// Input of the rows that the host computes.
        read x,
        /// Gives the number of tokens without padding.
        batch batch,
        /// Rows that the host computes; `None` for all rows that it holds.
        maybe_set rows,
        /// Router weights of the experts. Only this device computes them and the row list.
        maybe weights,
        ;
        /// Index of the mailbox in the program.
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
    /// Waits for the answer to the [`Post`] of the same mailbox: `y = answer`, or `y += answer` if
    /// `accumulate`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `y` | `[n_tokens, n_out]` | F32 |
    ///
    /// If the host cancels the step, the wait ends with [`crate::Error::Cancelled`].
    Merge {
        /// Gives the number of tokens without padding.
        batch batch,
        /// Receives the answer.
        update y,
        ;
        /// Index of the mailbox in the program.
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
