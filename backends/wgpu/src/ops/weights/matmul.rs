//! Dense matrix products, also used by other ops.

use hal::op::{HeadMatMul, MatMul};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};
use lower::{
    FEW_TOKENS, Scratch, WordFill, head_products_scratch, products_scratch, quantized_x,
    refuse_heads_of_x, takes_q8,
};

use super::operand::{Access, Weight, include, lanes, part_rows, refusal};
use super::{plan_of, scratch_refusal};
use crate::buffer::{Span, plain};
use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Limit of a grid's third dimension, which counts heads.
const MAX_HEADS_AT_ONCE: usize = 65_535;

/// Rows, and tokens, per tile of `matmul_many`.
const TILE: usize = 64;

pub(in super::super) fn plan_matmul(op: &MatMul<TensorDesc>, facts: &Facts) -> Plan {
    let refused = refuse_products(&op.w, op.x.n_rows, facts)
        .or_else(|| facts.binding_refusal("x", &op.x))
        .or_else(|| facts.binding_refusal("y", &op.y));
    let mut scratch = Scratch::default();
    products_scratch(&op.w, op.x.n_rows, &mut scratch);
    plan_of(refused, scratch.bytes(), None)
}

/// Why products of a weight and this number of tokens are not supported; `None` if they are.
pub(in super::super) fn refuse_products(
    w: &TensorDesc,
    n_tokens: usize,
    facts: &Facts,
) -> Option<String> {
    let mut scratch = Scratch::default();
    products_scratch(w, n_tokens, &mut scratch);
    refusal("w", w, 1, facts).or_else(|| scratch_refusal(&scratch, facts))
}

pub(in super::super) fn lower_matmul(op: &MatMul<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (x, n_tokens, y) = (input(op, out)?, op.x.desc().n_rows, plain(&op.y)?);
    let weight = Weight::new(&op.w, 1, out)?;
    let bias = op.bias.as_ref().map(plain).transpose()?;
    Product { weight: &weight, x, n_tokens, bias, relu: false, experts: None, y, last: None }
        .lower(out)
}

/// The x of a product as the shader reads it.
fn input(op: &MatMul<Tensor>, out: &mut Lowering<'_>) -> Result<Span> {
    quantized_x(op.w.desc().format, &op.x, out)?.map_or_else(|| plain(&op.x), Ok)
}

pub(in super::super) fn plan_head_matmul(op: &HeadMatMul<TensorDesc>, facts: &Facts) -> Plan {
    let mut scratch = Scratch::default();
    head_products_scratch(op, &mut scratch);
    let fits = part_rows(&op.w, 1, facts) >= op.w.n_rows;
    let refused = refusal("w", &op.w, 1, facts)
        .or_else(|| (!fits).then(|| "w exceeds the limit of a binding".to_owned()))
        .or_else(|| refuse_heads_of_x(op))
        .or_else(|| scratch_refusal(&scratch, facts))
        .or_else(|| facts.binding_refusal("x", &op.x))
        .or_else(|| facts.binding_refusal("y", &op.y));
    plan_of(refused, scratch.bytes(), None)
}

/// Lowers the products of all heads to one dispatch; in prefill to several if the limit of work
/// requires it.
pub(in super::super) fn lower_head_matmul(
    op: &HeadMatMul<Tensor>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let (desc, n_tokens) = (op.w.desc(), op.x.desc().n_rows);
    if n_tokens == 0 || op.n_out() == 0 {
        return Ok(());
    }
    let quantized = quantized_x(desc.format, &op.x, out)?;
    let x = quantized.map_or_else(|| plain(&op.x), Ok)?;
    let weight = Weight::new(&op.w, 1, out)?;
    let row = out.facts().tuning.row as usize;
    let lanes = lanes(&desc, out.facts());
    let source = decode_source(Source::new("head_matmul"), n_tokens, row);
    let source = include(source, "weight", &desc, Access::dots(n_tokens, out.facts()))?;
    let [Some(part), None] = [weight.parts.first(), weight.parts.get(1)] else {
        return Err(driver("compile", "the weight does not fit one binding"));
    };
    let spans = [part.span.clone(), weight.tables(out)?, x, plain(&op.y)?];
    let per_head = (n_tokens * op.n_out() * desc.n_cols).max(1) as u64;
    let at_once = usize::try_from(out.facts().max_work / per_head).unwrap_or(usize::MAX);
    for first in (0..op.n_head).step_by(at_once.clamp(1, MAX_HEADS_AT_ONCE)) {
        let numbers = [
            first,
            op.n_out(),
            weight.row_words,
            desc.n_cols,
            op.x_step(),
            op.y_step(),
            op.n_head,
            n_tokens,
            lanes,
        ];
        let mut grid = out.facts().grid(op.n_out().div_ceil(row / lanes));
        grid[2] = (op.n_head - first).min(at_once.clamp(1, MAX_HEADS_AT_ONCE)) as u32;
        out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)?;
    }
    Ok(())
}

