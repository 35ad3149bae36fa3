//! Changes of a tensor between checkpoint and file: the order of its rows and columns, and its values.

use std::sync::Arc;

/// Maps an output row to its source row, within one matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum RowMap {
    /// Identity.
    #[default]
    Same,
    /// The two rows of a RoPE pair are half a head apart in the checkpoint and adjacent in the
    /// file.
    /// Only the first `n_rot` rows of a head have pairs.
    Rope { d_head: usize, n_rot: usize },
    /// The checkpoint interleaves groups of query heads with their key and value head; the file has
    /// all queries, then all keys, then all values.
    FalconQkv { n_head: usize, n_head_kv: usize, d_head: usize },
    /// All rows from `first` on.
    From { first: usize },
    /// Every second row from `first` on.
    Every { first: usize },
    /// The first or the second half of the rows.
    Half { second: bool },
    /// The rows of a list.
    List(Selection),
    /// Rows of zeros follow, up to `n` rows.
    Pad { n: usize },
    /// The first `n` rows.
    First { n: usize },
}

/// Rows or columns of a matrix in a new order; some may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// The source index of each output index, each below `of`.
    pub(super) list: Arc<[u32]>,
    /// Rows or columns of the source.
    pub(super) of: usize,
}

impl Selection {
    /// Concatenates parts of `of` rows; each part lists source rows.
    pub(super) fn join(parts: impl IntoIterator<Item = u32>, of: u32) -> Selection {
        let list = parts.into_iter().filter(|&row| row < of).collect();
        Selection { list, of: of as usize }
    }
}

/// Values of a tensor, from those of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Values {
    #[default]
    Same,
    Plus(f32),
    Times(f32),
    /// -exp(x): the checkpoint stores the logarithm of a decay.
    NegExp,
    /// exp(x)
    Exp,
    /// Each row has a factor.
    RowTimes(Arc<[f32]>),
    /// Each row is divided by its Euclidean norm.
    UnitRows,
}

impl Values {
    /// Changes the values of output row `row` within its matrix.
    pub(super) fn apply(&self, row: usize, values: &mut [f32]) {
        match self {
            Values::Same => {}
            Values::Plus(number) => values.iter_mut().for_each(|value| *value += number),
            Values::Times(number) => values.iter_mut().for_each(|value| *value *= number),
            Values::NegExp => values.iter_mut().for_each(|value| *value = -value.exp()),
            Values::Exp => values.iter_mut().for_each(|value| *value = value.exp()),
            Values::UnitRows => {
                let norm = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
                // PyTorch's smallest divisor.
                let norm = norm.max(1e-12) as f32;
                values.iter_mut().for_each(|value| *value /= norm);
            }
            Values::RowTimes(all) => {
                let number = all.get(row).copied().unwrap_or(1.0);
                values.iter_mut().for_each(|value| *value *= number);
            }
        }
    }
}

/// All that differs between a tensor of the checkpoint and that of the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    pub(super) map: RowMap,
    pub(super) columns: Option<Selection>,
    /// The tensor is a vector or a stack of vectors (biases), so its last axis has no columns.
    pub(super) is_vector: bool,
    pub(super) transpose: bool,
    /// Number of columns of the output, the first ones of the source; `None` for all. Only with
    /// `transpose`.
    pub(super) n_cols: Option<usize>,
    pub(super) values: Values,
}

