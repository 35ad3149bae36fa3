//! Feed-forward blocks. In decode the gate comes first, then up and down for the active neurons
//! only; in prefill, tiles compute all neurons. [`FfnAlgorithm`] lists the exceptions.

use hal::op::{Down, ExpertRanges, SparseFfn};
use hal::{Operand, Plan, Result, Rows, Tensor, TensorDesc};
use lower::{
    DROPPED, ExpertScratch, FEW_TOKENS, FewScratch, FfnAlgorithm, FfnCodes, FusedWork, ManyScratch,
    N_COUNTS, Scratch, WordFill, chunk_tokens, quantizes_x, takes_q8,
};

use super::down::{DownProjection, DownScratch, expert_weights, slice};
use super::experts::{self, ExpertPairs};
use super::ffn_dense::{DenseTokens, is_dense};
use super::ffn_many::lower_many;
use super::matmul::{decode_source, quantize};
use super::operand::{Access, Weight, include, lanes, refusal};
use super::{plan_of, scratch_refusal};
use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

fn select(op: &SparseFfn<TensorDesc>) -> FfnAlgorithm {
    FfnAlgorithm::select(op, experts::supports_op(op))
}

pub(in super::super) fn plan_ffn(op: &SparseFfn<TensorDesc>, facts: &Facts) -> Plan {
    let mut scratch = Scratch::default();
    let algorithm = select(op);
    match (algorithm, &op.experts) {
        (FfnAlgorithm::Experts, Some(experts)) => {
            ExpertScratch::new(op, experts, experts::n_parts(op, facts), &mut scratch);
            ExpertPairs::new(op, experts, &mut scratch);
        }
        (FfnAlgorithm::Many | FfnAlgorithm::Experts, _) => {
            ManyScratch::new(op, &mut scratch);
            DownScratch::new(op, chunk_tokens(op.x.n_rows), facts, &mut scratch);
        }
        (FfnAlgorithm::Few, _) => {
            few_scratch(op, facts, &mut scratch);
        }
    }
    let step = match (algorithm, op.orientation) {
        (_, Down::AcrossNeurons) | (FfnAlgorithm::Experts, _) => 1,
        (FfnAlgorithm::Few, Down::ByNeuron) => slice(op.up.n_rows, op.y.n_cols, 1, facts),
        (FfnAlgorithm::Many, Down::ByNeuron) => {
            slice(op.up.n_rows, op.y.n_cols, chunk_tokens(op.x.n_rows), facts)
        }
    };
    let mut refused = refusal("up", &op.up, 1, facts);
    if let Some(gate) = &op.gate {
        refused = refused.or_else(|| refusal("gate", gate, 1, facts));
    }
    refused = refused.or_else(|| refusal("down", &op.down, step, facts));
    refused = refused.or_else(|| facts.binding_refusal("x", &op.x));
    refused = refused.or_else(|| facts.binding_refusal("y", &op.y));
    refused = refused.or_else(|| scratch_refusal(&scratch, facts));
    plan_of(refused, scratch.bytes(), algorithm.slow(op))
}

pub(in super::super) fn lower_ffn(op: &SparseFfn<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let desc = op_desc(op);
    let starts = match &op.experts {
        Some(experts) => out.constants(&experts.starts)?,
        None => out.dummy(),
    };
    match (select(&desc), &op.experts) {
        (FfnAlgorithm::Experts, Some(experts)) => {
            let (scratch, n_parts) =
                (&mut Scratch::default(), experts::n_parts(&desc, out.facts()));
            let ranges = ExpertScratch::new(&desc, experts, n_parts, scratch);
            let pairs = ExpertPairs::new(&desc, experts, scratch);
            return experts::lower_experts(op, experts, (&ranges, &pairs), &starts, out);
        }
        (FfnAlgorithm::Many | FfnAlgorithm::Experts, _) => {
            let scratch = &mut Scratch::default();
            let ranges = ManyScratch::new(&desc, scratch);
            let down = DownScratch::new(&desc, chunk_tokens(desc.x.n_rows), out.facts(), scratch);
            return lower_many(op, &ranges, down, &starts, out);
        }
        (FfnAlgorithm::Few, _) => {}
    }
    let ranges = few_scratch(&desc, out.facts(), &mut Scratch::default());
    let n_tokens = desc.x.n_rows;
    for first_token in (0..n_tokens).step_by(FEW_TOKENS) {
        let n = FEW_TOKENS.min(n_tokens - first_token);
        let few = FewTokens {
            op,
            desc: &desc,
            ranges: &ranges,
            starts: &starts,
            first_token,
            n_tokens: n,
        };
        few.lower(out)?;
    }
    Ok(())
}

