//! Reads tensors from a file and records their names, so that an unread tensor is reported.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use hal::format::Format;
use hal::{HostRows, Source};

use gguf::{File, TensorInfo, TensorType};

use super::{Affine, ArchSpec, Error, Hyper, join};

pub(super) struct Reader<'a> {
    file: &'a File,
    spec: &'a ArchSpec,
    used: RefCell<HashSet<String>>,
}

/// A shape as text, in ggml order (columns first), for errors.
fn shape_list(shape: &[u64]) -> String {
    shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// `n` matrices of `[rows, cols]`, stacked in one tensor.
#[derive(Clone, Copy)]
pub(super) struct MatrixStack {
    pub(super) n: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// The shape of `n` matrices of `[rows, cols]` as text, in ggml order, for errors.
fn shape_text(n: usize, rows: usize, cols: usize) -> String {
    match (n, rows) {
        (1, 1) => cols.to_string(),
        (1, _) => format!("{cols}, {rows}"),
        _ => format!("{cols}, {rows}, {n}"),
    }
}

fn type_text(ty: TensorType) -> String {
    if let TensorType::Unknown(id) = ty {
        return format!("of the unknown type {id}{}", TensorType::removal_note(id));
    }
    ty.to_string()
}

fn weight_format(info: &TensorInfo) -> Option<Format> {
    info.ty.format().filter(|format| format.is_weight())
}

/// `values` as `n_rows` rows of F32.
pub(super) fn f32_matrix(n_rows: usize, values: &[f32]) -> HostRows {
    let bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
    let n_cols = values.len() / n_rows;
    let rows = HostRows::new(Source::Owned(Arc::new(bytes)), n_rows, n_cols, Format::F32);
    rows.expect("each value has four bytes")
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a File, spec: &'a ArchSpec) -> Reader<'a> {
        Reader { file, spec, used: RefCell::default() }
    }

    fn name(&self) -> String {
        self.file.name().to_owned()
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.file.tensor(tensor).is_some()
    }

    /// Whether the tensor exists in a supported format.
    pub(super) fn has_supported(&self, tensor: &str) -> bool {
        self.file.tensor(tensor).is_some_and(|info| weight_format(info).is_some())
    }

    /// Number of rows of a tensor with `cols` columns. The error text calls the rows `label`.
    pub(super) fn n_rows(&self, tensor: &str, cols: usize, label: &str) -> Result<usize, Error> {
        let expected = format!("{cols}, {label}");
        let Some(info) = self.file.tensor(tensor) else {
            return Err(Error::MissingTensor {
                file: self.name(),
                tensor: tensor.into(),
                expected,
            });
        };
        match info.shape.as_slice() {
            [_, rows, ..] if *rows > 0 => Ok(*rows as usize),
            shape => Err(Error::Shape {
                file: self.name(),
                tensor: tensor.into(),
                expected,
                found: shape_list(shape),
            }),
        }
    }

    /// Whether a tensor has a single axis: llama.cpp drops a last axis of length 1.
    pub(super) fn is_vector(&self, tensor: &str) -> bool {
        self.file.tensor(tensor).is_some_and(|info| info.shape.len() == 1)
    }

    fn find(&self, tensor: &str, shape: MatrixStack) -> Result<&TensorInfo, Error> {
        let MatrixStack { n, rows, cols } = shape;
        let info = self.file.tensor(tensor).ok_or_else(|| Error::MissingTensor {
            file: self.name(),
            tensor: tensor.to_owned(),
            expected: shape_text(n, rows, cols),
        })?;
        let fits = info.shape.first() == Some(&(cols as u64))
            && info.shape.get(1).copied().unwrap_or(1) == rows as u64
            && info.shape.get(2).copied().unwrap_or(1) == n as u64
            && info.shape.iter().skip(3).all(|&n| n == 1);
        if !fits {
            return Err(Error::Shape {
                file: self.name(),
                tensor: tensor.to_owned(),
                expected: shape_text(n, rows, cols),
                found: shape_list(&info.shape),
            });
        }
        self.used.borrow_mut().insert(tensor.to_owned());
        Ok(info)
    }

    /// Reads a tensor of shape `[rows, cols]`, in any weight format.
    pub(super) fn matrix(&self, tensor: &str, rows: usize, cols: usize) -> Result<HostRows, Error> {
        self.rows_of(tensor, MatrixStack { n: 1, rows, cols }, 0..rows)
    }

    /// The rows in `part` of `n` stacked matrices of `[rows, cols]`, used in place in the mapped
    /// file.
    pub(super) fn rows_of(
        &self,
        tensor: &str,
        stack: MatrixStack,
        part: Range<usize>,
    ) -> Result<HostRows, Error> {
        let MatrixStack { n, rows, cols } = stack;
        let info = self.find(tensor, stack)?;
        let Some(format) = weight_format(info) else {
            let known: Vec<_> =
                Format::ALL.iter().filter(|f| f.is_weight()).map(Format::to_string).collect();
            return Err(Error::Format {
                file: self.name(),
                tensor: tensor.to_owned(),
                expected: known.join(", "),
                found: type_text(info.ty),
            });
        };
        let shape = |error: hal::Error| Error::Shape {
            file: self.name(),
            tensor: tensor.to_owned(),
            expected: shape_text(n, rows, cols),
            found: error.to_string(),
        };
        let bytes = self.file.slice(info)?;
        let whole = HostRows::new(Source::Mapped(Arc::new(bytes.clone())), n * rows, cols, format);
        let row = whole.map_err(shape)?.row_bytes();
        let bytes = bytes.slice(part.start * row..part.end * row);
        HostRows::new(Source::Mapped(Arc::new(bytes)), part.len(), cols, format).map_err(shape)
    }

    /// The rows in `range` of a matrix, dequantised to F32.
    pub(super) fn f32_rows(
        &self,
        tensor: &str,
        rows: usize,
        cols: usize,
        range: Range<usize>,
    ) -> Result<HostRows, Error> {
        let values = self.floats(tensor, rows, cols)?;
        Ok(f32_matrix(range.len(), &values[range.start * cols..range.end * cols]))
    }

    /// A matrix as one row, dequantised to F32.
    pub(super) fn f32_row(
        &self,
        tensor: &str,
        rows: usize,
        cols: usize,
    ) -> Result<HostRows, Error> {
        Ok(f32_matrix(1, &self.floats(tensor, rows, cols)?))
    }

    /// As [`Reader::affine`], but only the rows in `range`, as F32.
    pub(super) fn f32_affine_rows(
        &self,
        part: &str,
        rows: usize,
        cols: usize,
        range: Range<usize>,
    ) -> Result<Affine, Error> {
        let bias = self.optional_floats(&format!("{part}.bias"), rows)?;
        Ok(Affine {
            w: self.f32_rows(&format!("{part}.weight"), rows, cols, range.clone())?,
            bias: bias.map(|values| f32_matrix(1, &values[range])),
        })
    }

    /// The values of a matrix, dequantised from any weight format.
    pub(super) fn floats(&self, tensor: &str, rows: usize, cols: usize) -> Result<Vec<f32>, Error> {
        self.stack_floats(tensor, MatrixStack { n: 1, rows, cols })
    }

    /// The values of stacked matrices, dequantised from any weight format.
    pub(super) fn stack_floats(&self, tensor: &str, stack: MatrixStack) -> Result<Vec<f32>, Error> {
        let n_rows = stack.n * stack.rows;
        let stored = self.rows_of(tensor, stack, 0..n_rows)?;
        let mut values = vec![0.0f32; n_rows * stack.cols];
        let bytes = stored.rows(0..n_rows).expect("mapped rows are in memory");
        stored.desc().format.dequantize(&bytes, &mut values);
        Ok(values)
    }

    /// The `n` values of a tensor of any shape, dequantised from any weight format.
    pub(super) fn flat(&self, tensor: &str, n: usize) -> Result<Vec<f32>, Error> {
        let shape = self.file.tensor(tensor).map(|info| info.shape.clone()).unwrap_or_default();
        let found = shape.iter().try_fold(1u64, |all, &n| all.checked_mul(n));
        let cols = shape.first().copied().unwrap_or(0) as usize;
        let info = self.file.tensor(tensor).ok_or_else(|| Error::MissingTensor {
            file: self.name(),
            tensor: tensor.to_owned(),
            expected: format!("{n} values"),
        })?;
        if found != Some(n as u64) || cols == 0 {
            return Err(Error::Shape {
                file: self.name(),
                tensor: tensor.to_owned(),
                expected: format!("{n} values"),
                found: shape_list(&shape),
            });
        }
        self.used.borrow_mut().insert(tensor.to_owned());
        let Some(format) = weight_format(info) else {
            return Err(Error::Format {
                file: self.name(),
                tensor: tensor.to_owned(),
                expected: Format::F32.to_string(),
                found: type_text(info.ty),
            });
        };
        let bytes = Arc::new(self.file.slice(info)?);
        let rows = HostRows::new(Source::Mapped(bytes), n / cols, cols, format);
        let rows = rows.map_err(|error| Error::Shape {
            file: self.name(),
            tensor: tensor.to_owned(),
            expected: format!("{n} values"),
            found: error.to_string(),
        })?;
        let mut values = vec![0.0f32; n];
        let bytes = rows.rows(0..n / cols).expect("mapped rows are in memory");
        format.dequantize(&bytes, &mut values);
        Ok(values)
    }

    /// The values of a matrix of whole numbers of 32 bits.
    pub(super) fn i32_matrix(
        &self,
        tensor: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<i32>, Error> {
        let info = self.find(tensor, MatrixStack { n: 1, rows, cols })?;
        if info.ty != TensorType::I32 {
            return Err(Error::Format {
                file: self.name(),
                tensor: tensor.to_owned(),
                expected: TensorType::I32.to_string(),
                found: type_text(info.ty),
            });
        }
        let bytes = self.file.slice(info)?;
        Ok(bytes.as_chunks().0.iter().map(|&word| i32::from_le_bytes(word)).collect())
    }

    pub(super) fn optional_floats(
        &self,
        tensor: &str,
        len: usize,
    ) -> Result<Option<Vec<f32>>, Error> {
        self.file.tensor(tensor).map(|_| self.floats(tensor, 1, len)).transpose()
    }

    /// A vector as F32; `None` if the file does not have it.
    pub(super) fn optional_vector(
        &self,
        tensor: &str,
        len: usize,
    ) -> Result<Option<HostRows>, Error> {
        Ok(self.optional_floats(tensor, len)?.map(|values| f32_matrix(1, &values)))
    }

    /// Reads `part.weight` of shape `[rows, cols]` and, if the file has it, `part.bias`.
    pub(super) fn affine(&self, part: &str, rows: usize, cols: usize) -> Result<Affine, Error> {
        self.affine_rows(part, rows, cols, 0..rows)
    }

    /// As [`Reader::affine`], but only the rows in `range`.
    pub(super) fn affine_rows(
        &self,
        part: &str,
        rows: usize,
        cols: usize,
        range: Range<usize>,
    ) -> Result<Affine, Error> {
        let bias = self.optional_floats(&format!("{part}.bias"), rows)?;
        Ok(Affine {
            w: self.rows_of(
                &format!("{part}.weight"),
                MatrixStack { n: 1, rows, cols },
                range.clone(),
            )?,
            bias: bias.map(|values| f32_matrix(1, &values[range])),
        })
    }

    /// The rows of `parts` of one tensor, none of which may have a bias.
    pub(super) fn joined_rows(&self, part: &str, parts: Vec<Affine>) -> Result<Affine, Error> {
        let shape = |found: String| Error::Shape {
            file: self.name(),
            tensor: format!("{part}.weight"),
            expected: "rows in several parts, without a bias".to_owned(),
            found,
        };
        if parts.iter().any(|part| part.bias.is_some()) {
            return Err(shape("a bias".to_owned()));
        }
        let rows = parts.into_iter().map(|part| part.w).collect();
        let w = join::stack(rows).map_err(|error| shape(error.to_string()))?;
        Ok(Affine { w, bias: None })
    }

    /// Gate (`half` 0) or up (`half` 1) of `n` experts, `[n_ff, n_embd]` each, from a tensor that
    /// holds both for each expert.
    pub(super) fn expert_half(
        &self,
        tensor: &str,
        stack: MatrixStack,
        half: usize,
    ) -> Result<Affine, Error> {
        let MatrixStack { n, rows: n_ff, cols } = stack;
        let both = MatrixStack { n, rows: 2 * n_ff, cols };
        let rows = |e: usize| {
            let first = (2 * e + half) * n_ff;
            self.rows_of(tensor, both, first..first + n_ff)
        };
        let parts: Vec<HostRows> = (0..n).map(rows).collect::<Result<_, _>>()?;
        let w = join::stack(parts).map_err(|error| Error::Shape {
            file: self.name(),
            tensor: tensor.to_owned(),
            expected: shape_text(n, 2 * n_ff, cols),
            found: error.to_string(),
        })?;
        Ok(Affine { w, bias: None })
    }

    /// Stacks the `[rows, cols]` matrices of `n` experts, from one tensor for all experts
    /// (`part_exps`) or from one tensor for each (`part.7`). Biases become `bias_rows` rows.
    pub(super) fn experts(
        &self,
        blk: &str,
        part: &str,
        stack: MatrixStack,
        bias_rows: usize,
    ) -> Result<Affine, Error> {
        let MatrixStack { n, rows, cols } = stack;
        let all = format!("{blk}.{part}_exps");
        let each = |e: usize| format!("{blk}.{part}.{e}.weight");
        if !self.has(&format!("{all}.weight")) && self.has(&each(0)) {
            let parts = (0..n).map(|e| self.matrix(&each(e), rows, cols));
            let parts: Vec<HostRows> = parts.collect::<Result<_, _>>()?;
            let format = parts[0].desc().format;
            if let Some(other) = parts.iter().position(|part| part.desc().format != format) {
                return Err(Error::Format {
                    file: self.name(),
                    tensor: each(other),
                    expected: format!("{format} as in the first expert"),
                    found: parts[other].desc().format.to_string(),
                });
            }
            let w = join::stack(parts);
            let w = w.map_err(|error| Error::Shape {
                file: self.name(),
                tensor: each(0),
                expected: shape_text(n, rows, cols),
                found: error.to_string(),
            })?;
            return Ok(Affine { w, bias: None });
        }
        let bias = format!("{all}.bias");
        let bias = if self.has(&bias) {
            Some(f32_matrix(bias_rows, &self.floats(&bias, n, rows)?))
        } else {
            None
        };
        Ok(Affine { w: self.rows_of(&format!("{all}.weight"), stack, 0..n * rows)?, bias })
    }

    /// Reads weight and bias of a norm over `width` values, as F32. In families whose norms have no
    /// weights, the weights are 1.
    pub(super) fn norm(&self, part: &str, width: usize) -> Result<Affine, Error> {
        self.scaled_norm(part, width, 1.0)
    }

    /// As [`Reader::norm`], with weight and bias multiplied by `scale`.
    pub(super) fn scaled_norm(
        &self,
        part: &str,
        width: usize,
        scale: f32,
    ) -> Result<Affine, Error> {
        let scaled = |values: Vec<f32>| {
            f32_matrix(1, &values.iter().map(|value| scale * value).collect::<Vec<_>>())
        };
        if !self.spec.norm_weights {
            return Ok(Affine { w: scaled(vec![1.0; width]), bias: None });
        }
        // llama.cpp's converter names some norms of PLaMo 2 and 3 without `.weight`.
        let weight = format!("{part}.weight");
        let weight = if !self.has(&weight) && self.has(part) { part } else { &weight };
        Ok(Affine {
            w: scaled(self.floats(weight, 1, width)?),
            bias: self.optional_floats(&format!("{part}.bias"), width)?.map(scaled),
        })
    }

    /// Marks a tensor as used although no op reads it: the family's files may contain it.
    pub(super) fn skip(&self, tensor: &str) {
        self.used.borrow_mut().insert(tensor.to_owned());
    }

    /// Checks that no tensor is unknown, and returns the number of layers with a predictor.
    pub(super) fn finish(&self, hyper: &Hyper) -> Result<usize, Error> {
        let &Hyper { n_layer, n_nextn, .. } = hyper;
        let used = self.used.borrow();
        let mut n_predictors = 0;
        for info in self.file.tensors() {
            let part = info.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            let part = part.and_then(|(layer, part)| Some((layer.parse::<usize>().ok()?, part)));
            if part.is_some_and(|(layer, _)| (n_layer..n_layer + n_nextn).contains(&layer)) {
                continue;
            }
            let of_layer = part.filter(|(layer, _)| *layer < n_layer);
            match of_layer.map(|(_, part)| part) {
                Some("fc1.weight") => n_predictors += 1,
                Some("fc2.weight" | "attn_rot_embd" | "attn_rot_embd.weight") => {}
                Some("attention.rotary_emb.inv_freq" | "attn.rot_embd.weight") => {}
                _ if used.contains(&info.name) => {}
                _ => {
                    return Err(Error::UnknownTensor {
                        file: self.name(),
                        tensor: info.name.clone(),
                        arch: self.spec.name.to_owned(),
                    });
                }
            }
        }
        Ok(n_predictors)
    }
}
