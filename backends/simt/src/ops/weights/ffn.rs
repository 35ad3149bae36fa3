//! Feed-forward blocks. In decode the gate comes first, then up and down for the active neurons
//! only; in prefill, tiles compute all neurons.

use hal::op::{Down, ExpertRanges, SparseFfn};
use hal::{Operand, Plan, Result, Rows, Tensor, TensorDesc};
use layout::stride;
use lower::{
    DROPPED, ExpertScratch, FEW_TOKENS, FewScratch, FfnAlgorithm, FfnCodes, FusedWork, ManyScratch,
    N_COUNTS, Scratch, WordFill, chunk_tokens, quantizes_x, takes_q8,
};

use super::down::{DownProjection, DownScratch, expert_weights};
use super::experts::{self, ExpertPairs};
use super::ffn_many::lower_many;
use super::matmul::quantize;
use super::operand::{Weight, refusal};
use crate::buffer::{Span, plain};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Maximum number of experts: a thread block lists the used experts in shared memory of fixed size.
const MAX_EXPERTS: usize = 1024;
/// Threads per block of `ffn_few`, blocks per multiprocessor (as many as the kernel's registers
/// allow), and neurons that a set of lanes tests at once.
const BLOCK: u32 = 128;
const PER_UNIT: u32 = 4;
const NEURONS: usize = 2;
/// Threads per block of `ffn_few` if each block computes and quantises whole Q8 blocks. A block of
/// 2048 neurons then has 64 of them, with 144 bytes of Q4_0 in flight per thread: 2.4 MB, what a card
/// of 3 TB/s needs at a latency of 0.8 us.
const QUANTIZING_BLOCK: u32 = 256;

fn select(op: &SparseFfn<TensorDesc>) -> FfnAlgorithm {
    FfnAlgorithm::select(op, matches!(op.rows, Rows::All))
}

pub(crate) fn plan_ffn(op: &SparseFfn<TensorDesc>, facts: &Facts) -> Plan {
    let mut scratch = Scratch::default();
    let algorithm = select(op);
    match (algorithm, &op.experts) {
        (FfnAlgorithm::Experts, Some(experts)) => {
            ExpertScratch::new(op, experts, 1, &mut scratch);
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
    let mut refused = refusal("up", &op.up);
    if let Some(gate) = &op.gate {
        refused = refused.or_else(|| refusal("gate", gate));
    }
    if stride(&op.down).is_none() {
        refused = refused.or(Some(format!("operand down has an invalid shape: {}", op.down)));
    }
    let n_expert = op.experts.as_ref().map_or(0, ExpertRanges::n_expert);
    if n_expert > MAX_EXPERTS {
        refused =
            refused.or(Some(format!("{n_expert} experts; at most {MAX_EXPERTS} are supported")));
    }
    if let Some(reason) = refused {
        return Plan::No(reason);
    }
    let slow = algorithm.slow(op).map(str::to_owned);
    Plan::Yes { workspace: hal::Bytes(scratch.bytes()), slow }
}

pub(crate) fn lower_ffn(op: &SparseFfn<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let hal::Op::SparseFfn(desc) = hal::Op::from(op.clone()).to_desc() else {
        unreachable!("`to_desc` keeps the op's variant")
    };
    let starts = match &op.experts {
        Some(experts) => out.constants(&experts.starts)?,
        None => Span::NONE,
    };
    match (select(&desc), &op.experts) {
        (FfnAlgorithm::Experts, Some(experts)) => {
            let scratch = &mut Scratch::default();
            let ranges = ExpertScratch::new(&desc, experts, 1, scratch);
            let pairs = ExpertPairs::new(&desc, experts, scratch);
            return experts::lower_experts(op, experts, (&ranges, &pairs), starts, out);
        }
        (FfnAlgorithm::Many | FfnAlgorithm::Experts, _) => {
            let scratch = &mut Scratch::default();
            let ranges = ManyScratch::new(&desc, scratch);
            let down = DownScratch::new(&desc, chunk_tokens(desc.x.n_rows), out.facts(), scratch);
            return lower_many(op, &ranges, down, starts, out);
        }
        (FfnAlgorithm::Few, _) => {}
    }
    let ranges = few_scratch(&desc, out.facts(), &mut Scratch::default());
    let n_tokens = desc.x.n_rows;
    for first_token in (0..n_tokens).step_by(FEW_TOKENS) {
        let n_tokens = FEW_TOKENS.min(n_tokens - first_token);
        FewTokens { op, ranges: &ranges, starts, first_token, n_tokens }.lower(out)?;
    }
    Ok(())
}

/// The preparation of an op in decode that an earlier kernel can do: the destination of x in Q8
/// blocks, and the words to initialise.
pub(crate) fn before_ffn(
    op: &SparseFfn<Tensor>,
    out: &Lowering<'_>,
) -> Result<FusedWork<'static, Span>> {
    let hal::Op::SparseFfn(desc) = hal::Op::from(op.clone()).to_desc() else {
        unreachable!("`to_desc` keeps the op's variant")
    };
    let n_tokens = desc.x.n_rows;
    if select(&desc) != FfnAlgorithm::Few || n_tokens > FEW_TOKENS {
        return Ok(FusedWork::default());
    }
    let ranges = few_scratch(&desc, out.facts(), &mut Scratch::default());
    let few = FewTokens { op, ranges: &ranges, starts: Span::NONE, first_token: 0, n_tokens };
    let quantized = quantizes_x(desc.gate.map(|gate| gate.format), desc.up.format);
    let q8 = if quantized { Some(ranges.0.q8.span(out)?) } else { None };
    let clear = Some(few.clear(ranges.0.h.span(out)?));
    Ok(FusedWork { add: None, quantized: q8, clear })
}

/// Parameters in the kernels' order: FFN kind, activation, skip rule, factor, slope and limit of the
/// activation.
pub(super) fn rule_args(op: &SparseFfn<Tensor>) -> [Arg; 6] {
    let FfnCodes { kind, activation, parameters, skip } = FfnCodes::of(op);
    let floats = parameters.map(Arg::F32);
    [Arg::U32(kind), Arg::U32(activation), Arg::U32(skip), floats[0], floats[1], floats[2]]
}

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
    ranges: &'a (FewScratch, DownScratch),
    starts: Span,
    first_token: usize,
    n_tokens: usize,
}