/// Whether one binding covers the whole weight.
pub(in super::super) fn is_one_binding(w: &Tensor, out: &Lowering<'_>) -> Result<bool> {
    Ok(Weight::new(w, 1, out)?.parts.len() == 1)
}

/// Names of the matrices of `matmul_three`, which are its maximum number.
const NAMES: [&str; 3] = ["first", "second", "third"];

/// Lowers products of one token with up to three matrices of one format to one dispatch. Each
/// matrix fits a binding.
pub(in super::super) fn lower_together(
    ops: &[&MatMul<Tensor>],
    out: &mut Lowering<'_>,
) -> Result<()> {
    let Some(first) = ops.first() else { return Ok(()) };
    let x = input(first, out)?;
    let weight = Weight::new(&first.w, 1, out)?;
    let (desc, lanes) = (weight.desc, lanes(&weight.desc, out.facts()));
    let row = out.facts().tuning.row as usize;
    let access = Access::dots(1, out.facts());
    let mut source = decode_source(Source::new("matmul_three"), 1, row);
    for name in NAMES {
        source = include(source, name, &desc, access)?.include(name, "lib/matmul_row");
    }
    let [mut weights, mut biases, mut results] = [const { Vec::new() }; 3];
    let (mut n_rows, mut n_groups, mut has_bias) = ([0; NAMES.len()], 0, 0);
    for (i, n_rows) in n_rows.iter_mut().enumerate() {
        // A missing matrix has no rows; the first is bound in its place.
        let op = ops.get(i).unwrap_or(first);
        let weight = Weight::new(&op.w, 1, out)?;
        weights.extend(weight.parts.first().map(|part| part.span.clone()));
        biases.push(out.plain_or_dummy(op.bias.as_ref())?);
        results.push(plain(&op.y)?);
        if i < ops.len() {
            *n_rows = weight.desc.n_rows;
            n_groups += n_rows.div_ceil(row / lanes);
            has_bias |= usize::from(op.bias.is_some()) << i;
        }
    }
    let numbers = [n_rows[0], n_rows[1], n_rows[2], weight.row_words, desc.n_cols, lanes, has_bias];
    let mut spans = weights;
    spans.push(weight.tables(out)?);
    spans.extend([x.clone(), x.clone(), x]);
    spans.extend(biases);
    spans.extend(results);
    let grid = out.facts().grid(n_groups);
    out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)
}

/// `y[t, i] = w[i] . x[t] + bias[i]`. `q8` is the scratch memory for x in Q8 blocks.
pub(in super::super) fn products(
    w: &Tensor,
    x: &Span,
    n_tokens: usize,
    bias: Option<&Tensor>,
    y: Span,
    q8: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_values = n_tokens * w.desc().n_cols;
    let mut x = x.clone();
    if takes_q8(w.desc().format) {
        quantize(&x, n_values, &q8, None, out)?;
        x = q8;
    }
    let weight = Weight::new(w, 1, out)?;
    let bias = bias.map(plain).transpose()?;
    Product { weight: &weight, x, n_tokens, bias, relu: false, experts: None, y, last: None }
        .lower(out)
}

/// Quantises `n_values` of `x`, which are whole blocks, to Q8 in `q`.
pub(in super::super) fn quantize(
    x: &Span,
    n_values: usize,
    q: &Span,
    clear: Option<WordFill<Span>>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_blocks = n_values / 32;
    let none = WordFill { span: q.clone(), n: 0, n_zero: 0, word: 0 };
    let clear = clear.unwrap_or(none);
    let grid = out.facts().grid(n_blocks.div_ceil(8).max(clear.n.div_ceil(1024)));
    let numbers = [n_blocks as u32, clear.n as u32, clear.word, clear.n_zero as u32];
    let spans = [x.clone(), q.clone(), clear.span];
    out.dispatch(&Source::new("quantize").set("ROW", 64), &spans, &numbers, grid)
}

/// Restricts a product to the experts of each token. A pair is a token and an expert that the token
/// uses (`shaders/experts_pairs.wgsl`).
#[derive(Clone)]
pub(super) struct ExpertTokens {
    pub(super) pairs: Span,
    /// Begin and end of the rows of each expert.
    pub(super) rows: Span,
    pub(super) n_expert: usize,
    /// Maximum number of rows of an expert; y has as many columns.
    pub(super) max_rows: usize,
    /// Whether x has a row per pair; otherwise one per token.
    pub(super) x_by_pair: bool,
}

/// `y[t, i] = weight[i] . x[t] + bias[i]`; with experts, `y` has a row per pair, with a column for
/// each row of the pair's expert.
pub(super) struct Product<'a> {
    pub(super) weight: &'a Weight,
    /// Activations, in the format that the weight's shader reads.
    pub(super) x: Span,
    pub(super) n_tokens: usize,
    pub(super) bias: Option<Span>,
    /// Applies ReLU to the results.
    pub(super) relu: bool,
    pub(super) experts: Option<ExpertTokens>,
    pub(super) y: Span,
    /// The end of a feed-forward block, for up to [`FEW_TOKENS`] tokens.
    pub(super) last: Option<LastProduct>,
}

