//! A tensor of the output file: the source of each row, and the conversion of rows.

use std::ops::Range;
use std::sync::Arc;

use hal::format::Format;

use super::Error;
use super::change::{Change, RowMap, Selection, Values};
use super::source::{Encoding, Packing, Tensor};
use gguf::{Bytes, TensorType};

#[derive(Debug)]
pub(super) struct Output {
    pub(super) name: String,
    /// In ggml order, row length first.
    pub(super) shape: Vec<u64>,
    pub(super) ty: TensorType,
    pub(super) content: Content,
}

/// Source of a tensor's bytes.
#[derive(Debug)]
pub(super) enum Content {
    /// Bytes copied unchanged.
    Copy(Bytes),
    /// Rows of checkpoint tensors, concatenated. All entries have the same number of rows.
    Rows(Vec<SourceMatrices>),
    /// Rows of a stored tensor, quantised with the importance of their columns.
    Weighted {
        source: SourceMatrices,
        /// `[n_matrices, n_cols]`: the mean square of each column's input.
        columns: Vec<f32>,
        /// Rows of a matrix.
        n_rows: usize,
    },
    /// Values computed from the settings.
    Values(Vec<f32>),
    /// 4-bit blocks and their scales, which are separate in the checkpoint.
    Mxfp4 { blocks: Bytes, scales: Bytes, map: RowMap, n_source: usize, n_rows: usize },
}

/// Consecutive matrices of one source tensor.
#[derive(Clone, Debug)]
pub(super) struct SourceMatrices {
    bytes: Bytes,
    encoding: Encoding,
    packing: Option<Arc<Packing>>,
    map: RowMap,
    /// Rows of one source matrix; of a vector, its values.
    n_source: usize,
    /// Rows (or values) of one output matrix (or vector).
    n_out: usize,
    /// Values in a row; 1 for a vector.
    n_cols: usize,
    /// Values in a row of the source, of which the first `n_cols` are used.
    source_cols: usize,
    /// Matrices (or vectors) in the tensor.
    n_outer: usize,
    /// Whether the tensor has an axis of matrices (or vectors), even one of length 1.
    is_stack: bool,
    is_vector: bool,
    transposed: bool,
    columns: Option<Selection>,
    values: Values,
}

impl SourceMatrices {
    /// Returns an error if the tensor's type or shape does not allow `change`.
    pub(super) fn new(tensor: &Tensor, change: Change) -> Result<SourceMatrices, Error> {
        let wrong = |expected: &str| Error::Shape {
            tensor: tensor.name.clone(),
            expected: expected.to_owned(),
            found: tensor.shape.clone(),
        };
        let is_number = matches!(tensor.encoding, Encoding::Plain(_) | Encoding::F64);
        if !is_number && tensor.packing.is_none() {
            let (tensor, found) = (tensor.name.clone(), tensor.encoding.name().to_owned());
            return Err(Error::Encoding { tensor, expected: "F32, F16, BF16 or F64", found });
        }
        if tensor.shape.is_empty() || tensor.shape.contains(&0) || tensor.bytes.is_empty() {
            return Err(wrong("at least one value"));
        }
        // The tensor's bytes are mapped, so every product of its sizes fits in `usize`.
        let shape: Vec<usize> = tensor.shape.iter().map(|&n| n as usize).collect();
        let is_vector = change.is_vector || shape.len() == 1;
        let transposed = tensor.transposed != (change.transpose && !is_vector);
        if matches!(change.map, RowMap::Pad { .. }) && (is_vector || transposed) {
            return Err(wrong("a matrix stored by rows"));
        }
        let (outer, n_source, n_cols) = match (is_vector, shape.as_slice()) {
            (true, [outer @ .., n]) => (outer, *n, 1),
            (false, [outer @ .., rows, cols]) if change.transpose => (outer, *cols, *rows),
            (false, [outer @ .., rows, cols]) => (outer, *rows, *cols),
            (_, _) => return Err(wrong("a matrix")),
        };
        let n_out = change.map.n_rows(n_source);
        if let Some(expected) = change.misfit(n_source, n_cols) {
            return Err(wrong(&expected));
        }
        let source_cols = n_cols;
        let n_cols = change.n_cols.unwrap_or(n_cols);
        Ok(SourceMatrices {
            bytes: tensor.bytes.clone(),
            encoding: tensor.encoding,
            packing: tensor.packing.clone(),
            map: change.map,
            n_source,
            n_out,
            n_cols,
            source_cols,
            n_outer: outer.iter().product(),
            is_stack: !outer.is_empty(),
            is_vector,
            transposed,
            columns: change.columns,
            values: change.values,
        })
    }

