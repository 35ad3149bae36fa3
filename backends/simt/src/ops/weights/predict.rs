//! Predicts the active neurons of a step: one or two products, then lists of the active neurons.

use hal::op::{HiddenActivation, Predict};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};
use lower::{Scratch, ScratchRange, takes_q8};

use super::matmul::{Product, quantize};
use super::operand::{Weight, refusal};
use super::{BLOCK, plan_of};
use crate::buffer::{Span, plain};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

struct PredictScratch {
    q8: ScratchRange,
    hidden: ScratchRange,
    hidden_q8: ScratchRange,
    scores: ScratchRange,
    counts: ScratchRange,
}

impl PredictScratch {
    fn new(
        x: TensorDesc,
        fc1: Option<TensorDesc>,
        fc2: TensorDesc,
        scratch: &mut Scratch,
    ) -> PredictScratch {
        let n = x.n_rows;
        let first = fc1.filter(|fc1| takes_q8(fc1.format)).map_or(0, |fc1| n * fc1.n_cols);
        PredictScratch {
            q8: scratch.q8(first),
            hidden: scratch.words(fc1.map_or(0, |fc1| n * fc1.n_rows)),
            hidden_q8: scratch.q8(if takes_q8(fc2.format) { n * fc2.n_cols } else { 0 }),
            scores: scratch.words(n * fc2.n_rows),
            counts: scratch.words(2 * n_blocks(fc2)),
        }
    }
}

/// Number of blocks of [`BLOCK`] neurons; each block counts its active neurons.
fn n_blocks(fc2: TensorDesc) -> usize {
    fc2.n_rows.div_ceil(BLOCK as usize)
}

pub(crate) fn plan_predict(op: &Predict<TensorDesc>, _facts: &Facts) -> Plan {
    let mut scratch = Scratch::default();
    PredictScratch::new(op.x, op.fc1, op.fc2, &mut scratch);
    let first = op.fc1.as_ref().and_then(|fc1| refusal("fc1", fc1));
    plan_of(first.or_else(|| refusal("fc2", &op.fc2)), scratch.bytes())
}

pub(crate) fn lower_predict(op: &Predict<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (x, fc1, fc2) = (op.x.desc(), op.fc1.as_ref().map(Operand::desc), op.fc2.desc());
    let ranges = PredictScratch::new(x, fc1, fc2, &mut Scratch::default());
    let n_tokens = x.n_rows;
    let scores = ranges.scores.span(out)?;
    let bias = out.plain_or_null(op.bias.as_ref())?;
    let mut steps = Vec::new();
    let mut input = plain(&op.x)?;
    if let Some(fc1) = &op.fc1 {
        let hidden = ranges.hidden.span(out)?;
        steps.push((
            fc1,
            input,
            ranges.q8,
            Span::NONE,
            op.hidden == HiddenActivation::Relu,
            hidden,
        ));
        input = hidden;
    }
    steps.push((&op.fc2, input, ranges.hidden_q8, bias, false, scores));
    for (weight, mut x, q8, bias, relu, y) in steps {
        if takes_q8(weight.desc().format) {
            let q = q8.span(out)?;
            quantize(x, n_tokens * weight.desc().n_cols, q, None, out);
            x = q;
        }
        let weight = Weight::new(weight)?;
        Product { bias, relu, ..Product::new(&weight, x, n_tokens, y) }.lower(out);
    }
    let counts = ranges.counts.span(out)?;
    let grid = [n_blocks(fc2), 1, 1];
    let numbers = [word(fc2.n_rows), word(n_tokens), Arg::F32(op.threshold)];
    let unit = Unit::plain("predict");
    let mut args = vec![ptr(scores), ptr(plain(&op.slots)?), ptr(counts)];
    args.extend(numbers);
    out.launch(unit.clone(), "predict_count", grid, BLOCK, &args);

    args.truncate(3);
    let mut sizes = Vec::new();
    for set in [Some(&op.resident), op.absent.as_ref()] {
        match set {
            Some(set) => {
                let spans = [plain(&set.ids)?, plain(&set.count)?, plain(&set.members)?];
                args.extend(spans.map(ptr));
                sizes.extend([word(set.ids.desc().n_cols), word(set.members.desc().n_cols)]);
            }
            None => {
                args.extend([ptr(Span::NONE); 3]);
                sizes.extend([word(0); 2]);
            }
        }
    }
    args.extend(numbers);
    args.extend(sizes);
    out.launch(unit, "predict_list", grid, BLOCK, &args);
    Ok(())
}
