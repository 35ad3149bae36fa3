//! The ops that the engine can run on a device, each with its formula, shapes, numerics and checks.
//!
//! An op is generic over its operands: `Op<Tensor>` is recorded into a program; `Op<TensorDesc>`
//! is passed to [`crate::Backend::plan`] before anything is allocated.
//!
//! Numerics of all ops: sums are F32. A quantised weight is multiplied with activations rounded to
//! Q8 blocks of 32 ([`crate::format::Q8Row`]), an F32, F16 or BF16 weight with F32 activations. In
//! steps of up to 16 tokens, the values of a token do not depend on the other tokens.

mod attention;
mod compress;
mod elementwise;
mod facts;
mod handoff;
mod hyper;
mod indexer;
mod matmul;
mod pool_keys;
mod predict;
mod recurrent;
mod rope;
mod route;
mod sparse_ffn;

pub use attention::{Attention, KV_FORMATS, StoreKv, Window};
pub use compress::{BlockList, CACHE_ROW, CompressKeys, ListBlocks, block_row, block_rows};
pub use elementwise::{
    Add, AddPositions, CopyHeads, GateActivation, Gather, GetRows, HeadColumns, Mul, Norm,
    NormKind, ScaleByPosition, SoftCap,
};
pub use facts::{Access, HandOff, OperandUse, Role, Work};
pub use handoff::{Merge, Post};
pub use hyper::{HyperRead, HyperWeights, HyperWrite, MAX_STREAMS};
pub use indexer::{LightningIndexer, NO_POSITION};
pub use matmul::{HeadMatMul, MatMul};
pub use pool_keys::PoolKeys;
pub use predict::{HiddenActivation, Predict};
pub use recurrent::{
    DecayCurve, GatedDelta, HeadMapping, MIN_KEY_NORM, ShortConv, SsmScan, WKV7_DECAY, Wkv6, Wkv7,
};
pub use rope::{Pairing, Rope};
pub use route::{MIN_WEIGHT_SUM, Route, Scoring};
pub use sparse_ffn::{
    Activation, Down, ExpertRanges, FfnKind, MAX_COUNTED_TOKENS, NEVER_DENSE, Skip, SparseFfn,
    UnionCounts,
};

use crate::{Error, Operand, Result, Tensor, TensorDesc};
use facts::NoWork;

/// A callback for each operand of an op, with the operand's name and [`OperandUse`].
pub type Visit<'a, T> = dyn FnMut(&'static str, OperandUse, &T) + 'a;

macro_rules! op_type {
    (read $t:ty) => { $t };
    (write $t:ty) => { $t };
    (update $t:ty) => { $t };
    (weight $t:ty) => { $t };
    (table $t:ty) => { $t };
    (state $t:ty) => { $t };
    (maybe $t:ty) => { Option<$t> };
    (maybe_weight $t:ty) => { Option<$t> };
    (maybe_update $t:ty) => { Option<$t> };
    (batch $t:ty) => { $crate::Batch<$t> };
    (rows $t:ty) => { $crate::Rows<$t> };
    (set_out $t:ty) => { $crate::RowSet<$t> };
    (maybe_set $t:ty) => { Option<$crate::RowSet<$t>> };
    (maybe_set_out $t:ty) => { Option<$crate::RowSet<$t>> };
    (cache $t:ty) => { $crate::KvRows<$t> };
    (cache_out $t:ty) => { $crate::KvRows<$t> };
}

