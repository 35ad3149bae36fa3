//! The residual streams of Gemma 3n (AltUp, Baykal et al. 2023) and its low-rank residual (LAuReL,
//! Menghani et al. 2024). Generic over the operand: host rows, tensors or shapes.

use hal::HostRows;

use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::{MatrixStack, f32_matrix};
use super::{Affine, Error, per_layer};

/// Number of streams.
pub(super) const N_STREAMS: usize = 4;

/// The streams in one layer. Only the first of the `n` streams passes through the layer; the others
/// are predicted before it and corrected after it.
#[derive(Clone, Debug)]
pub struct AltUp<T = HostRows> {
    /// Computes the other streams from the embedding, `[n_embd, n_embd]` each; empty except in the
    /// first layer. A product gets the embedding's length.
    pub start: Vec<T>,
    /// Applied to the other streams before all are averaged, `[n_embd, n_embd]` each; empty except
    /// in the last layer. A product gets the first stream's length.
    pub end: Vec<T>,
    /// `[1, n_embd]`: norm of the router's input; the weight includes `1 / n_embd`.
    pub router_norm: Affine<T>,
    /// `[n, n_embd]`, before a tanh.
    pub router: T,
    /// For each stream, `[n, n]`: the share of it that is added to each stream before the layer,
    /// from the router's output.
    pub predict: Vec<T>,
    /// `[n, n]`, with a bias of 1: the share of the first stream's change that is added to each
    /// stream after the layer.
    pub correct: Affine<T>,
    /// `[1, n_embd]`, F32: factors on the input of the per-layer embedding's gate.
    pub gate_scale: T,
    /// Constants, F32.
    pub constants: AltUpConstants<T>,
    /// The low-rank residual.
    pub laurel: Laurel<T>,
}

/// Constants of the ops of [`AltUp`], F32.
#[derive(Clone, Debug)]
pub struct AltUpConstants<T = HostRows> {
    /// `[1, 1]`: -1.
    pub minus: T,
    /// `[1, n]`: 0 for the first stream, 1 for the others.
    pub others: T,
    /// `[1, n_embd]`: 1, whose product with a row is its sum.
    pub ones: T,
    /// `[1, 1]`: `1 / n`.
    pub mean: T,
    /// `[1, 1]`: `1 / sqrt(2)`.
    pub half: T,
}

/// A low-rank residual: `x = (x + h + norm(right . left . h)) / sqrt(2)` after the mixer, where `h`
/// is the mixer's input.
#[derive(Clone, Debug)]
pub struct Laurel<T = HostRows> {
    /// `[rank, n_embd]`.
    pub left: Affine<T>,
    /// `[n_embd, rank]`.
    pub right: Affine<T>,
    /// `[1, n_embd]`.
    pub norm: Affine<T>,
}

impl<T> AltUp<T> {
    pub(super) fn try_map<U, E>(&self, f: &mut MapOperand<'_, T, U, E>) -> Result<AltUp<U>, E> {
        let AltUp { constants: by, laurel, .. } = self;
        let mut all = |name, parts: &[T]| -> Result<Vec<U>, E> {
            parts.iter().map(|part| f(name, part)).collect()
        };
        Ok(AltUp {
            start: all("altup_proj", &self.start)?,
            end: all("altup_unembd_proj", &self.end)?,
            predict: all("altup_predict_coef", &self.predict)?,
            router_norm: self.router_norm.try_map("altup_router_norm", f)?,
            router: f("altup_router", &self.router)?,
            correct: self.correct.try_map("altup_correct_coef", f)?,
            gate_scale: f("altup_correct_scale", &self.gate_scale)?,
            constants: AltUpConstants {
                minus: f("minus", &by.minus)?,
                others: f("others", &by.others)?,
                ones: f("ones", &by.ones)?,
                mean: f("mean", &by.mean)?,
                half: f("half", &by.half)?,
            },
            laurel: Laurel {
                left: laurel.left.try_map("laurel_l", f)?,
                right: laurel.right.try_map("laurel_r", f)?,
                norm: laurel.norm.try_map("laurel_post_norm", f)?,
            },
        })
    }
}

impl LayerReader<'_> {
    /// Reads the layer's part of the streams; `None` in models with one stream.
    pub(super) fn altup(&self) -> Result<Option<Box<AltUp>>, Error> {
        if !self.layers.spec.altup {
            return Ok(None);
        }
        let keys = self.keys();
        for (key, expected) in [("altup.num_inputs", N_STREAMS as u32), ("altup.active_idx", 0)] {
            match keys.metadata.u32(&keys.name(key))? {
                Some(found) if found != expected => {
                    return Err(keys.wrong_key(key, expected, found));
                }
                Some(_) | None => {}
            }
        }
        if self.layers.hyper.n_per_layer == 0 {
            return Err(keys.missing(per_layer::WIDTH, "the width of the per-layer embeddings"));
        }
        let (n, w) = (N_STREAMS, self.n_embd());
        let reader = self.layers.reader;
        let stack = MatrixStack { n: n - 1, rows: w, cols: w };
        let others = |tensor: &str, is_read: bool| -> Result<Vec<HostRows>, Error> {
            let count = if is_read { n - 1 } else { 0 };
            (0..count).map(|i| reader.rows_of(tensor, stack, i * w..(i + 1) * w)).collect()
        };
        let scale = (w as f32).recip();
        let row = |values: &[f32]| f32_matrix(1, values);
        // Row `i * n + j` of the file's matrix is the share of stream `j` in stream `i`.
        let shares = self.flat("altup_predict_coef.weight", n * n * n)?;
        let predict = |j: usize| {
            let rows = (0..n).flat_map(|i| &shares[(i * n + j) * n..][..n]).copied();
            f32_matrix(n, &rows.collect::<Vec<f32>>())
        };
        let rank = self.n_rows("laurel_l.weight", w)?;
        Ok(Some(Box::new(AltUp {
            start: others("altup_proj.weight", self.index() == 0)?,
            end: others("altup_unembd_proj.weight", self.index() + 1 == self.n_layer())?,
            router_norm: reader.scaled_norm(&self.tensor("altup_router_norm"), w, scale)?,
            router: self.matrix("altup_router.weight", n, w)?,
            predict: (0..n).map(predict).collect(),
            correct: Affine {
                w: f32_matrix(n, &self.flat("altup_correct_coef.weight", n * n)?),
                bias: Some(row(&[1.0; N_STREAMS])),
            },
            gate_scale: row(&self.flat("altup_correct_scale.weight", w)?),
            constants: AltUpConstants {
                minus: row(&[-1.0]),
                others: row(&[0.0, 1.0, 1.0, 1.0]),
                ones: row(&vec![1.0; w]),
                mean: row(&[(n as f32).recip()]),
                half: row(&[std::f32::consts::FRAC_1_SQRT_2]),
            },
            laurel: Laurel {
                left: self.affine("laurel_l", rank, w)?,
                right: self.affine("laurel_r", w, rank)?,
                norm: self.norm("laurel_post_norm", w)?,
            },
        })))
    }
}