/// What the launch before a block can prepare for its first 16 tokens: where it expects x in Q8
/// blocks, and words to initialise. Nothing if the block has more tokens; with a row list,
/// initialising is work for many workgroups.
pub(in super::super) fn before_ffn(
    op: &SparseFfn<Tensor>,
    out: &Lowering<'_>,
) -> Result<FusedWork<'static, Span>> {
    let (desc, n_tokens) = (op_desc(op), op.x.desc().n_rows);
    if select(&desc) != FfnAlgorithm::Few || n_tokens > FEW_TOKENS {
        return Ok(FusedWork::default());
    }
    let ranges = few_scratch(&desc, out.facts(), &mut Scratch::default());
    let (starts, first_token) = (&out.dummy(), 0);
    let few = FewTokens { op, desc: &desc, ranges: &ranges, starts, first_token, n_tokens };
    let quantized = quantizes_x(desc.gate.as_ref().map(|gate| gate.format), desc.up.format);
    let q8 = if quantized { Some(ranges.0.q8.span(out)?) } else { None };
    let clear = few.clear(&ranges.0.h.span(out)?);
    let clear = (!few.has_row_list()).then_some(clear);
    Ok(FusedWork { add: None, quantized: q8, clear })
}

pub(super) fn op_desc(op: &SparseFfn<Tensor>) -> SparseFfn<TensorDesc> {
    let hal::Op::SparseFfn(desc) = hal::Op::from(op.clone()).to_desc() else {
        unreachable!("`to_desc` keeps the op's variant")
    };
    desc
}

/// Scratch memory of up to 16 tokens at a time.
fn few_scratch(
    op: &SparseFfn<TensorDesc>,
    facts: &Facts,
    scratch: &mut Scratch,
) -> (FewScratch, DownScratch) {
    let few = FewScratch::new(op, scratch);
    (few, DownScratch::new(op, op.x.n_rows.min(FEW_TOKENS), facts, scratch))
}

/// Up to 16 tokens of an op.
struct FewTokens<'a> {
    op: &'a SparseFfn<Tensor>,
    desc: &'a SparseFfn<TensorDesc>,
    ranges: &'a (FewScratch, DownScratch),
    starts: &'a Span,
    first_token: usize,
    n_tokens: usize,
}

