//! Dense matrix products, also used by other ops.

use hal::op::{HeadMatMul, MatMul};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};
use lower::{
    FEW_TOKENS, Scratch, WordFill, head_products_scratch, products_scratch, quantized_x,
    refuse_heads_of_x, takes_q8,
};

use super::operand::{Weight, refusal};
use super::{BLOCK, plan_of};
use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Threads per block of `matmul_few`, and rows that a set of lanes processes at once.
const FEW_BLOCK: u32 = 128;
const FEW_ROWS: usize = 2;
/// Limit of a grid's second dimension, which counts heads.
const MAX_HEADS: usize = 65_535;
/// Rows and tokens per tile of `matmul_many`.
const TILE_ROWS: usize = 128;
const TILE_TOKENS: usize = 64;
/// Rows per tile of `matmul_some`, which is used if larger tiles would not fill the device.
const SMALL_TILE_ROWS: usize = 32;
/// Rows per tile of `matmul_some` with float weights.
const SMALL_FLOAT_TILE_ROWS: usize = 64;

pub(crate) fn plan_matmul(op: &MatMul<TensorDesc>, _facts: &Facts) -> Plan {
    let mut scratch = Scratch::default();
    products_scratch(&op.w, op.x.n_rows, &mut scratch);
    plan_of(refuse_products(&op.w), scratch.bytes())
}

/// Why products with a weight are not supported; `None` if they are.
pub(crate) fn refuse_products(w: &TensorDesc) -> Option<String> {
    refusal("w", w)
}

pub(crate) fn lower_matmul(op: &MatMul<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (desc, x) = (op.x.desc(), input(op, out)?);
    let (weight, bias, y) =
        (&Weight::new(&op.w)?, out.plain_or_null(op.bias.as_ref())?, plain(&op.y)?);
    Product { bias, ..Product::new(weight, x, desc.n_rows, y) }.lower(out);
    Ok(())
}

pub(crate) fn plan_head_matmul(op: &HeadMatMul<TensorDesc>, _facts: &Facts) -> Plan {
    let mut scratch = Scratch::default();
    head_products_scratch(op, &mut scratch);
    let too_many = (op.n_head > MAX_HEADS).then(|| format!("more than {MAX_HEADS} heads"));
    plan_of(refuse_products(&op.w).or(too_many).or_else(|| refuse_heads_of_x(op)), scratch.bytes())
}

/// Lowers the products of all heads to one launch of the decode kernel. In prefill it reads the
/// weights once per eight tokens, from the L2 cache.
pub(crate) fn lower_head_matmul(op: &HeadMatMul<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let quantized = quantized_x(op.w.desc().format, &op.x, out)?;
    let x = quantized.map_or_else(|| plain(&op.x), Ok)?;
    let (x_desc, y) = (op.x.desc(), plain(&op.y)?);
    let heads = Heads {
        n: op.n_head,
        n_out: op.n_out(),
        x_cols: x_desc.n_cols,
        y_cols: op.y.desc().n_cols,
    };
    let weight = &Weight::new(&op.w)?;
    if x_desc.n_rows > 0 {
        Product::new(weight, x, x_desc.n_rows, y).launch_few(heads, out);
    }
    Ok(())
}

/// `y[t, i] = w[i] . x[t] + bias[i]`. `q8` is the scratch memory for x in Q8 blocks.
pub(crate) fn products(
    w: &Tensor,
    mut x: Span,
    n_tokens: usize,
    bias: Option<&Tensor>,
    y: Span,
    q8: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_values = n_tokens * w.desc().n_cols;
    if takes_q8(w.desc().format) {
        quantize(x, n_values, q8, None, out);
        x = q8;
    }
    let weight = Weight::new(w)?;
    let bias = out.plain_or_null(bias)?;
    Product { bias, ..Product::new(&weight, x, n_tokens, y) }.lower(out);
    Ok(())
}

/// The x of a product as the kernel reads it.
fn input(op: &MatMul<Tensor>, out: &mut Lowering<'_>) -> Result<Span> {
    quantized_x(op.w.desc().format, &op.x, out)?.map_or_else(|| plain(&op.x), Ok)
}

/// Maximum number of matrices of `matmul_three`.
const MAX_PRODUCTS_TOGETHER: usize = 3;

