//! The first half of a dense feed-forward block in decode, if the down projection reads the neuron
//! values in Q8 blocks: one dispatch computes and quantises them.

use hal::op::SparseFfn;
use hal::{Result, Rows, Tensor, TensorDesc};
use lower::{FfnCodes, quantizes_h, takes_q8};

use super::ffn::{align_parts, shared_tables};
use super::matmul::decode_source;
use super::operand::{Access, Weight, include, lanes, part_rows};
use crate::buffer::Span;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Neurons of a Q8 block, which one workgroup computes.
const BLOCK: usize = 32;

/// Whether a workgroup can have whole blocks. Their number does not matter: even a block of 2048
/// neurons has as many bytes in flight as a large card needs, since each lane has four loads.
pub(super) fn is_dense(op: &SparseFfn<TensorDesc>, facts: &Facts) -> bool {
    let is_whole = |weight: &TensorDesc| part_rows(weight, BLOCK, facts) > 0;
    op.experts.is_none()
        && matches!(op.rows, Rows::All)
        && quantizes_h(op)
        && op.up.n_rows.is_multiple_of(BLOCK)
        && is_whole(&op.up)
        && op.gate.as_ref().is_none_or(is_whole)
        && facts.tuning.row as usize / lanes(&op.up, facts) <= BLOCK
}

/// Some tokens of an op for which [`is_dense`] holds.
pub(super) struct DenseTokens<'a> {
    pub(super) op: &'a SparseFfn<Tensor>,
    pub(super) n_tokens: usize,
    /// x in F32, and in Q8 blocks if gate or up reads it so.
    pub(super) x: &'a Span,
    pub(super) q8: &'a Span,
    /// Destinations: the neuron values, their number per token, and the values in Q8 blocks.
    pub(super) h: &'a Span,
    pub(super) counts: &'a Span,
    pub(super) h_q8: &'a Span,
}

impl DenseTokens<'_> {
    pub(super) fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let op = self.op;
        let up = Weight::new(&op.up, BLOCK, out)?;
        let gate = op.gate.as_ref().map(|gate| Weight::new(gate, BLOCK, out)).transpose()?;
        let (test, bias_test) = match &gate {
            Some(gate) => (gate, &op.bias_gate),
            None => (&up, &op.bias_up),
        };
        let row = out.facts().tuning.row as usize;
        let lanes = lanes(&test.desc, out.facts()).max(lanes(&up.desc, out.facts()));
        let access = Access::dots(self.n_tokens, out.facts());
        let mut source = decode_source(Source::new("ffn_dense"), self.n_tokens, row);
        source = include(source, "gate", &test.desc, access)?;
        source = include(source, "up", &up.desc, access)?;
        let input =
            |weight: &Weight| if takes_q8(weight.desc.format) { self.q8 } else { self.x }.clone();
        let has = u32::from(bias_test.is_some())
            | u32::from(op.bias_up.is_some()) << 1
            | u32::from(op.threshold.is_some()) << 2;
        let FfnCodes { kind, activation, parameters, skip } = FfnCodes::of(op);
        for (gate_span, up_span, first, n) in align_parts(test, &up) {
            let spans = [
                gate_span,
                up_span,
                shared_tables(test, &up, out)?,
                input(test),
                input(&up),
                out.plain_or_dummy(bias_test.as_ref())?,
                out.plain_or_dummy(op.bias_up.as_ref())?,
                out.plain_or_dummy(op.threshold.as_ref())?,
                self.h.clone(),
                self.counts.clone(),
                self.h_q8.clone(),
            ];
            let sizes = [up.desc.n_rows, first, n, up.desc.n_cols, self.n_tokens, lanes];
            let mut numbers = sizes.map(|n| n as u32).to_vec();
            numbers.extend([has, kind, activation, skip]);
            numbers.extend(parameters.map(f32::to_bits));
            numbers.extend([test.row_words as u32, up.row_words as u32]);
            let grid = out.facts().grid(n / BLOCK);
            out.dispatch(&source, &spans, &numbers, grid)?;
        }
        Ok(())
    }
}
