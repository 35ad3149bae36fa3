//! Experts that several experts of a layer share (GroveMoE's adjugate experts). Generic over the
//! operand: host rows, tensors or shapes.

use hal::HostRows;

use super::layer::MapOperand;
use super::layers::LayerReader;
use super::reader::MatrixStack;
use super::{Affine, Error, Experts};

/// Key of the number of neurons of a chunk.
const NEURONS: &str = "expert_chunk_feed_forward_length";

/// Chunks of experts. The experts of a chunk share one more feed-forward block, which reads the
/// output of the layer's experts. A token uses the blocks of its experts' chunks.
#[derive(Clone, Debug)]
pub struct ChunkExperts<T = HostRows> {
    /// Number of chunks.
    pub n: usize,
    /// Number of experts of a chunk.
    pub n_per_chunk: usize,
    /// Number of experts that are selected to choose the chunks.
    pub n_used: usize,
    /// Factor on the chunks' output.
    pub scale: f32,
    /// `[n_expert, n_embd]`: the layer's router. Swaps of experts do not change this copy.
    pub router: Affine<T>,
    /// `[n_chunk * n_ff, n_embd]`.
    pub gate: Affine<T>,
    /// `[n_chunk * n_ff, n_embd]`.
    pub up: Affine<T>,
    /// `[n_chunk * n_embd, n_ff]`.
    pub down: Affine<T>,
}

impl<T> ChunkExperts<T> {
    pub(super) fn try_map<U, E>(
        &self,
        f: &mut MapOperand<'_, T, U, E>,
    ) -> Result<ChunkExperts<U>, E> {
        Ok(ChunkExperts {
            n: self.n,
            n_per_chunk: self.n_per_chunk,
            n_used: self.n_used,
            scale: self.scale,
            router: self.router.try_map("ffn_gate_inp_chexps", f)?,
            gate: self.gate.try_map("ffn_gate_chexps", f)?,
            up: self.up.try_map("ffn_up_chexps", f)?,
            down: self.down.try_map("ffn_down_chexps", f)?,
        })
    }
}

impl LayerReader<'_> {
    /// Reads the chunks of the layer's experts; `None` in families without them.
    pub(super) fn chunk_experts(
        &self,
        experts: Option<&Experts>,
    ) -> Result<Option<ChunkExperts>, Error> {
        const PER_CHUNK: &str = "experts_per_group";
        const SCALE: &str = "expert_group_scale";
        let (keys, n_embd) = (self.keys(), self.n_embd());
        let Some(experts) = experts.filter(|_| self.layers.spec.chunk_experts) else {
            return Ok(None);
        };
        let n_per_chunk = keys.need(PER_CHUNK, "the number of experts that share a block")?;
        let divides = experts.n.is_multiple_of(n_per_chunk);
        if !divides {
            let expected = format!("a divisor of the {} experts", experts.n);
            return Err(keys.wrong_key(PER_CHUNK, expected, n_per_chunk));
        }
        let scale = match keys.f32(SCALE)? {
            None => return Err(keys.missing(SCALE, "the factor on the shared blocks")),
            Some(scale) if scale.is_finite() => scale,
            Some(scale) => return Err(keys.wrong_key(SCALE, "a finite number", scale)),
        };
        let n_ff = match keys.positive(NEURONS)? {
            Some(n_ff) => n_ff,
            None => self.sizes().d_head,
        };
        let n = experts.n / n_per_chunk;
        let read = |part: &str, rows: usize, cols: usize| -> Result<Affine, Error> {
            let tensor = self.tensor(&format!("ffn_{part}_chexps.weight"));
            let stack = MatrixStack { n, rows, cols };
            let w = self.layers.reader.rows_of(&tensor, stack, 0..n.saturating_mul(rows))?;
            Ok(Affine { w, bias: None })
        };
        Ok(Some(ChunkExperts {
            n,
            n_per_chunk,
            n_used: experts.n_used.min(n),
            scale,
            router: self.affine("ffn_gate_inp", experts.n, n_embd)?,
            gate: read("gate", n_ff, n_embd)?,
            up: read("up", n_ff, n_embd)?,
            down: read("down", n_embd, n_ff)?,
        }))
    }
}