macro_rules! op_map {
    (read $v:expr, $f:expr) => {
        $f(&$v)
    };
    (write $v:expr, $f:expr) => {
        $f(&$v)
    };
    (update $v:expr, $f:expr) => {
        $f(&$v)
    };
    (weight $v:expr, $f:expr) => {
        $f(&$v)
    };
    (table $v:expr, $f:expr) => {
        $f(&$v)
    };
    (state $v:expr, $f:expr) => {
        $f(&$v)
    };
    (maybe $v:expr, $f:expr) => {
        $v.as_ref().map(&mut *$f)
    };
    (maybe_weight $v:expr, $f:expr) => {
        $v.as_ref().map(&mut *$f)
    };
    (maybe_update $v:expr, $f:expr) => {
        $v.as_ref().map(&mut *$f)
    };
    (maybe_set $v:expr, $f:expr) => {
        $v.as_ref().map(|set| set.map($f))
    };
    (maybe_set_out $v:expr, $f:expr) => {
        $v.as_ref().map(|set| set.map($f))
    };
    ($kind:ident $v:expr, $f:expr) => {
        $v.map($f)
    };
}

macro_rules! op_visit {
    (@ $access:ident $role:ident) => {
        $crate::op::OperandUse {
            access: $crate::op::Access::$access,
            role: $crate::op::Role::$role,
        }
    };
    (read $n:expr, $v:expr, $f:expr) => {
        $f($n, op_visit!(@ Read Values), &$v)
    };
    (write $n:expr, $v:expr, $f:expr) => {
        $f($n, op_visit!(@ Write Values), &$v)
    };
    (update $n:expr, $v:expr, $f:expr) => {
        $f($n, op_visit!(@ Update Values), &$v)
    };
    (weight $n:expr, $v:expr, $f:expr) => {
        $f($n, op_visit!(@ Read Weight), &$v)
    };
    (table $n:expr, $v:expr, $f:expr) => {
        $f($n, op_visit!(@ Read Table), &$v)
    };
    (state $n:expr, $v:expr, $f:expr) => {
        $f($n, op_visit!(@ Update State), &$v)
    };
    (maybe $n:expr, $v:expr, $f:expr) => {
        if let Some(v) = &$v {
            $f($n, op_visit!(@ Read Values), v)
        }
    };
    (maybe_weight $n:expr, $v:expr, $f:expr) => {
        if let Some(v) = &$v {
            $f($n, op_visit!(@ Read Weight), v)
        }
    };
    (maybe_update $n:expr, $v:expr, $f:expr) => {
        if let Some(v) = &$v {
            $f($n, op_visit!(@ Update Values), v)
        }
    };
    (batch $n:expr, $v:expr, $f:expr) => {
        $f($n, op_visit!(@ Read Batch), &$v.words)
    };
    (rows $n:expr, $v:expr, $f:expr) => {
        if let $crate::Rows::Active(set) = &$v {
            $crate::op::visit_set($n, op_visit!(@ Read List), set, $f)
        }
    };
    (set_out $n:expr, $v:expr, $f:expr) => {
        $crate::op::visit_set($n, op_visit!(@ Write List), &$v, $f)
    };
    (maybe_set $n:expr, $v:expr, $f:expr) => {
        if let Some(set) = &$v {
            $crate::op::visit_set($n, op_visit!(@ Read List), set, $f)
        }
    };
    (maybe_set_out $n:expr, $v:expr, $f:expr) => {
        if let Some(set) = &$v {
            $crate::op::visit_set($n, op_visit!(@ Write List), set, $f)
        }
    };
    (cache $n:expr, $v:expr, $f:expr) => {
        $v.tensors().for_each(|half| $f($n, op_visit!(@ Read Cache), half))
    };
    (cache_out $n:expr, $v:expr, $f:expr) => {
        $v.tensors().for_each(|half| $f($n, op_visit!(@ Update Cache), half))
    };
}

pub(crate) fn visit_set<T>(
    name: &'static str,
    how: OperandUse,
    set: &crate::RowSet<T>,
    f: &mut Visit<'_, T>,
) {
    f(name, how, &set.ids);
    f(name, how, &set.count);
    f(name, how, &set.members);
}