/// The matrices of one `ffn_few` launch: `test` decides which neurons are active, and `up` is read
/// for the active neurons only.
struct Stage<'a> {
    test: Option<&'a Weight>,
    up: Option<&'a Weight>,
}

impl FewTokens<'_> {
    fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        let op = self.op;
        let (up, x_desc) = (op.up.desc(), op.x.desc());
        let n_h = self.n_tokens * up.n_rows;
        let range = self.ranges.0.h.span(out)?;
        let clear = self.clear(range);
        let counts = range.part(0, 4 * N_COUNTS as u64);
        let h = range.part(4 * N_COUNTS as u64, 4 * n_h as u64);
        let rows = op.x.rows(self.first_token..self.first_token + self.n_tokens);
        let (x, q8) = (plain(&rows)?, self.ranges.0.q8.span(out)?);
        let quantized = quantizes_x(op.gate.as_ref().map(|gate| gate.desc().format), up.format);
        let is_quantized = !quantized || out.earlier().quantized(&rows) == Some(q8);
        let is_initialised = out.earlier().take_initialised(&clear.span);
        if !(is_quantized && is_initialised) {
            let n_values = if is_quantized { 0 } else { self.n_tokens * x_desc.n_cols };
            quantize(x, n_values, q8, (!is_initialised).then_some(clear), out);
        }
        let h_q8 = if self.quantizes_h() { self.ranges.1.q8.span(out)? } else { Span::NONE };
        self.lower_hidden([x, q8], [h, h_q8], counts, out)?;
        let (ranges, first_token, n_tokens) = (self.ranges.1, self.first_token, self.n_tokens);
        let quantized = (h_q8 != Span::NONE).then_some(h_q8);
        let starts = self.starts;
        DownProjection { op, ranges, first_token, n_tokens, h, quantized, counts, starts }
            .lower(out)
    }

    /// Whether the launch that computes the neuron values also quantises them: a thread block can
    /// only do that if it has all neurons of a Q8 block.
    fn quantizes_h(&self) -> bool {
        let op = self.op;
        let has_blocks = match &op.experts {
            None => op.up.desc().n_rows.is_multiple_of(32),
            Some(experts) => experts.starts.iter().all(|start| start.is_multiple_of(32)),
        };
        let whole = has_blocks && matches!(op.rows, Rows::All);
        whole && op.orientation == Down::AcrossNeurons && takes_q8(op.down.desc().format)
    }

    /// Initial contents of counts and neuron values. If only some rows are processed, the other
    /// neurons are marked as skipped; but those of unused experts only if their hits are counted,
    /// since nothing else reads them.
    fn clear(&self, range: Span) -> WordFill<Span> {
        let is_sparse = match (&self.op.rows, &self.op.experts) {
            (Rows::Active(_), _) => true,
            (Rows::All, experts) => experts.is_some() && self.op.hits.is_some(),
        };
        let n_h = if is_sparse { self.n_tokens * self.op.up.desc().n_rows } else { 0 };
        WordFill { span: range, n: N_COUNTS + n_h, n_zero: N_COUNTS, word: DROPPED }
    }

    /// Computes the values of all active neurons; `x` is given in F32 and in Q8 blocks, and so is
    /// the destination. The second is null if the values are not quantised here.
    fn lower_hidden(
        &self,
        x: [Span; 2],
        h: [Span; 2],
        counts: Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let up = Weight::new(&self.op.up)?;
        let gate = self.op.gate.as_ref().map(Weight::new).transpose()?;
        let stages = match &gate {
            None => vec![Stage { test: Some(&up), up: None }],
            Some(gate) if gate.desc.format == up.desc.format => {
                vec![Stage { test: Some(gate), up: Some(&up) }]
            }
            Some(gate) => {
                vec![Stage { test: Some(gate), up: None }, Stage { test: None, up: Some(&up) }]
            }
        };
        let (last, tests) = stages.split_last().expect("there is a matrix");
        tests.iter().try_for_each(|stage| self.stage(stage, x, [h[0], Span::NONE], counts, out))?;
        self.stage(last, x, h, counts, out)
    }

    fn stage(
        &self,
        stage: &Stage<'_>,
        [x, q8]: [Span; 2],
        [h, h_q8]: [Span; 2],
        counts: Span,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let op = self.op;
        let Some(weight) = stage.test.or(stage.up) else { return Ok(()) };
        let (format, lanes) = (weight.desc.format, weight.lanes());
        let matrix = |weight: Option<&Weight>| ptr(weight.map_or(Span::NONE, |w| w.span));
        let bias_test = if op.gate.is_some() { &op.bias_gate } else { &op.bias_up };
        let (list, list_size, listed) = self.list()?;
        let n_expert = op.experts.as_ref().map_or(0, ExpertRanges::n_expert);
        let (max_rows, n_neurons) = match (&op.experts, listed) {
            (_, Some(capacity)) => (0, capacity),
            (None, None) => (0, weight.desc.n_rows),
            (Some(experts), None) => {
                let max_rows = experts.rows().map(|rows| rows.len()).max().unwrap_or(0);
                (max_rows, max_rows * n_expert.min(self.n_tokens * experts.n_used))
            }
        };
        let mut args = vec![
            matrix(stage.test),
            matrix(stage.up),
            ptr(weight.tables(out)),
            ptr(if takes_q8(format) { q8 } else { x }),
            ptr(out.plain_or_null(bias_test.as_ref())?),
            ptr(out.plain_or_null(op.bias_up.as_ref())?),
        ];
        args.extend(list.map(ptr));
        args.extend([
            ptr(out.plain_or_null(op.threshold.as_ref())?),
            ptr(expert_weights(op, self.first_token, self.n_tokens)?),
            ptr(self.starts),
            ptr(h),
            ptr(counts),
            ptr(h_q8),
            word(weight.desc.n_rows),
            word(weight.row_words),
            word(weight.desc.n_cols),
            word(self.n_tokens),
            word(lanes),
        ]);
        args.extend(list_size.map(word));
        args.extend([word(n_expert), word(max_rows)]);
        args.extend(rule_args(op));
        let (block, blocks) = if h_q8 == Span::NONE {
            let per_block = NEURONS * (BLOCK as usize / lanes);
            (BLOCK, out.facts().persistent(n_neurons.div_ceil(per_block), PER_UNIT) as usize)
        } else {
            (QUANTIZING_BLOCK, n_neurons / 32)
        };
        let kernel = if self.n_tokens == 1 { "ffn_one" } else { "ffn_few" };
        out.launch(Unit::weight("ffn_few", format), kernel, [blocks, 1, 1], block, &args);
        Ok(())
    }

    /// The row list's ids, count and membership bits; its capacity, membership words per row and
    /// the bit of the first token; then the capacity, or `None` without a list.
    fn list(&self) -> Result<([Span; 3], [usize; 3], Option<usize>)> {
        let Rows::Active(set) = &self.op.rows else { return Ok(([Span::NONE; 3], [0; 3], None)) };
        let all = plain(&set.members)?;
        // `members` begins at the word with the first token's bit.
        let skipped = (4 * (self.first_token / 32) as u64).min(all.size);
        let members = all.part(skipped, all.size - skipped);
        let capacity = set.ids.desc().n_cols;
        let size = [capacity, set.members.desc().n_cols, self.first_token % 32];
        Ok(([plain(&set.ids)?, plain(&set.count)?, members], size, Some(capacity)))
    }
}
