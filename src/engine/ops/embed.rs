//! The embedding of the tokens of a step, as ops. With tensors as operands, the ops are recorded;
//! with tensor shapes, they only serve to ask a device whether it supports them.

use hal::op::{Add, AddPositions, GetRows, Norm, Op};
use hal::{Batch, HostRows, Operand};

use model::{Affine, Model, PerLayerEmbedding};

use super::layer::{matmul, norm};
use super::scratch::{Role, Scratch};

/// Token embedding, learned positions, token type, their norm, and per-layer embeddings.
#[derive(Debug)]
pub(crate) struct Embedding<T> {
    pub(crate) tokens: T,
    /// Norm of the embeddings; `None` without one.
    norm: Option<Affine<T>>,
    /// Table of learned positions, and the number of rows before the row of position 0; `None`
    /// without learned positions.
    positions: Option<(T, usize)>,
    /// The vector of the first token type; `None` without token types.
    token_type: Option<T>,
    per_layer: Option<PerLayerEmbedding<T>>,
}

impl<T> Embedding<T> {
    /// The embedding of `model`. `f` makes an operand from the name and the rows of each table.
    pub(crate) fn new<E>(
        model: &Model,
        f: &mut dyn FnMut(&'static str, &HostRows) -> Result<T, E>,
    ) -> Result<Embedding<T>, E> {
        let Model { token_embd, embedding_norm, positions, token_type, per_layer, .. } = model;
        let positions = positions
            .as_ref()
            .map(|table| Ok::<_, E>((f("position_embd", &table.rows)?, table.offset)));
        let positions = positions.transpose()?;
        Ok(Embedding {
            tokens: f("token_embd", token_embd)?,
            norm: (embedding_norm.as_ref())
                .map(|norm| norm.try_map("token_embd_norm", f))
                .transpose()?,
            positions,
            token_type: token_type.as_ref().map(|row| f("token_types", row)).transpose()?,
            per_layer: per_layer.as_ref().map(|by| by.try_map(f)).transpose()?,
        })
    }
}

impl<T: Operand> Embedding<T> {
    /// Ops from the tokens of `batch` to the residual and the per-layer embeddings in `scratch`.
    pub(crate) fn ops(&self, model: &Model, scratch: &Scratch<T>, batch: &Batch<T>) -> Vec<Op<T>> {
        let n_embd = model.hyper.n_embd;
        let x = if self.norm.is_some() { &scratch.h } else { &scratch.x };
        let rows = GetRows {
            table: self.tokens.clone(),
            batch: batch.clone(),
            y: x.clone(),
            scale: model.hyper.embedding_factor(),
        };
        let mut ops = vec![rows.into()];
        // All positions past the only row of `token_type` use this row.
        let rows = self.token_type.iter().map(|row| (row, 0));
        for (table, offset) in self.positions.iter().map(|(table, n)| (table, *n)).chain(rows) {
            let (table, batch, x) = (table.clone(), batch.clone(), x.clone());
            ops.push(AddPositions { table, batch, x, offset }.into());
        }
        if let Some(by) = &self.norm {
            ops.push(norm(model, x, by, &scratch.x).into());
        }
        let Some(by) = &self.per_layer else { return ops };
        let n_all = by.table.desc().n_cols;
        let (all, part) =
            (scratch.at(Role::LayerInputs, n_all), scratch.at(Role::LayerInputsPart, n_all));
        ops.push(matmul(&by.proj, &scratch.x, part));
        let normed = Norm {
            x: part.clone(),
            weight: Some(by.norm.clone()),
            bias: None,
            y: all.clone(),
            kind: model.spec.norm,
            // The model divides `part` by `sqrt(n_embd)` before the norm. A scaled epsilon gives
            // the same result without the division.
            eps: model.hyper.eps * n_embd as f32,
            width: by.width,
        };
        let table = GetRows {
            table: by.table.clone(),
            batch: batch.clone(),
            y: part.clone(),
            scale: (by.width as f32 / 2.0).sqrt(),
        };
        let sum = Add { a: part.clone(), x: all.clone() };
        ops.extend([normed.into(), table.into(), sum.into()]);
        ops
    }
}
