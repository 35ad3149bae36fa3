//! Predicts the active neurons of a step: one or two products, then lists of the active neurons.

use hal::op::{HiddenActivation, Predict};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};
use lower::{Scratch, ScratchRange, takes_q8};

use super::matmul::{Product, quantize};
use super::operand::{Weight, refusal};
use super::{plan_of, scratch_refusal};
use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

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
        facts: &Facts,
        scratch: &mut Scratch,
    ) -> PredictScratch {
        let n = x.n_rows;
        let n_workgroups = fc2.n_rows.div_ceil(facts.tuning.flat as usize);
        let first = fc1.filter(|fc1| takes_q8(fc1.format)).map_or(0, |fc1| n * fc1.n_cols);
        PredictScratch {
            q8: scratch.q8(first),
            hidden: scratch.words(fc1.map_or(0, |fc1| n * fc1.n_rows)),
            hidden_q8: scratch.q8(if takes_q8(fc2.format) { n * fc2.n_cols } else { 0 }),
            scores: scratch.words(n * fc2.n_rows),
            counts: scratch.words(2 * n_workgroups),
        }
    }
}

pub(in super::super) fn plan_predict(op: &Predict<TensorDesc>, facts: &Facts) -> Plan {
    let mut scratch = Scratch::default();
    PredictScratch::new(op.x, op.fc1, op.fc2, facts, &mut scratch);
    let first = op.fc1.as_ref().and_then(|fc1| refusal("fc1", fc1, 1, facts));
    let refused = first
        .or_else(|| refusal("fc2", &op.fc2, 1, facts))
        .or_else(|| facts.binding_refusal("x", &op.x))
        .or_else(|| scratch_refusal(&scratch, facts));
    plan_of(refused, scratch.bytes(), None)
}

pub(in super::super) fn lower_predict(op: &Predict<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (x, fc1, fc2) = (op.x.desc(), op.fc1.as_ref().map(Operand::desc), op.fc2.desc());
    let ranges = PredictScratch::new(x, fc1, fc2, out.facts(), &mut Scratch::default());
    let n_tokens = x.n_rows;
    let scores = ranges.scores.span(out)?;
    let bias = op.bias.as_ref().map(plain).transpose()?;
    let mut steps = Vec::new();
    let mut input = plain(&op.x)?;
    if let Some(fc1) = &op.fc1 {
        let hidden = ranges.hidden.span(out)?;
        steps.push((
            fc1,
            input,
            ranges.q8,
            None,
            op.hidden == HiddenActivation::Relu,
            hidden.clone(),
        ));
        input = hidden;
    }
    steps.push((&op.fc2, input, ranges.hidden_q8, bias, false, scores.clone()));
    for (weight, mut x, q8, bias, relu, y) in steps {
        if takes_q8(weight.desc().format) {
            let q = q8.span(out)?;
            quantize(&x, n_tokens * weight.desc().n_cols, &q, None, out)?;
            x = q;
        }
        let weight = Weight::new(weight, 1, out)?;
        Product { weight: &weight, x, n_tokens, bias, relu, experts: None, y, last: None }
            .lower(out)?;
    }
    let flat = out.facts().tuning.flat as usize;
    let (n_ff, n_workgroups) = (fc2.n_rows, fc2.n_rows.div_ceil(flat));
    let (slots, counts) = (plain(&op.slots)?, ranges.counts.span(out)?);
    let common = [n_ff as u32, n_tokens as u32, op.threshold.to_bits()];
    let grid = [n_workgroups as u32, 1, 1];
    let source = Source::new("predict_count").set("FLAT", flat);
    out.dispatch(&source, &[scores.clone(), slots.clone(), counts.clone()], &common, grid)?;

    let mut spans = vec![scores, slots, counts];
    let mut numbers = common.to_vec();
    numbers.push(n_workgroups as u32);
    for set in [Some(&op.resident), op.absent.as_ref()] {
        match set {
            Some(set) => {
                spans.extend([plain(&set.ids)?, plain(&set.count)?, plain(&set.members)?]);
                numbers.extend([set.ids.desc().n_cols as u32, set.members.desc().n_cols as u32]);
            }
            None => {
                spans.extend([out.dummy(), out.dummy(), out.dummy()]);
                numbers.extend([0, 0]);
            }
        }
    }
    out.dispatch(&Source::new("predict_list").set("FLAT", flat), &spans, &numbers, grid)
}
