//! Properties of ops for backends: how an op accesses its operands, how much it computes, and
//! whether it is a hand-off.

use super::{Merge, Op, Post};
use crate::{Layout, Operand, TensorDesc};

/// Whether an op reads or writes an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read; may not overlap anything the op writes.
    Read,
    /// Written without being read.
    Write,
    /// Read and written in place.
    Update,
}

/// The contents of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A weight matrix in any weight format. The op multiplies its rows with each token's input.
    Weight,
    /// A table in any weight format, such as the embedding. Each token reads one row.
    Table,
    /// Activations, F32 parameters of the model, and counts.
    Values,
    /// The step's batch ([`crate::Batch`]).
    Batch,
    /// A list of rows ([`crate::RowSet`]).
    List,
    /// Keys or values of the paged cache.
    Cache,
    /// Recurrent state, with one row per sequence.
    State,
}

impl Role {
    /// Whether the operand's size grows with the model, the context or the number of sequences,
    /// and not with the tokens of a step. It may have more than 2^32 values, so kernels address
    /// such an operand by row.
    #[must_use]
    pub fn is_by_row(self) -> bool {
        match self {
            Role::Weight | Role::Table | Role::Cache | Role::State => true,
            Role::Values | Role::Batch | Role::List => false,
        }
    }
}

/// How an op uses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandUse {
    /// Whether it is read or written.
    pub access: Access,
    /// The operand's contents.
    pub role: Role,
}

impl OperandUse {
    /// Whether the op writes the operand.
    #[must_use]
    pub fn writes(self) -> bool {
        self.access != Access::Read
    }
}

/// Upper bound on the arithmetic of an op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Maximum number of tokens.
    pub n_tokens: usize,
    /// Multiplications per token; 0 for an op whose arithmetic is small compared with reading its
    /// operands.
    pub per_token: u64,
}

impl Work {
    pub(super) fn new(n_tokens: usize, per_token: u64) -> Work {
        Work { n_tokens, per_token }
    }
}

pub(super) fn n_values<T: Operand>(operand: &T) -> u64 {
    let TensorDesc { n_rows, n_cols, .. } = operand.desc();
    (n_rows as u64).saturating_mul(n_cols as u64)
}

/// The default [`Work`] of ops without matrix arithmetic. An op's inherent `work` method takes
/// precedence over this one.
pub(super) trait NoWork {
    fn work(&self) -> Work {
        Work::default()
    }
}

impl<T> NoWork for T {}

/// An op that is one end of a hand-off.
#[derive(Clone, Copy, Debug)]
pub enum HandOff<'a, T> {
    /// The device sends.
    Post(&'a Post<T>),
    /// The device receives.
    Merge(&'a Merge<T>),
}

impl<T: Operand> Op<T> {
    /// The op's name with the formats of its weights, caches and states: `MatMul of Q4_0`. Ops of
    /// one kind differ only in sizes and settings.
    #[must_use]
    pub fn kind(&self) -> String {
        let mut formats = Vec::new();
        self.visit(&mut |_, how, operand| {
            let TensorDesc { format, layout, .. } = operand.desc();
            if matches!(how.role, Role::Weight | Role::Table | Role::Cache) {
                let turned = if layout == Layout::Rows { "" } else { " transposed" };
                formats.push(format!("{format}{turned}"));
            }
        });
        match &formats[..] {
            [] => self.name().to_owned(),
            formats => format!("{} of {}", self.name(), formats.join(", ")),
        }
    }
}

impl<T> Op<T> {
    /// This op as one end of a hand-off, which the program handles itself; `None` for ops that are
    /// computed.
    #[must_use]
    pub fn hand_off(&self) -> Option<HandOff<'_, T>> {
        if let Op::Post(op) = self {
            Some(HandOff::Post(op))
        } else if let Op::Merge(op) = self {
            Some(HandOff::Merge(op))
        } else {
            None
        }
    }
}
