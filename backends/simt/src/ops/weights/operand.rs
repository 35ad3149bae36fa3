//! A weight as kernels see it.

use hal::pack::transposed;
use hal::{Operand, Result, Tensor, TensorDesc};
use layout::{is_transposed_quantised, needs_tables, stride};

use crate::buffer::{RowLayout, Span, raw};
use crate::error::failure;
use crate::lowering::Lowering;

#[derive(Clone, Debug)]
pub(super) struct Weight {
    pub(super) desc: TensorDesc,
    /// Words from one row to the next.
    pub(super) row_words: usize,
    /// Device memory of the rows.
    pub(super) span: Span,
    /// Index of the first row in the whole weight; tables of a transposed weight count rows from
    /// the start of the whole weight.
    pub(super) first_row: usize,
    /// Device memory and shape of the whole weight; this may be a view of it.
    memory: Span,
    whole: TensorDesc,
}

/// Location of the group numbers, scales and minimums of a transposed weight, and words per row of
/// scales. Null if the weight is not transposed.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransposedTables {
    pub(super) groups: Span,
    pub(super) scales: Span,
    pub(super) mins: Span,
    pub(super) row_words: usize,
}

impl Weight {
    /// # Errors
    /// [`hal::Error::Driver`] for a tensor that was not imported as a weight.
    pub(super) fn new(tensor: &Tensor) -> Result<Weight> {
        let (raw, desc) = (raw(tensor)?, tensor.desc());
        // Quantised weights that were not imported still have the host's layout.
        let packed = raw.layout == RowLayout::Packed || desc.format.quants().is_none();
        let words = if packed { stride(&desc) } else { None };
        let Some(row_words) = words else {
            return Err(failure("bind", format!("{desc} was not imported as a weight")));
        };
        let row = 4 * row_words as u64;
        let first_row = tensor.first_row();
        let span = raw.span.part(row * first_row as u64, row * desc.n_rows as u64);
        Ok(Weight { desc, row_words, span, first_row, memory: raw.span, whole: tensor.whole() })
    }

    /// The tables of a transposed weight.
    ///
    /// # Errors
    /// [`hal::Error::Shape`] for an invalid matrix.
    pub(super) fn transposed_tables(&self) -> Result<TransposedTables> {
        if !is_transposed_quantised(&self.desc) {
            let none = Span::NONE;
            return Ok(TransposedTables { groups: none, scales: none, mins: none, row_words: 0 });
        }
        let layout = transposed(&self.whole)?;
        let from = |at: usize| self.memory.part(at as u64, self.memory.size - at as u64);
        Ok(TransposedTables {
            groups: from(layout.groups_at),
            scales: from(layout.scales_at),
            mins: from(layout.mins_at),
            row_words: layout.table_row_bytes / 4,
        })
    }

    /// The code tables of the weight's format; null if the format has none.
    pub(super) fn tables(&self, out: &Lowering<'_>) -> Span {
        if needs_tables(self.desc.format) && !is_transposed_quantised(&self.desc) {
            out.tables()
        } else {
            Span::NONE
        }
    }

    /// Lanes that share a row. If the row is long enough, each lane runs at least four iterations
    /// of the kernel's loop. The number depends on the columns alone, since it sets the order of
    /// sums.
    pub(super) fn lanes(&self) -> usize {
        let units = match self.desc.format.quants() {
            Some(_) => self.desc.n_cols / 32,
            None => self.row_words.div_ceil(4),
        };
        (units / 4).next_power_of_two().clamp(4, 32)
    }
}

/// The device memory of a weight; `None` if it is not read row by row.
pub(crate) fn memory(weight: &Tensor) -> Option<Span> {
    refusal("w", &weight.desc())
        .is_none()
        .then(|| Weight::new(weight).ok())
        .flatten()
        .map(|w| w.span)
}

/// Why a weight cannot be read row by row; `None` if it can.
pub(super) fn refusal(name: &str, desc: &TensorDesc) -> Option<String> {
    match stride(desc) {
        None => Some(format!("operand {name} has an invalid shape: {desc}")),
        Some(_) if is_transposed_quantised(desc) => {
            Some(format!("operand {name} must not be transposed: {desc}"))
        }
        Some(_) => None,
    }
}