/// Lowers products of one token with up to three matrices of one format to one launch.
pub(crate) fn lower_together(ops: &[&MatMul<Tensor>], out: &mut Lowering<'_>) -> Result<()> {
    let Some(first) = ops.first() else { return Ok(()) };
    let x = input(first, out)?;
    let weight = Weight::new(&first.w)?;
    let (desc, lanes) = (weight.desc, weight.lanes());
    let per_block = FEW_ROWS * (FEW_BLOCK as usize / lanes);
    let none = [ptr(Span::NONE); MAX_PRODUCTS_TOGETHER];
    let [mut weights, mut biases, mut results] = [none; 3];
    let [mut n_rows, mut n_blocks] = [[0; MAX_PRODUCTS_TOGETHER]; 2];
    for (i, op) in ops.iter().enumerate() {
        weights[i] = ptr(Weight::new(&op.w)?.span);
        biases[i] = ptr(out.plain_or_null(op.bias.as_ref())?);
        results[i] = ptr(plain(&op.y)?);
        n_rows[i] = op.w.desc().n_rows;
        n_blocks[i] = n_rows[i].div_ceil(per_block);
    }
    let mut args = [weights, biases, results].concat();
    args.extend([ptr(weight.tables(out)), ptr(x)]);
    args.extend(n_rows.into_iter().chain(n_blocks).map(word));
    args.extend([word(weight.row_words), word(desc.n_cols), word(lanes)]);
    let grid = [n_blocks.iter().sum(), 1, 1];
    out.launch(Unit::weight("matmul_few", desc.format), "matmul_three", grid, FEW_BLOCK, &args);
    Ok(())
}

/// Quantises `n_values` of `x` (whole blocks) to Q8 in `q`, and sets the words of `clear`.
pub(crate) fn quantize(
    x: Span,
    n_values: usize,
    q: Span,
    clear: Option<WordFill<Span>>,
    out: &mut Lowering<'_>,
) {
    let n_blocks = n_values / 32;
    let clear = clear.unwrap_or(WordFill { span: Span::NONE, n: 0, n_zero: 0, word: 0 });
    let threads = (8 * n_blocks).max(clear.n.div_ceil(16));
    let args = [
        ptr(x),
        ptr(q),
        ptr(clear.span),
        word(n_blocks),
        word(clear.n),
        word(clear.word as usize),
        word(clear.n_zero),
    ];
    let grid = [threads.div_ceil(BLOCK as usize), 1, 1];
    out.launch(Unit::plain("quantize"), "quantize", grid, BLOCK, &args);
}

/// Restricts a product to the experts of each token. A pair is a token and an expert that the token
/// uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertTokens {
    /// Index of each expert's first pair, then one word per pair with the token in the lower 16
    /// bits.
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
#[derive(Clone, Copy, Debug)]
pub(super) struct Product<'a> {
    pub(super) weight: &'a Weight,
    /// Activations, in the format that the weight's kernel reads.
    pub(super) x: Span,
    pub(super) n_tokens: usize,
    /// Null without bias.
    pub(super) bias: Span,
    /// Applies ReLU to the results.
    pub(super) relu: bool,
    /// Adds the results to y; up to 16 tokens only.
    pub(super) add: bool,
    /// Adds the first span's words, one per token, to the second span's floats; up to 16 tokens only.
    pub(super) counted: Option<[Span; 2]>,
    pub(super) experts: Option<ExpertTokens>,
    pub(super) y: Span,
}

/// The heads of a product: each has `n_out` rows of the weight, and the same part of each row of x and
/// of y. Without heads, there is one.
#[derive(Clone, Copy, Debug)]
struct Heads {
    n: usize,
    n_out: usize,
    /// Columns of x and of y.
    x_cols: usize,
    y_cols: usize,
}

