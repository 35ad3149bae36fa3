//! A rule that maps a tensor of the checkpoint to one of the file.

use super::Build;
use crate::Error;
use crate::change::Selection;

/// Maps a tensor of the checkpoint to a tensor of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// The name in the checkpoint.
    pub(crate) from: &'static str,
    /// The name in the file; `*` is the layer. A name that ends in `=` gets no `.weight` or `.bias`.
    pub(crate) to: &'static str,
    pub(crate) transform: Transform,
    pub(crate) reshape: Reshape,
    pub(crate) scale: Scale,
    /// Models of the family may lack the tensor.
    pub(crate) optional: bool,
}

/// A function of the settings.
type Of<T> = fn(&Build<'_>) -> Result<T, Error>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Transform {
    /// Unchanged.
    Same,
    /// The tensor is not converted.
    Drop,
    /// An output matrix that is dropped, unless it differs from the embedding and `config.json`
    /// says that it is not tied to the embedding.
    Tied,
    /// Rows of query or key heads are reordered so that RoPE pairs are adjacent.
    Rope,
    /// Adds 1: the checkpoint stores these norm weights minus one.
    PlusOne,
    /// Falcon's fused queries, keys and values.
    FalconQkv,
    /// Drops the rows of positions up to that of the padding token, which RoBERTa does not use.
    AfterPadding,
    /// The first or second half of each matrix's rows.
    FirstHalf,
    SecondHalf,
    /// Rows with even or odd index.
    Even,
    Odd,
    /// As `FirstHalf`, `SecondHalf`, `Even`, `Odd` and `Same`, for matrices that the checkpoint stores
    /// transposed.
    FirstHalfColumns,
    SecondHalfColumns,
    EvenColumns,
    OddColumns,
    Columns,
    /// Gates, up and down projections of experts that are stored transposed, unless their shape says
    /// otherwise: `transformers` accepts both.
    EitherWay(Part),
    /// Rows or columns in another order, some of them left out.
    Rows(Of<Selection>),
    ReorderColumns(Of<Selection>),
    /// Adds rows of zeros up to a number.
    PadRows(Of<u32>),
    /// MXFP4 blocks with separate scales, for all, even or odd rows.
    Mxfp4,
    Mxfp4Even,
    Mxfp4Odd,
}

/// A matrix of an expert.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Gate,
    Up,
    Down,
}

/// A change of shape that keeps the order of values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reshape {
    Same,
    /// Drops axes of length 1, such as the second of a convolution over channels.
    Squeeze,
    /// Rows of one value each.
    Column,
    /// As many rows as the function says.
    Groups(Of<u32>),
}

/// A change of values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    Same,
    /// -exp(x).
    NegExp,
    Times(Of<f32>),
    /// A factor for each row.
    RowTimes(Of<Vec<f32>>),
}

/// The layers that a group of rules applies to; a family's keys list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum On {
    Attention,
    /// Linear attention, state spaces, convolutions.
    Recurrent,
    Dense,
    Experts,
    /// Queries from one matrix, or from two of low rank.
    WholeQuery,
    LowRankQuery,
    /// Attention in a window or not, with keys (and values) of its own or those of an earlier layer.
    Local,
    LocalKey,
    Global,
    GlobalKey,
    GlobalValue,
    SharedKey,
    /// Feed-forward blocks of the usual and of twice the width.
    Narrow,
    Wide,
    /// Embeddings per layer.
    PerLayerInput,
}

pub(super) const fn same_name(from: &'static str, to: &'static str) -> Rule {
    rule(from, to, Transform::Same)
}

pub(super) const fn rule(from: &'static str, to: &'static str, transform: Transform) -> Rule {
    Rule { from, to, transform, reshape: Reshape::Same, scale: Scale::Same, optional: false }
}

impl Rule {
    pub(super) const fn optional(self) -> Rule {
        Rule { optional: true, ..self }
    }

    pub(super) const fn reshape(self, reshape: Reshape) -> Rule {
        Rule { reshape, ..self }
    }

    pub(super) const fn scale(self, scale: Scale) -> Rule {
        Rule { scale, ..self }
    }

    pub(crate) const fn is_dropped(&self) -> bool {
        matches!(self.transform, Transform::Drop)
    }
}