/// Declares an op: first its operands with their access, then `;`, then its parameters.
macro_rules! op {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $kind:ident $field:ident,)*
        ; $($(#[$param_doc:meta])* $param:ident: $param_type:ty,)*
    }) => {
        $(#[$doc])*
        pub struct $name<T> {
            $($(#[$field_doc])* pub $field: op_type!($kind T),)*
            $($(#[$param_doc])* pub $param: $param_type,)*
        }

        // Implemented by hand, because `derive` does not accept type macros.
        impl<T: Clone> Clone for $name<T> {
            fn clone(&self) -> Self {
                self.map(&mut T::clone)
            }
        }

        impl<T: std::fmt::Debug> std::fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &self.$field))*
                    $(.field(stringify!($param), &self.$param))*
                    .finish()
            }
        }

        impl<T> $name<T> {
            pub(crate) fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> $name<U> {
                $name {
                    $($field: op_map!($kind self.$field, f),)*
                    $($param: self.$param.clone(),)*
                }
            }

            pub(crate) fn visit(&self, f: &mut Visit<'_, T>) {
                $(op_visit!($kind stringify!($field), self.$field, f);)*
            }
        }
    };
}
pub(crate) use {op, op_map, op_type, op_visit};

macro_rules! ops {
    ($($name:ident),*) => {
        /// An op of any type, with its operands and parameters.
        #[derive(Clone, Debug)]
        pub enum Op<T = Tensor> {
            $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name<T>),)*
        }

        impl<T: Operand> Op<T> {
            /// The name of the op's type, such as `MatMul`.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(_) => stringify!($name),)* }
            }

            /// Visits every operand.
            pub fn visit(&self, f: &mut Visit<'_, T>) {
                match self { $(Op::$name(op) => op.visit(f),)* }
            }

            /// The same op with operands of another type.
            pub fn map<U>(&self, f: &mut dyn FnMut(&T) -> U) -> Op<U> {
                match self { $(Op::$name(op) => Op::$name(op.map(f)),)* }
            }

            /// An upper bound on the op's arithmetic.
            #[must_use]
            pub fn work(&self) -> Work {
                match self { $(Op::$name(op) => op.work(),)* }
            }

            /// Checks shapes, formats and parameters.
            ///
            /// # Errors
            /// [`Error::Shape`] with the operand, its expected and its actual shape.
            pub fn check(&self) -> Result<()> {
                match self { $(Op::$name(op) => op.check(),)* }
            }
        }

        $(impl<T> From<$name<T>> for Op<T> {
            fn from(op: $name<T>) -> Op<T> { Op::$name(op) }
        })*

        /// The names of all ops, in the order of [`Op`].
        pub const OP_NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}
ops!(
    GetRows,
    AddPositions,
    ScaleByPosition,
    Gather,
    Norm,
    MatMul,
    HeadMatMul,
    Rope,
    CopyHeads,
    StoreKv,
    PoolKeys,
    CompressKeys,
    LightningIndexer,
    ListBlocks,
    Attention,
    Add,
    Mul,
    SoftCap,
    HyperWeights,
    HyperRead,
    HyperWrite,
    SparseFfn,
    Predict,
    Route,
    ShortConv,
    GatedDelta,
    SsmScan,
    Wkv6,
    Wkv7,
    Post,
    Merge
);

/// An op without its tensors, for planning.
pub type OpDesc = Op<TensorDesc>;

impl Op<Tensor> {
    /// The op without its tensors.
    #[must_use]
    pub fn to_desc(&self) -> OpDesc {
        self.map(&mut |t| t.desc())
    }

