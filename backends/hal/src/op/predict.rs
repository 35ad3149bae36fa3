//! Predicts the active neurons of each token. One op computes the scores, compares them with the
//! threshold and splits the active neurons into lists.

use super::facts::{Work, n_values};
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::format::Format;
use crate::{Operand, Result};

/// Activation function between the two matrices of a predictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenActivation {
    /// `max(v, 0)`, as in predictors trained from scratch.
    Relu,
    /// Identity: the two matrices are low-rank factors of one matrix.
    Linear,
}

op! {
    /// `s = fc2 . hidden(fc1 . x) + bias`, or `fc2 . x + bias` without `fc1`; neuron `n` is active
    /// for token `t` if `s[t, n] >= threshold`. The active neurons are split by `slots` into the
    /// `resident` list (slots of this device's pack) and the `absent` list (rows of the pack at
    /// the other end of the hand-off), both ascending by neuron, with a membership bit per token.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n_embd]` | F32 |
    /// | `fc1` | `[rank, n_embd]` | any weight |
    /// | `fc2` | `[n_ff, rank]`, without `fc1` `[n_ff, n_embd]` | any weight |
    /// | `bias` | `[1, n_ff]` | F32 |
    /// | `slots` | `[1, n_ff]`, [`crate::Slot`] words | U32 |
    ///
    /// NaN scores count as active, so that only a valid score can drop a neuron. One device
    /// decides and sends the list; the other devices do not compute scores.
    ///
    /// Sources: PowerInfer's predictor (after Deja Vu, Liu et al. 2023) uses
    /// [`HiddenActivation::Relu`] and no bias. SVDP factors the gate matrix and uses
    /// [`HiddenActivation::Linear`]. SparseInfer keeps one bit per weight of the gate matrix,
    /// without `fc1`.
    Predict {
        /// Predictor input.
        read x,
        /// First matrix.
        maybe_weight fc1,
        /// Second matrix.
        weight fc2,
        /// Bias of each neuron's score.
        maybe bias,
        /// Gives the location of each neuron.
        read slots,
        /// Active neurons on this device.
        set_out resident,
        /// Active neurons of the pack at the other end of the hand-off; `None` if all neurons are
        /// on this device.
        maybe_set_out absent,
        ;
        /// Lowest score of an active neuron.
        threshold: f32,
        /// Activation function between `fc1` and `fc2`; unused without `fc1`.
        hidden: HiddenActivation,
    }
}

impl<T: Operand> Predict<T> {
    pub(super) fn work(&self) -> Work {
        let fc1 = self.fc1.as_ref().map_or(0, n_values);
        Work::new(self.x.desc().n_rows, fc1 + n_values(&self.fc2))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Predict");
        let (x, fc2) = (self.x.desc(), self.fc2.desc());
        let mut n_in = fc2.n_cols;
        if let Some(fc1) = &self.fc1 {
            c.weight("fc1", fc1)?;
            c.shape("fc2", &self.fc2, fc2.n_rows, fc1.desc().n_rows)?;
            n_in = fc1.desc().n_cols;
        }
        c.weight("fc2", &self.fc2)?;
        c.f32("x", &self.x, x.n_rows, n_in)?;
        c.maybe_f32("bias", &self.bias, 1, fc2.n_rows)?;
        c.shape("slots", &self.slots, 1, fc2.n_rows)?;
        c.format("slots", &self.slots, &[Format::U32])?;
        c.set("resident", &self.resident, x.n_rows)?;
        match &self.absent {
            Some(absent) => c.set("absent", absent, x.n_rows),
            None => Ok(()),
        }
    }
}