impl<'a> Product<'a> {
    /// The product alone.
    pub(super) fn new(weight: &'a Weight, x: Span, n_tokens: usize, y: Span) -> Product<'a> {
        let (bias, relu, add, counted, experts) = (Span::NONE, false, false, None, None);
        Product { weight, x, n_tokens, bias, relu, add, counted, experts, y }
    }

    pub(super) fn lower(&self, out: &mut Lowering<'_>) {
        match (self.n_tokens, self.experts) {
            (0, _) => {}
            (1..=FEW_TOKENS, None) => self.lower_few_tokens(out),
            (_, experts) => self.lower_many_tokens(experts, out),
        }
    }

    fn lower_few_tokens(&self, out: &mut Lowering<'_>) {
        let TensorDesc { n_rows, n_cols, .. } = self.weight.desc;
        self.launch_few(Heads { n: 1, n_out: n_rows, x_cols: n_cols, y_cols: n_rows }, out);
    }

    fn launch_few(&self, heads: Heads, out: &mut Lowering<'_>) {
        let desc = &self.weight.desc;
        // Activations are floats, or twelve words for each block of 32.
        let words = |n: usize| if takes_q8(desc.format) { n / 32 * 12 } else { n };
        let lanes = self.weight.lanes();
        let kernel = match self.n_tokens {
            1 => "matmul_one",
            2..=4 => "matmul_four",
            _ => "matmul_eight",
        };
        let mut args = vec![
            ptr(self.weight.span),
            ptr(self.weight.tables(out)),
            ptr(self.x),
            ptr(self.bias),
            ptr(self.y),
            word(heads.n_out),
            word(self.weight.row_words),
            word(desc.n_cols),
            word(words(heads.x_cols / heads.n)),
            word(heads.y_cols / heads.n),
        ];
        if self.n_tokens > 1 {
            args.push(word(self.n_tokens));
        }
        let [counts, active] = self.counted.unwrap_or([Span::NONE; 2]);
        // The bits of `RELU` and `ADD` in `kernels-cuda/matmul_few.cu`.
        let after = usize::from(self.relu) | usize::from(self.add) << 1;
        args.extend([word(lanes), word(after), ptr(counts), ptr(active)]);
        let per_block = FEW_ROWS * (FEW_BLOCK as usize / lanes);
        let grid = [heads.n_out.div_ceil(per_block), heads.n, 1];
        out.launch(Unit::weight("matmul_few", desc.format), kernel, grid, FEW_BLOCK, &args);
    }

    fn lower_many_tokens(&self, experts: Option<ExpertTokens>, out: &mut Lowering<'_>) {
        debug_assert!(!self.add && self.counted.is_none(), "the tiled kernels only write y");
        let desc = &self.weight.desc;
        let none = Span::NONE;
        let no_experts = ExpertTokens {
            pairs: none,
            rows: none,
            n_expert: 0,
            max_rows: desc.n_rows,
            x_by_pair: false,
        };
        let experts = experts.unwrap_or(no_experts);
        let args = [
            ptr(self.weight.span),
            ptr(self.weight.tables(out)),
            ptr(self.x),
            ptr(self.bias),
            ptr(experts.pairs),
            ptr(experts.rows),
            ptr(self.y),
            word(experts.max_rows),
            word(desc.n_rows),
            word(self.weight.row_words),
            word(desc.n_cols),
            word(self.n_tokens),
            word(usize::from(self.relu)),
            word(experts.n_expert),
            word(usize::from(experts.x_by_pair)),
        ];
        let n_rows = desc.n_rows.min(experts.max_rows);
        let n_columns = self.n_tokens.div_ceil(TILE_TOKENS) * experts.n_expert.max(1);
        // Both kernels add up an output in the same order, so the choice does not change results.
        let large = n_rows.div_ceil(TILE_ROWS) * n_columns >= out.facts().n_units as usize;
        let (kernel, tile) = match (large, takes_q8(desc.format)) {
            (true, _) => ("matmul_many", TILE_ROWS),
            (false, true) => ("matmul_some", SMALL_TILE_ROWS),
            (false, false) => ("matmul_some", SMALL_FLOAT_TILE_ROWS),
        };
        let grid =
            [n_rows.div_ceil(tile), self.n_tokens.div_ceil(TILE_TOKENS), experts.n_expert.max(1)];
        let facts = out.facts();
        let matrix = if takes_q8(desc.format) { facts.mma } else { facts.mma_floats };
        let file = if matrix { "matmul_many" } else { "matmul_plain" };
        out.launch(Unit::weight(file, desc.format), kernel, grid, BLOCK, &args);
    }
}