    /// Rejects an op that writes an operand whose rows overlap those of another operand.
    ///
    /// # Errors
    /// [`Error::Aliasing`] with the op and the operand.
    pub fn check_aliasing(&self) -> Result<()> {
        let mut seen: Vec<(&'static str, OperandUse, Tensor)> = Vec::new();
        self.visit(&mut |name, how, tensor| seen.push((name, how, tensor.clone())));
        for (i, (_, how, written)) in seen.iter().enumerate() {
            if !how.writes() {
                continue;
            }
            for (j, (operand, _, other)) in seen.iter().enumerate() {
                if i != j && written.overlaps(other) {
                    return Err(Error::Aliasing { op: self.name(), operand });
                }
            }
        }
        Ok(())
    }
}

/// Checks shared by the ops' `check` functions; the field is the op's name for errors.
pub(crate) struct Check(pub(crate) &'static str);

impl Check {
    pub(crate) fn shape<T: Operand>(
        &self,
        operand: &'static str,
        tensor: &T,
        rows: usize,
        cols: usize,
    ) -> Result<()> {
        let got = tensor.desc();
        if got.n_rows == rows && got.n_cols == cols {
            Ok(())
        } else {
            Err(Error::shape(self.0, operand, format!("[{rows}, {cols}]"), got))
        }
    }

    /// Checks for at least `rows` rows of exactly `cols` values.
    pub(crate) fn at_least<T: Operand>(
        &self,
        operand: &'static str,
        tensor: &T,
        rows: usize,
        cols: usize,
    ) -> Result<()> {
        let got = tensor.desc();
        if got.n_rows >= rows && got.n_cols == cols {
            Ok(())
        } else {
            Err(Error::shape(self.0, operand, format!("[{rows} or more, {cols}]"), got))
        }
    }

    pub(crate) fn f32<T: Operand>(
        &self,
        operand: &'static str,
        tensor: &T,
        rows: usize,
        cols: usize,
    ) -> Result<()> {
        self.shape(operand, tensor, rows, cols)?;
        self.format(operand, tensor, &[crate::format::Format::F32])
    }

    pub(crate) fn maybe_f32<T: Operand>(
        &self,
        operand: &'static str,
        tensor: &Option<T>,
        rows: usize,
        cols: usize,
    ) -> Result<()> {
        tensor.as_ref().map_or(Ok(()), |tensor| self.f32(operand, tensor, rows, cols))
    }

    pub(crate) fn format<T: Operand>(
        &self,
        operand: &'static str,
        tensor: &T,
        allowed: &[crate::format::Format],
    ) -> Result<()> {
        let got = tensor.desc();
        if allowed.contains(&got.format) {
            Ok(())
        } else {
            Err(Error::shape(self.0, operand, format!("one of {allowed:?}"), got))
        }
    }

    pub(crate) fn weight<T: Operand>(&self, operand: &'static str, tensor: &T) -> Result<()> {
        let got = tensor.desc();
        if got.format.is_weight() {
            Ok(())
        } else {
            Err(Error::shape(self.0, operand, "a weight format", got))
        }
    }

    pub(crate) fn batch<T: Operand>(&self, batch: &crate::Batch<T>, n_tokens: usize) -> Result<()> {
        self.shape("batch", &batch.words, 1, batch.shape.n_words())?;
        self.format("batch", &batch.words, &[crate::format::Format::U32])?;
        if batch.shape.max_tokens >= n_tokens {
            Ok(())
        } else {
            let expected = format!("a batch of at least {n_tokens} tokens");
            Err(Error::shape(self.0, "batch", expected, batch.shape.max_tokens))
        }
    }

    pub(crate) fn set<T: Operand>(
        &self,
        operand: &'static str,
        set: &crate::RowSet<T>,
        n_tokens: usize,
    ) -> Result<()> {
        use crate::format::Format::U32;
        let capacity = set.ids.desc().n_cols;
        self.shape(operand, &set.ids, 1, capacity)?;
        self.shape(operand, &set.count, 1, 1)?;
        let words = set.members.desc().n_cols;
        self.shape(operand, &set.members, capacity, words)?;
        for part in [&set.ids, &set.count, &set.members] {
            self.format(operand, part, &[U32])?;
        }
        self.require(
            words * 32 >= n_tokens,
            operand,
            format!("at least {n_tokens} membership bits per row"),
            words * 32,
        )
    }

    pub(crate) fn require(
        &self,
        holds: bool,
        operand: &'static str,
        expected: impl ToString,
        got: impl ToString,
    ) -> Result<()> {
        if holds { Ok(()) } else { Err(Error::shape(self.0, operand, expected, got)) }
    }
}