impl Change {
    /// What the change expects of a tensor with `n_rows` rows of `n_cols` values, if that does not
    /// fit it.
    pub(super) fn misfit(&self, n_rows: usize, n_cols: usize) -> Option<String> {
        if let Some(columns) = &self.columns
            && (columns.of != n_cols || columns.list.len() != n_cols)
        {
            return Some(format!("{} columns", columns.of));
        }
        if let Some(n) = self.n_cols
            && !(1..=n_cols).contains(&n)
        {
            return Some(format!("at least {n} rows"));
        }
        let expected = match &self.map {
            RowMap::Rope { d_head, n_rot } => {
                let fits = *d_head > 0
                    && n_rot <= d_head
                    && n_rot.is_multiple_of(2)
                    && n_rows.is_multiple_of(*d_head);
                (!fits)
                    .then(|| format!("rows in whole heads of {d_head}, {n_rot} of them in pairs"))
            }
            RowMap::FalconQkv { n_head, n_head_kv, d_head } => {
                let n = (n_head + 2 * n_head_kv) * d_head;
                (n_rows != n).then(|| format!("{n} rows"))
            }
            RowMap::List(rows) => (n_rows != rows.of).then(|| format!("{} rows", rows.of)),
            RowMap::Every { .. } | RowMap::Half { .. } => {
                (!n_rows.is_multiple_of(2)).then(|| "an even number of rows".to_owned())
            }
            RowMap::First { n } => (n_rows < *n).then(|| format!("at least {n} rows")),
            RowMap::Same | RowMap::From { .. } | RowMap::Pad { .. } => None,
        };
        let is_empty = || self.map.n_rows(n_rows) == 0;
        expected.or_else(|| is_empty().then(|| "more rows".to_owned()))
    }
}

impl RowMap {
    /// The source row of row `row` of `n` output rows.
    pub(super) fn source(&self, row: usize, n: usize) -> usize {
        match *self {
            RowMap::Same => row,
            RowMap::Rope { d_head, n_rot } => match row % d_head {
                within if within < n_rot => row - within + within % 2 * (n_rot / 2) + within / 2,
                _ => row,
            },
            RowMap::FalconQkv { n_head, n_head_kv, d_head } => {
                let (head, within) = (row / d_head, row % d_head);
                let per_group = n_head / n_head_kv;
                let source = if head < n_head {
                    head / per_group * (per_group + 2) + head % per_group
                } else {
                    let (kind, group) = ((head - n_head) / n_head_kv, (head - n_head) % n_head_kv);
                    group * (per_group + 2) + per_group + kind
                };
                source * d_head + within
            }
            RowMap::From { first } => first + row,
            RowMap::Every { first } => first + 2 * row,
            RowMap::Half { second } => row + if second { n } else { 0 },
            RowMap::List(ref rows) => rows.list[row] as usize,
            RowMap::Pad { .. } | RowMap::First { .. } => row,
        }
    }

    /// Output rows made from `n` source rows.
    pub(super) fn n_rows(&self, n: usize) -> usize {
        match self {
            RowMap::Same | RowMap::Rope { .. } | RowMap::FalconQkv { .. } => n,
            RowMap::From { first } => n.saturating_sub(*first),
            RowMap::Every { .. } | RowMap::Half { .. } => n / 2,
            RowMap::List(rows) => rows.list.len(),
            RowMap::Pad { n: least } => n.max(*least),
            RowMap::First { n: most } => n.min(*most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_interleaved_for_rope() {
        let map = RowMap::Rope { d_head: 6, n_rot: 6 };
        let rows: Vec<usize> = (0..12).map(|row| map.source(row, 12)).collect();
        assert_eq!(rows, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        let map = RowMap::Rope { d_head: 6, n_rot: 4 };
        let rows: Vec<usize> = (0..12).map(|row| map.source(row, 12)).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
    }

    #[test]
    fn the_first_rows_need_enough_rows() {
        let change = Change { map: RowMap::First { n: 3 }, ..Change::default() };
        assert_eq!((change.map.n_rows(5), change.misfit(5, 2)), (3, None));
        assert!(change.misfit(2, 2).is_some_and(|expected| expected.contains('3')));
    }

    #[test]
    fn falcon_groups_become_queries_keys_and_values() {
        // Two groups of two queries, a key and a value, one row each.
        let map = RowMap::FalconQkv { n_head: 4, n_head_kv: 2, d_head: 1 };
        let rows: Vec<usize> = (0..8).map(|row| map.source(row, 8)).collect();
        assert_eq!(rows, [0, 1, 4, 5, 2, 6, 3, 7]);
    }
}