impl FewTokens<'_> {
    /// Whether the op reads a row list, which may have capacity 0.
    fn has_row_list(&self) -> bool {
        matches!(self.op.rows, Rows::Active(_))
    }

    fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let n_h = self.n_tokens * self.desc.up.n_rows;
        let range = self.ranges.0.h.span(out)?;
        let clear = self.clear(&range);
        let counts = range.part(0, 4 * N_COUNTS as u64);
        let h = range.part(4 * N_COUNTS as u64, 4 * n_h as u64);
        let rows = self.op.x.rows(self.first_token..self.first_token + self.n_tokens);
        let (x, q8) = (plain(&rows)?, self.ranges.0.q8.span(out)?);
        let gate = self.desc.gate.as_ref().map(|gate| gate.format);
        let is_quantized = !quantizes_x(gate, self.desc.up.format)
            || out.earlier().quantized(&rows).as_ref() == Some(&q8);
        let is_initialised = out.earlier().take_initialised(&clear.span);
        if !(is_quantized && is_initialised) {
            let n_values = if is_quantized { 0 } else { self.n_tokens * self.desc.x.n_cols };
            let target = if is_quantized { counts.clone() } else { q8.clone() };
            quantize(&x, n_values, &target, (!is_initialised).then_some(clear), out)?;
        }
        let (op, ranges) = (self.op, self.ranges.1);
        let (first_token, n_tokens) = (self.first_token, self.n_tokens);
        let is_quantized = is_dense(self.desc, out.facts());
        if is_quantized {
            let (x, q8, h, counts) = (&x, &q8, &h, &counts);
            let h_q8 = &ranges.q8.span(out)?;
            DenseTokens { op, n_tokens, x, q8, h, counts, h_q8 }.lower(out)?;
        } else {
            self.lower_hidden(&x, &q8, &h, &counts, out)?;
        }
        DownProjection { op, ranges, first_token, n_tokens, h, counts, is_quantized }.lower(out)
    }

    /// Initial contents of counts and neuron values. With a row list, the other neurons are marked
    /// as skipped.
    fn clear(&self, range: &Span) -> WordFill<Span> {
        let n_h = if self.has_row_list() { self.n_tokens * self.desc.up.n_rows } else { 0 };
        let n = N_COUNTS + n_h;
        WordFill { span: range.part(0, 4 * n as u64), n, n_zero: N_COUNTS, word: DROPPED }
    }

    /// Computes the values of all active neurons.
    fn lower_hidden(
        &self,
        x: &Span,
        q8: &Span,
        h: &Span,
        counts: &Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let op = self.op;
        let up = Weight::new(&op.up, 1, out)?;
        let gate = op.gate.as_ref().map(|gate| Weight::new(gate, 1, out)).transpose()?;
        let test = gate.as_ref().unwrap_or(&up);
        let row = out.facts().tuning.row as usize;
        let lanes = lanes(&test.desc, out.facts()).max(lanes(&up.desc, out.facts()));
        let access = Access::dots(self.n_tokens, out.facts());
        let mut source = decode_source(Source::new("ffn_few"), self.n_tokens, row);
        source = include(source, "gate", &test.desc, access)?;
        source = include(source, "up", &up.desc, access)?;
        let input = |weight: &Weight| if takes_q8(weight.desc.format) { q8 } else { x }.clone();
        let tables = shared_tables(test, &up, out)?;
        for part in align_parts(test, &up) {
            let (gate_span, up_span, first, n) = part;
            let set = self.row_list(out)?;
            let bias_test = if gate.is_some() { &op.bias_gate } else { &op.bias_up };
            let spans = [
                gate_span,
                up_span,
                tables.clone(),
                input(test),
                input(&up),
                set.ids,
                set.count,
                set.members,
                out.plain_or_dummy(bias_test.as_ref())?,
                out.plain_or_dummy(op.bias_up.as_ref())?,
                out.plain_or_dummy(op.threshold.as_ref())?,
                expert_weights(op, self.first_token, self.n_tokens, out)?,
                self.starts.clone(),
                h.clone(),
                counts.clone(),
            ];
            let numbers =
                self.numbers(&FfnParams { test, up: &up, first, n, lanes, set: &set.size });
            let n_neurons = if self.has_row_list() { set.size[0] as usize } else { n };
            let fill = 4 * out.facts().tuning.fill as usize;
            let grid = out.facts().grid(n_neurons.div_ceil(row / lanes).min(fill));
            out.dispatch(&source, &spans, &numbers, grid)?;
        }
        Ok(())
    }

    fn numbers(&self, params: &FfnParams<'_>) -> [u32; 17] {
        let op = self.op;
        let bias_test = if op.gate.is_some() { &op.bias_gate } else { &op.bias_up };
        let flags = u32::from(bias_test.is_some())
            | u32::from(op.bias_up.is_some()) << 1
            | u32::from(op.threshold.is_some()) << 2
            | u32::from(self.has_row_list()) << 3;
        let FfnCodes { kind, activation, parameters: [alpha, slope, cap], skip } = FfnCodes::of(op);
        let [capacity, words, bit] = *params.set;
        [
            params.up.desc.n_rows as u32,
            params.first as u32,
            params.n as u32,
            params.up.desc.n_cols as u32,
            self.n_tokens as u32,
            params.lanes as u32 | bit << 16,
            capacity,
            words,
            op.experts.as_ref().map_or(0, ExpertRanges::n_expert) as u32,
            flags | kind << 4,
            activation,
            skip,
            alpha.to_bits(),
            slope.to_bits(),
            cap.to_bits(),
            params.test.row_words as u32,
            params.up.row_words as u32,
        ]
    }

    /// The row list; dummy buffers if the op has none.
    fn row_list(&self, out: &Lowering<'_>) -> Result<RowList> {
        let dummy = out.dummy();
        let Rows::Active(set) = &self.op.rows else {
            let (ids, count) = (dummy.clone(), dummy.clone());
            return Ok(RowList { ids, count, members: dummy, size: [0; 3] });
        };
        let whole = plain(&set.members)?;
        // `members` begins at the word with the first token's bit.
        let skipped = 4 * (self.first_token / 32) as u64;
        let members = whole.part(skipped, whole.size.saturating_sub(skipped));
        let words = set.members.desc().n_cols as u32;
        let size = [set.ids.desc().n_cols as u32, words, (self.first_token % 32) as u32];
        Ok(RowList { ids: plain(&set.ids)?, count: plain(&set.count)?, members, size })
    }
}

struct RowList {
    ids: Span,
    count: Span,
    members: Span,
    /// Capacity, membership words per row, and the bit of the first token.
    size: [u32; 3],
}

struct FfnParams<'a> {
    test: &'a Weight,
    up: &'a Weight,
    first: usize,
    n: usize,
    lanes: usize,
    set: &'a [u32; 3],
}

/// The code tables that either format needs.
pub(super) fn shared_tables(test: &Weight, up: &Weight, out: &Lowering<'_>) -> Result<Span> {
    let tables = test.tables(out)?;
    if tables.buffer == out.dummy().buffer { up.tables(out) } else { Ok(tables) }
}

/// Splits gate and up at the same rows, so that each range lies in one binding of both. Returns the
/// two spans, the first row and the number of rows of each range.
pub(super) fn align_parts(gate: &Weight, up: &Weight) -> Vec<(Span, Span, usize, usize)> {
    let mut cuts: Vec<usize> = gate.parts.iter().chain(&up.parts).map(|part| part.first).collect();
    cuts.push(up.desc.n_rows);
    cuts.sort_unstable();
    cuts.dedup();
    let span = |weight: &Weight, first: usize, n: usize| {
        let part = weight.parts.iter().rev().find(|part| part.first <= first)?;
        let row = 4 * weight.row_words as u64;
        Some(part.span.part(row * (first - part.first) as u64, row * n as u64))
    };
    let both = |pair: &[usize]| {
        let (first, n) = (pair[0], pair[1] - pair[0]);
        Some((span(gate, first, n)?, span(up, first, n)?, first, n))
    };
    cuts.windows(2).filter_map(both).collect()
}