/// What the last product of a feed-forward block does beside it.
pub(super) struct LastProduct {
    /// Adds the products to y.
    pub(super) accumulate: bool,
    /// Numbers of active neurons per token, which are added to `active`.
    pub(super) counts: Span,
    pub(super) active: Span,
}

impl Product<'_> {
    pub(super) fn lower(&self, out: &mut Lowering<'_>) -> Result<()> {
        match (self.n_tokens, &self.experts) {
            (0, _) => Ok(()),
            (1..=FEW_TOKENS, None) => self.lower_few_tokens(out),
            (_, None) => {
                let (dummy, max_rows) = (out.dummy(), self.weight.desc.n_rows);
                let (pairs, rows) = (dummy.clone(), dummy);
                let x_by_pair = false;
                let none = ExpertTokens { pairs, rows, n_expert: 0, max_rows, x_by_pair };
                self.lower_many_tokens(&none, "lib/every_token", out)
            }
            (_, Some(experts)) => self.lower_many_tokens(experts, "lib/group_tokens", out),
        }
    }

    fn lower_few_tokens(&self, out: &mut Lowering<'_>) -> Result<()> {
        let (desc, last) = (&self.weight.desc, self.last.as_ref());
        let row = out.facts().tuning.row as usize;
        let lanes = lanes(desc, out.facts());
        let source = decode_source(Source::new("matmul_few"), self.n_tokens, row);
        let source = include(source, "weight", desc, Access::dots(self.n_tokens, out.facts()))?;
        let source = source.include("weight", "lib/matmul_row");
        for part in &self.weight.parts {
            let numbers = [
                desc.n_rows,
                part.first,
                part.n,
                self.weight.row_words,
                desc.n_cols,
                self.n_tokens,
                lanes,
                usize::from(self.bias.is_some()),
                usize::from(self.relu),
                usize::from(last.is_some_and(|last| last.accumulate)),
                // Each count is added once.
                if last.is_some() && part.first == 0 { self.n_tokens } else { 0 },
            ];
            let grid = out.facts().grid(part.n.div_ceil(row / lanes));
            let bias = self.bias.clone().unwrap_or_else(|| out.dummy());
            let tables = self.weight.tables(out)?;
            let counts = last.map_or_else(|| out.dummy(), |last| last.counts.clone());
            // What is not written is bound to y, since the dummy buffer may be bound for reading.
            let carried = last.map_or(&self.y, |last| &last.active).clone();
            let (x, y) = (self.x.clone(), self.y.clone());
            let spans = [part.span.clone(), tables, x, bias, counts, y, carried];
            out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)?;
        }
        Ok(())
    }

    fn lower_many_tokens(
        &self,
        experts: &ExpertTokens,
        which: &'static str,
        out: &mut Lowering<'_>,
    ) -> Result<()> {
        let desc = &self.weight.desc;
        let name = if takes_q8(desc.format) { "matmul_many" } else { "matmul_many_float" };
        let source = Source::new(name).include("which", which);
        let source = include(source, "weight", desc, Access::Tile)?;
        // The product of the output matrix (one row per vocabulary entry) and hundreds of tokens
        // would exceed the work limit of a dispatch. The matrices of experts are small enough.
        let tile_work = (self.n_tokens * desc.n_cols * TILE).max(1) as u64;
        let rows_per_dispatch = match experts.n_expert {
            0 => TILE.saturating_mul((out.facts().max_work / tile_work).max(1) as usize),
            _ => desc.n_rows,
        };
        let row = 4 * self.weight.row_words as u64;
        for part in self.weight.parts.iter().flat_map(|part| part.split(rows_per_dispatch, row)) {
            let numbers = [
                experts.max_rows,
                part.first,
                part.n,
                self.weight.row_words,
                desc.n_cols,
                self.n_tokens,
                usize::from(self.bias.is_some()),
                usize::from(self.relu),
                experts.n_expert,
                usize::from(experts.x_by_pair),
            ];
            let n_rows = part.n.min(experts.max_rows);
            let tiles =
                [n_rows.div_ceil(TILE), self.n_tokens.div_ceil(TILE), experts.n_expert.max(1)];
            let spans = [
                part.span.clone(),
                self.weight.tables(out)?,
                self.x.clone(),
                self.bias.clone().unwrap_or_else(|| out.dummy()),
                experts.pairs.clone(),
                experts.rows.clone(),
                self.y.clone(),
            ];
            let grid = tiles.map(|n| n as u32);
            out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)?;
        }
        Ok(())
    }
}

/// Adds the includes of a decode shader whose workgroups have `row` invocations.
pub(super) fn decode_source(source: Source, n_tokens: usize, row: usize) -> Source {
    let tokens = if n_tokens == 1 { "lib/tokens_one" } else { "lib/tokens_four" };
    source.include("tokens", tokens).set("ROW", row)
}
