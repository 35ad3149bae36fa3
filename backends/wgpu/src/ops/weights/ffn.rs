//! Feed-forward blocks. In decode the gate comes first, then up and down for the active neurons
//! only; in prefill, tiles compute all neurons. [`FfnAlgorithm`] lists the exceptions.

use hal::format::Format;
use hal::op::{Activation, Down, ExpertRanges, FfnKind, Skip, SparseFfn};
use hal::{Operand, Plan, Result, Rows, Tensor, TensorDesc};
use lower::takes_q8;

use super::down::{DownProjection, DownScratch, expert_weights, slice};
use super::experts::{self, ExpertScratch};
use super::ffn_many::{ManyScratch, chunk_tokens, lower_many};
use super::matmul::{WordFill, decode_source, dots, quantize};
use super::operand::{Weight, include, lanes, refusal};
use super::scratch::{Scratch, ScratchRange};
use super::{FEW_TOKENS, plan_of};
use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Number of words before the neuron values. The first ones count active neurons, one word
/// per token.
pub(super) const N_COUNTS: usize = 64;
/// Marks the value of a skipped neuron (`shaders/lib/wanted.wgsl`).
const DROPPED: u32 = 0x8000_0000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum FfnAlgorithm {
    /// Gate first, then only the active neurons, up to 16 tokens at a time.
    Few,
    /// First the products with all rows of gate and up, then inactive neurons are dropped.
    Many,
    /// Like [`Self::Many`], but each expert processes only the tokens that are routed to it.
    Experts,
}

impl FfnAlgorithm {
    fn select(op: &SparseFfn<TensorDesc>) -> FfnAlgorithm {
        let (cut, many) = (matches!(op.skip, Skip::GaussianCut(_)), op.x.n_rows > FEW_TOKENS);
        match op.experts {
            _ if cut => FfnAlgorithm::Many,
            None if many => FfnAlgorithm::Many,
            Some(_) if many && experts::supports_op(op) => FfnAlgorithm::Experts,
            None | Some(_) => FfnAlgorithm::Few,
        }
    }
}

pub(in super::super) fn plan_ffn(op: &SparseFfn<TensorDesc>, facts: &Facts) -> Plan {
    let mut scratch = Scratch::default();
    let algorithm = FfnAlgorithm::select(op);
    match (algorithm, &op.experts) {
        (FfnAlgorithm::Experts, Some(experts)) => {
            ExpertScratch::new(op, experts, facts, &mut scratch);
        }
        (FfnAlgorithm::Many | FfnAlgorithm::Experts, _) => {
            ManyScratch::new(op, facts, &mut scratch);
        }
        (FfnAlgorithm::Few, _) => {
            FewScratch::new(op, facts, &mut scratch);
        }
    }
    let step = match (algorithm, op.orientation) {
        (_, Down::AcrossNeurons) | (FfnAlgorithm::Experts, _) => 1,
        (FfnAlgorithm::Few, Down::ByNeuron) => slice(op.up.n_rows, op.y.n_cols, 1, facts),
        (FfnAlgorithm::Many, Down::ByNeuron) => {
            slice(op.up.n_rows, op.y.n_cols, chunk_tokens(op), facts)
        }
    };
    let mut refused = refusal("up", &op.up, 1, facts);
    if let Some(gate) = &op.gate {
        refused = refused.or_else(|| refusal("gate", gate, 1, facts));
    }
    refused = refused.or_else(|| refusal("down", &op.down, step, facts));
    refused = refused.or_else(|| facts.binding_refusal("x", &op.x));
    refused = refused.or_else(|| facts.binding_refusal("y", &op.y));
    refused = refused.or_else(|| scratch.refusal(facts));
    let slow = (algorithm == FfnAlgorithm::Few && op.x.n_rows > FEW_TOKENS)
        .then_some("experts with row lists process only 16 tokens at a time on GPUs");
    plan_of(refused, scratch.bytes, slow)
}

pub(in super::super) fn lower_ffn(op: &SparseFfn<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let desc = op_desc(op);
    let starts = match &op.experts {
        Some(experts) => out.constants(&experts.starts)?,
        None => out.dummy(),
    };
    match (FfnAlgorithm::select(&desc), &op.experts) {
        (FfnAlgorithm::Experts, Some(experts)) => {
            let ranges = ExpertScratch::new(&desc, experts, out.facts(), &mut Scratch::default());
            return experts::lower_experts(op, experts, &ranges, &starts, out);
        }
        (FfnAlgorithm::Many | FfnAlgorithm::Experts, _) => {
            let ranges = ManyScratch::new(&desc, out.facts(), &mut Scratch::default());
            return lower_many(op, &ranges, &starts, out);
        }
        (FfnAlgorithm::Few, _) => {}
    }
    let ranges = FewScratch::new(&desc, out.facts(), &mut Scratch::default());
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
) -> Result<(Option<Span>, Option<WordFill>)> {
    let (desc, n_tokens) = (op_desc(op), op.x.desc().n_rows);
    if FfnAlgorithm::select(&desc) != FfnAlgorithm::Few || n_tokens > FEW_TOKENS {
        return Ok((None, None));
    }
    let ranges = FewScratch::new(&desc, out.facts(), &mut Scratch::default());
    let (starts, first_token) = (&out.dummy(), 0);
    let few = FewTokens { op, desc: &desc, ranges: &ranges, starts, first_token, n_tokens };
    let quantized = quantizes_x(desc.gate.as_ref().map(|gate| gate.format), desc.up.format);
    let q8 = if quantized { Some(ranges.q8.span(out)?) } else { None };
    let clear = few.clear(&ranges.h.span(out)?);
    Ok((q8, (!few.has_row_list()).then_some(clear)))
}

