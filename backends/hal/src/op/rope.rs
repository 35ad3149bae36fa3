//! Rotary position embedding (RoPE).

use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

/// Which two values of a head are rotated together, counted from the first rotated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `2j` and `2j + 1` (GGUF's llama).
    Adjacent,
    /// `j` and `j + n_rot / 2` (NeoX).
    Halves,
}

op! {
    /// Rotates `n_rot` values of every head, from value `first` on, by `pos * freqs[j]`, in place:
    /// `(a, b) -> scale * (a cos - b sin, a sin + b cos)`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n_head * d_head]` | F32 |
    /// | `freqs` | `[1, n_rot / 2]`, radians per position, after frequency scaling | F32 |
    ///
    /// Source: RoFormer (Su et al.). The scaling methods (linear, YaRN, Llama 3, factors in the
    /// file) differ only in `freqs` and `scale`.
    Rope {
        /// Frequencies.
        read freqs,
        /// Positions.
        batch batch,
        /// Queries or keys.
        update x,
        ;
        /// Values per head.
        d_head: usize,
        /// Index of the first rotated value of a head. It is 0 except in latent attention (MLA),
        /// which rotates the last values.
        first: usize,
        /// Number of rotated values per head.
        n_rot: usize,
        /// Which values are rotated together.
        pairing: Pairing,
        /// Factor on the magnitude (for YaRN; otherwise 1).
        scale: f32,
    }
}

impl<T: Operand> Rope<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Rope");
        let x = self.x.desc();
        let inside = self.first <= self.d_head && self.n_rot <= self.d_head - self.first;
        let even = self.n_rot.is_multiple_of(2) && inside;
        c.require(even, "n_rot", "even and within a head", self.n_rot)?;
        let heads = self.d_head > 0 && x.n_cols.is_multiple_of(self.d_head);
        c.require(heads, "d_head", format!("a divisor of {}", x.n_cols), self.d_head)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.f32("freqs", &self.freqs, 1, self.n_rot / 2)?;
        c.batch(&self.batch, x.n_rows)
    }
}