    /// Rows of a GGUF tensor, of any readable format.
    pub(super) fn stored(
        bytes: Bytes,
        format: Format,
        n_rows: usize,
        n_cols: usize,
    ) -> SourceMatrices {
        SourceMatrices {
            bytes,
            encoding: Encoding::Plain(format),
            packing: None,
            map: RowMap::Same,
            n_source: n_rows,
            n_out: n_rows,
            n_cols,
            source_cols: n_cols,
            n_outer: 1,
            is_stack: false,
            is_vector: false,
            transposed: false,
            columns: None,
            values: Values::Same,
        }
    }

    /// Shape of the output in ggml order, for a stack of `stacked` such tensors, or for one.
    pub(super) fn shape(&self, stacked: Option<usize>) -> Vec<u64> {
        let mut shape = if self.is_vector {
            vec![self.n_out]
        } else if self.n_out == 1 && !self.is_stack && stacked.is_none() {
            // All readers treat a single row as a vector.
            vec![self.n_cols]
        } else {
            vec![self.n_cols, self.n_out]
        };
        let outer = self.n_outer * stacked.unwrap_or(1);
        if self.is_stack || stacked.is_some() {
            shape.push(outer);
        }
        shape.into_iter().map(|n| n as u64).collect()
    }

    /// Whether `self` and `other` have the same output shape and can be stacked.
    pub(super) fn is_like(&self, other: &SourceMatrices) -> bool {
        self.shape(None) == other.shape(None)
    }

    /// Whether `self` differs from `other` only by fewer rows.
    pub(super) fn is_shorter_than(&self, other: &SourceMatrices) -> bool {
        let (mine, others) = (self.shape(None), other.shape(None));
        mine[0] == others[0]
            && mine.len() <= 2
            && mine.get(1).copied().unwrap_or(1) < others.get(1).copied().unwrap_or(1)
    }

    /// Format of the source's numbers; of quantised weights, the nearest one.
    pub(super) fn encoding(&self) -> Encoding {
        let packing = self.packing.as_ref();
        packing.map_or(self.encoding, |packing| Encoding::Plain(packing.nearest()))
    }

    /// The mapped bytes.
    fn sources(&self) -> impl Iterator<Item = &Bytes> {
        let packing = self.packing.iter().flat_map(|packing| packing.sources());
        std::iter::once(&self.bytes).chain(packing)
    }

    fn n_rows(&self) -> usize {
        if self.is_vector { self.n_outer } else { self.n_outer * self.n_out }
    }

    /// Values of output rows `rows`, one after the other.
    pub(super) fn read(&self, rows: Range<usize>, out: &mut [f32]) {
        if self.is_vector {
            for (outer, out) in rows.zip(out.chunks_exact_mut(self.n_out)) {
                for (value, out) in out.iter_mut().enumerate() {
                    let at = outer * self.n_source + self.map.source(value, self.n_out);
                    self.decode(at, std::slice::from_mut(out));
                    self.values.apply(value, std::slice::from_mut(out));
                }
            }
            return;
        }
        if self.transposed {
            self.gather(rows.clone(), out);
        } else {
            for (row, out) in rows.clone().zip(out.chunks_exact_mut(self.n_cols)) {
                let source = row / self.n_out * self.n_source
                    + self.map.source(row % self.n_out, self.n_out);
                if matches!(self.map, RowMap::Pad { .. }) && row % self.n_out >= self.n_source {
                    out.fill(0.0);
                } else {
                    self.decode(source * self.source_cols, out);
                }
            }
        }
        let mut old = Vec::new();
        for (row, out) in rows.zip(out.chunks_exact_mut(self.n_cols)) {
            if let Some(columns) = &self.columns {
                old.clear();
                old.extend_from_slice(out);
                for (value, &from) in out.iter_mut().zip(&*columns.list) {
                    *value = old[from as usize];
                }
            }
            self.values.apply(row % self.n_out, out);
        }
    }

