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
    /// The place of the tensor in one that has several.
    pub(crate) place: Option<usize>,
    /// The layers of the file before the first of these.
    pub(crate) after: Option<Of<u32>>,
}

/// A function of the settings.
pub(crate) type Of<T> = fn(&Build<'_>) -> Result<T, Error>;

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
    /// As `Rope`, if RoPE is applied to the first values of a head only.
    RopeFirst(Of<u32>),
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
    /// The transpose of the first rows of each matrix.
    FirstRowsTransposed(Of<u32>),
    /// Adds rows of zeros up to a number.
    PadRows(Of<u32>),
    /// The first rows of a matrix, or values of a vector.
    FirstRows(Of<u32>),
    /// The rows of a part of a matrix; the last `*` of the name is the number of the part.
    Joined,
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
    /// Rows of one value each; axes of length 1 are dropped.
    Column,
    /// A filter per channel: matrices of one row each.
    Filters,
    /// As many rows as the function says.
    Groups(Of<u32>),
    /// A vector of all values.
    Flat,
    /// As many matrices as the function says, from one matrix with the rows of all.
    Stack(Of<u32>),
}

/// A change of values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scale {
    Same,
    /// -exp(x).
    NegExp,
    /// exp(x).
    Exp,
    /// Adds a number.
    Plus(f32),
    /// Divides each row by its length (Euclidean norm), if the function says so.
    UnitRows(Of<bool>),
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
    /// Experts that a table lists for each token.
    ListedExperts,
    /// Queries from one matrix, or from two of low rank.
    WholeQuery,
    LowRankQuery,
    /// Sparse attention whose positions the layer itself selects.
    Indexer,
    /// Attention to compressed keys of long blocks, without an indexer.
    LongBlocks,
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
    /// Embeddings per layer, of tokens or of n-grams.
    PerLayerInput,
    Ngrams,
    /// The first layer, and the others.
    First,
    Later,
}

pub(super) const fn same_name(from: &'static str, to: &'static str) -> Rule {
    rule(from, to, Transform::Same)
}

pub(super) const fn rule(from: &'static str, to: &'static str, transform: Transform) -> Rule {
    let (reshape, scale) = (Reshape::Same, Scale::Same);
    Rule { from, to, transform, reshape, scale, optional: false, place: None, after: None }
}

impl Rule {
    pub(super) const fn optional(self) -> Rule {
        Rule { optional: true, ..self }
    }

    pub(super) const fn place(self, place: usize) -> Rule {
        Rule { place: Some(place), ..self }
    }

    pub(super) const fn after(self, n_layer: Of<u32>) -> Rule {
        Rule { after: Some(n_layer), ..self }
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