fn op_desc(op: &SparseFfn<Tensor>) -> SparseFfn<TensorDesc> {
    let hal::Op::SparseFfn(desc) = hal::Op::from(op.clone()).to_desc() else {
        unreachable!("`to_desc` keeps the op's variant")
    };
    desc
}

/// The code of an FFN kind in the shaders.
pub(super) fn kind_code(kind: FfnKind) -> u32 {
    match kind {
        FfnKind::Plain => 0,
        FfnKind::Gated => 1,
        FfnKind::GatedBoth => 2,
    }
}

/// The code of an activation in the shaders, its factor, its slope and its limit.
pub(super) fn activation_codes(activation: Activation) -> (u32, [f32; 3]) {
    match activation {
        Activation::Relu => (0, [0.0; 3]),
        Activation::Relu2 => (1, [0.0; 3]),
        Activation::Silu => (2, [0.0; 3]),
        Activation::Gelu => (3, [0.0; 3]),
        Activation::GeluErf => (4, [0.0; 3]),
        Activation::SwigluOai { alpha, limit } => (5, [alpha, 0.0, limit]),
        Activation::SwigluClamped { limit } => (6, [1.0, 0.0, limit]),
        Activation::SiluClamped { limit } => (7, [0.0, 0.0, limit]),
        Activation::XIelu { positive, negative, slope } => (8, [positive, slope, negative]),
    }
}

/// The code of a skip rule in the shaders.
pub(super) fn skip_code(skip: Skip) -> u32 {
    match skip {
        Skip::Never => 0,
        Skip::NotPositive => 1,
        Skip::BelowPerRow => 2,
        Skip::GaussianCut(_) => 3,
    }
}

struct FewScratch {
    /// x in Q8 blocks, if gate or up reads that format.
    q8: ScratchRange,
    /// Counts of active neurons, then the neuron values.
    h: ScratchRange,
    down: DownScratch,
}

impl FewScratch {
    fn new(op: &SparseFfn<TensorDesc>, facts: &Facts, scratch: &mut Scratch) -> FewScratch {
        let n_tokens = op.x.n_rows.min(FEW_TOKENS);
        let quantized = quantizes_x(op.gate.as_ref().map(|gate| gate.format), op.up.format);
        let q8 = scratch.q8(if quantized { n_tokens * op.x.n_cols } else { 0 });
        let h = scratch.words(N_COUNTS + n_tokens * op.up.n_rows);
        FewScratch { q8, h, down: DownScratch::new(op, n_tokens, facts, scratch) }
    }
}

/// Whether x is needed in Q8 blocks.
pub(super) fn quantizes_x(gate: Option<Format>, up: Format) -> bool {
    takes_q8(up) || gate.is_some_and(takes_q8)
}

/// Up to 16 tokens of an op.
struct FewTokens<'a> {
    op: &'a SparseFfn<Tensor>,
    desc: &'a SparseFfn<TensorDesc>,
    ranges: &'a FewScratch,
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
        let range = self.ranges.h.span(out)?;
        let clear = self.clear(&range);
        let counts = range.part(0, 4 * N_COUNTS as u64);
        let h = range.part(4 * N_COUNTS as u64, 4 * n_h as u64);
        let rows = self.op.x.rows(self.first_token..self.first_token + self.n_tokens);
        let (x, q8) = (plain(&rows)?, self.ranges.q8.span(out)?);
        let gate = self.desc.gate.as_ref().map(|gate| gate.format);
        let is_quantized = !quantizes_x(gate, self.desc.up.format)
            || out.earlier().quantized(&rows).as_ref() == Some(&q8);
        let is_initialised = out.earlier().take_initialised(&clear.span);
        if !(is_quantized && is_initialised) {
            let n_values = if is_quantized { 0 } else { self.n_tokens * self.desc.x.n_cols };
            let target = if is_quantized { counts.clone() } else { q8.clone() };
            quantize(&x, n_values, &target, (!is_initialised).then_some(clear), out)?;
        }
        self.lower_hidden(&x, &q8, &h, &counts, out)?;
        let (op, ranges) = (self.op, self.ranges.down);
        let (first_token, n_tokens) = (self.first_token, self.n_tokens);
        DownProjection { op, ranges, first_token, n_tokens, h, counts }.lower(out)
    }

    /// Initial contents of counts and neuron values. With a row list, the other neurons are marked
    /// as skipped.
    fn clear(&self, range: &Span) -> WordFill {
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
        let mut source = decode_source(Source::new("ffn_few"), self.n_tokens, row);
        source = include(source, "gate", &test.desc, dots(self.n_tokens))?;
        source = include(source, "up", &up.desc, dots(self.n_tokens))?;
        let input = |weight: &Weight| if takes_q8(weight.desc.format) { q8 } else { x }.clone();
        let tables = match test.tables(out)? {
            dummy if dummy.buffer == out.dummy().buffer => up.tables(out)?,
            tables => tables,
        };
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
        let (activation, [alpha, slope, cap]) = activation_codes(op.activation);
        let skip = skip_code(op.skip);
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
            flags | kind_code(op.kind) << 4,
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

/// Splits gate and up at the same rows, so that each range lies in one binding of both. Returns the
/// two spans, the first row and the number of rows of each range.
fn align_parts(gate: &Weight, up: &Weight) -> Vec<(Span, Span, usize, usize)> {
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