    /// As [`SourceMatrices::read`] for a transposed source: reads column by column, so that each
    /// cache line is read once for many rows.
    fn gather(&self, rows: Range<usize>, out: &mut [f32]) {
        let (outer, first) = (rows.start / self.n_out, rows.start % self.n_out);
        let is_run = self.map == RowMap::Same && first + rows.len() <= self.n_out;
        let mut line = vec![0.0; rows.len()];
        for col in 0..self.n_cols {
            if is_run {
                self.decode((outer * self.source_cols + col) * self.n_source + first, &mut line);
            } else {
                for (value, row) in line.iter_mut().zip(rows.clone()) {
                    let (outer, row) =
                        (row / self.n_out, self.map.source(row % self.n_out, self.n_out));
                    let at = (outer * self.source_cols + col) * self.n_source + row;
                    self.decode(at, std::slice::from_mut(value));
                }
            }
            for (out, value) in out[col..].iter_mut().step_by(self.n_cols).zip(&line) {
                *out = *value;
            }
        }
    }

    /// Fills `out` with the source's values from index `first` on.
    fn decode(&self, first: usize, out: &mut [f32]) {
        if let Some(packing) = &self.packing {
            return packing.decode(&self.bytes, first, out);
        }
        match self.encoding {
            Encoding::Plain(format) => {
                let at = |value: usize| value / format.block_values() * format.block_bytes();
                format.dequantize(&self.bytes[at(first)..at(first + out.len())], out);
            }
            Encoding::F64 | Encoding::U8 | Encoding::Other(_) => {
                let (values, _) = self.bytes[8 * first..].as_chunks::<8>();
                for (out, value) in out.iter_mut().zip(values) {
                    *out = f64::from_le_bytes(*value) as f32;
                }
            }
        }
    }

    /// The bytes of output row `row` in the source; `None` if they must be changed for `format`.
    fn unchanged_bytes(&self, row: usize, format: Format) -> Option<&[u8]> {
        if self.encoding != Encoding::Plain(format)
            || self.transposed
            || self.columns.is_some()
            || self.source_cols != self.n_cols
            || matches!(self.map, RowMap::Pad { .. })
            || self.values != Values::Same
            || self.is_vector
        {
            return None;
        }
        let source =
            row / self.n_out * self.n_source + self.map.source(row % self.n_out, self.n_out);
        let len = format.row_bytes(self.n_cols)?;
        Some(&self.bytes[source * len..(source + 1) * len])
    }
}

impl SourceMatrices {
    /// Whether all rows are blocks of MXFP4 that can be written with the same bits.
    pub(super) fn is_mxfp4(&self) -> bool {
        self.packing.as_ref().is_some_and(|packing| packing.is_mxfp4())
            && !self.transposed
            && self.columns.is_none()
            && self.source_cols == self.n_cols
            && !matches!(self.map, RowMap::Pad { .. })
            && self.values == Values::Same
            && !self.is_vector
    }

    /// Writes output row `row` of [`SourceMatrices::is_mxfp4`].
    fn write_mxfp4(&self, row: usize, out: &mut [u8]) {
        let Some(packing) = &self.packing else { return };
        let source =
            row / self.n_out * self.n_source + self.map.source(row % self.n_out, self.n_out);
        let blocks = packing.mxfp4_row(&self.bytes, source);
        for (out, (scale, codes)) in out.chunks_exact_mut(MXFP4_BYTES).zip(blocks) {
            repack_mxfp4(scale, codes, out);
        }
    }
}

impl Output {
    pub(super) fn row_len(&self) -> usize {
        self.shape[0] as usize
    }

    pub(super) fn n_rows(&self) -> usize {
        self.shape[1..].iter().product::<u64>() as usize
    }

    /// Bytes of all rows.
    pub(super) fn n_bytes(&self) -> u64 {
        self.n_rows() as u64 * self.row_bytes() as u64
    }

    pub(super) fn row_bytes(&self) -> usize {
        let block = self.ty.block().expect("an output has a type of known size");
        (self.shape[0] / block.values * block.bytes) as usize
    }

    /// Writes rows `rows` to `bytes`; `values` is scratch memory for them as floats.
    pub(super) fn fill(&self, rows: Range<usize>, values: &mut Vec<f32>, bytes: &mut [u8]) {
        let row_bytes = self.row_bytes();
        match &self.content {
            Content::Copy(all) => {
                bytes.copy_from_slice(&all[rows.start * row_bytes..rows.end * row_bytes])
            }
            Content::Values(all) => {
                let len = self.row_len();
                self.encode(&all[rows.start * len..rows.end * len], bytes);
            }
            Content::Weighted { source, columns, n_rows } => {
                let len = self.row_len();
                values.resize(rows.len() * len, 0.0);
                source.read(rows.clone(), values);
                let out = bytes.chunks_exact_mut(row_bytes);
                for (row, (values, out)) in rows.zip(values.chunks_exact(len).zip(out)) {
                    let first = row / n_rows * len;
                    self.format().quantize_row(values, &columns[first..first + len], out);
                }
            }
            Content::Rows(pieces) => {
                let height = pieces[0].n_rows();
                let mut first = rows.start;
                let mut rest = bytes;
                while first < rows.end {
                    let piece = &pieces[first / height];
                    let n = (height - first % height).min(rows.end - first);
                    let (now, later) = rest.split_at_mut(n * row_bytes);
                    self.fill_from(piece, first % height..first % height + n, values, now);
                    (first, rest) = (first + n, later);
                }
            }
            Content::Mxfp4 { blocks, scales, map, n_source, n_rows } => {
                let per_row = row_bytes / MXFP4_BYTES;
                for (row, out) in rows.zip(bytes.chunks_exact_mut(row_bytes)) {
                    let source = row / n_rows * n_source + map.source(row % n_rows, *n_rows);
                    for (block, out) in out.chunks_exact_mut(MXFP4_BYTES).enumerate() {
                        let at = source * per_row + block;
                        repack_mxfp4(scales[at], &blocks[16 * at..16 * (at + 1)], out);
                    }
                }
            }
        }
    }

    fn fill_from(
        &self,
        piece: &SourceMatrices,
        rows: Range<usize>,
        values: &mut Vec<f32>,
        bytes: &mut [u8],
    ) {
        let format = self.format();
        if piece.unchanged_bytes(rows.start, format).is_some() {
            for (row, out) in rows.zip(bytes.chunks_exact_mut(self.row_bytes())) {
                out.copy_from_slice(
                    piece.unchanged_bytes(row, format).expect("the rows have one format"),
                );
            }
            return;
        }
        if format == Format::MXFP4 && piece.is_mxfp4() {
            for (row, out) in rows.zip(bytes.chunks_exact_mut(self.row_bytes())) {
                piece.write_mxfp4(row, out);
            }
            return;
        }
        values.resize(rows.len() * self.row_len(), 0.0);
        piece.read(rows, values);
        self.encode(values, bytes);
    }

    fn encode(&self, values: &[f32], bytes: &mut [u8]) {
        self.format().quantize(values, bytes);
    }

    fn format(&self) -> Format {
        self.ty.format().expect("the plan chose a type that can be written")
    }

    /// The mapped bytes that the tensor was made from, which can be released after writing.
    pub(super) fn sources(&self) -> Vec<&Bytes> {
        match &self.content {
            Content::Copy(bytes) => vec![bytes],
            Content::Rows(pieces) => pieces.iter().flat_map(SourceMatrices::sources).collect(),
            Content::Weighted { source, .. } => vec![&source.bytes],
            Content::Values(_) => Vec::new(),
            Content::Mxfp4 { blocks, scales, .. } => vec![blocks, scales],
        }
    }
}

/// Bytes of an MXFP4 block: one scale byte and 16 bytes of two codes each.
const MXFP4_BYTES: usize = 17;

/// Reorders the 32 codes of a block: a checkpoint byte holds two consecutive values, a GGUF byte
/// two values 16 apart. The scale byte stays the same.
fn repack_mxfp4(scale: u8, pairs: &[u8], out: &mut [u8]) {
    let code = |value: usize| pairs[value / 2] >> (4 * (value % 2)) & 15;
    out[0] = scale;
    for (j, out) in out[1..].iter_mut().enumerate() {
        *out = code(j) | code(j + 16) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mxfp4_codes_are_reordered_unchanged() {
        let pairs: Vec<u8> = (0..16).map(|j| (2 * j % 16) | ((2 * j + 1) % 16) << 4).collect();
        let mut out = [0u8; 17];
        repack_mxfp4(120, &pairs, &mut out);
        assert_eq!(out[0], 120);
        for j in 0..16u8 {
            assert_eq!((out[1 + usize::from(j)] & 15, out[1 + usize::from(j)] >> 4), (j, j));
        }
    }
}
