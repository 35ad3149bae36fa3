//! Cases of SparseFfn: every format in every layout, with different row lists.

use hal::format::Format;
use hal::op::{Activation, Down, FfnKind, MAX_COUNTED_TOKENS, NEVER_DENSE, Skip, SparseFfn};
use hal::{Op, PackDesc, Result, Rows, Tensor};

use super::ffn_experts::Experts;
use super::{WIDEST, widths};
use crate::Case;
use crate::rig::{POISON, Rig, f32_bytes};
use crate::weights::weight_formats;

/// Why [`DownLayout::Across`] of a quantised format has a wider tolerance.
pub(super) const ROUNDED: &str =
    "a value of h halfway between two steps of Q8 may be rounded either way";

/// Orientation of the down matrix on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DownLayout {
    /// Stored with one row per neuron.
    Stored,
    /// Transposed on import.
    Transposed,
    /// One row per output, the usual layout of GGUF files.
    Across,
}

pub(super) const DOWN_LAYOUTS: [DownLayout; 3] =
    [DownLayout::Stored, DownLayout::Transposed, DownLayout::Across];

/// The rows of the row list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListedRows {
    /// No list: all rows for every token.
    All,
    /// A list with capacity 0.
    ZeroCapacity,
    Empty,
    First,
    Last,
    /// Some rows, each needed by some tokens.
    Some,
    /// Every row, for every token.
    Every,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) format: Format,
    pub(super) down: Format,
    pub(super) layout: DownLayout,
    pub(super) kind: FfnKind,
    pub(super) activation: Activation,
    pub(super) skip: Skip,
    pub(super) listed: ListedRows,
    pub(super) n_tokens: usize,
    pub(super) biases: bool,
    pub(super) experts: Option<Experts>,
    pub(super) accumulate: bool,
    /// Whether the op counts the hits of rows, which it can for up to 16 tokens.
    pub(super) hits: bool,
    /// All matrices have rows of [`WIDEST`] values.
    pub(super) widest: bool,
}

impl Spec {
    /// Gated ReLU over all rows, in one format.
    pub(super) fn new(format: Format, layout: DownLayout) -> Spec {
        Spec {
            format,
            down: format,
            layout,
            kind: FfnKind::Gated,
            activation: Activation::Relu,
            skip: Skip::NotPositive,
            listed: ListedRows::All,
            n_tokens: 5,
            biases: false,
            experts: None,
            accumulate: false,
            hits: true,
            widest: false,
        }
    }

    pub(super) fn n_embd(&self) -> usize {
        if self.widest {
            return WIDEST;
        }
        widths(self.format)[usize::from(self.format.block_values() == 32)]
    }

    pub(super) fn n_rows(&self) -> usize {
        let block = self.down.block_values();
        if let Some(experts) = self.experts {
            return experts.n_rows(if self.layout == DownLayout::Stored { 1 } else { block });
        }
        match (self.layout, block) {
            (DownLayout::Transposed | DownLayout::Across, _) if self.widest => WIDEST,
            (DownLayout::Stored, _) | (_, 1) => 67,
            (DownLayout::Transposed | DownLayout::Across, 32) => 96,
            (DownLayout::Transposed | DownLayout::Across, block) => 2 * block,
        }
    }

    pub(super) fn n_out(&self) -> usize {
        match self.layout {
            DownLayout::Stored if self.widest => WIDEST,
            DownLayout::Stored => widths(self.down)[usize::from(self.down.block_values() == 32)],
            DownLayout::Transposed | DownLayout::Across => 67,
        }
    }

    pub(super) fn case(self, name: String) -> Case {
        let rounded = self.layout == DownLayout::Across && self.down.quants().is_some();
        let case = Case::new(name, move |rig| run(rig, &self));
        if rounded { case.with_tolerance(1e-5, ROUNDED) } else { case }
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        for layout in DOWN_LAYOUTS {
            let spec = Spec::new(format, layout);
            for n_tokens in [1, 2, 5, 16, 17, 33, 100, 515] {
                let name = format!("SparseFfn/{format}/{layout:?}/t{n_tokens}");
                cases.push(Spec { n_tokens, ..spec }.case(name));
            }
            for n_tokens in [1, 17] {
                let name = format!("SparseFfn/{format}/{layout:?}/widest/t{n_tokens}");
                cases.push(Spec { n_tokens, widest: true, ..spec }.case(name));
            }
            // Kernels may do more at once if no hits are counted.
            for n_tokens in [1, 3, 7] {
                let (biases, accumulate) = (n_tokens == 3, n_tokens == 7);
                let name = format!("SparseFfn/{format}/{layout:?}/uncounted/t{n_tokens}");
                let uncounted = Spec { n_tokens, biases, accumulate, hits: false, ..spec };
                cases.push(uncounted.case(name));
            }
            if layout == DownLayout::Across {
                continue;
            }
            for n_tokens in [1, 5, 17, 40, 515] {
                let name = format!("SparseFfn/{format}/{layout:?}/listed/t{n_tokens}");
                cases.push(Spec { n_tokens, listed: ListedRows::Some, ..spec }.case(name));
            }
            for listed in
                [ListedRows::Empty, ListedRows::First, ListedRows::Last, ListedRows::Every]
            {
                let name =
                    format!("SparseFfn/{format}/{layout:?}/listed-{listed:?}").to_lowercase();
                let name = name.replace("sparseffn", "SparseFfn");
                cases.push(Spec { listed, n_tokens: 40, ..spec }.case(format!("{name}/t40")));
                cases.push(Spec { listed, ..spec }.case(name));
            }
        }
        let mut mixed = vec![(format, Format::F32)];
        // For F32 this pair would duplicate the first pair of BF16.
        if format != Format::F32 {
            mixed.push((Format::BF16, format));
        }
        for (up, down) in mixed {
            for layout in DOWN_LAYOUTS {
                let name = format!("SparseFfn/{up}+{down}/{layout:?}/mixed");
                cases.push(Spec { down, ..Spec::new(up, layout) }.case(name));
            }
        }
        let body = move |rig: &mut Rig| independent_tokens(rig, format, TokenRows::Dense);
        cases.push(Case::new(format!("SparseFfn/{format}/alone"), body));
        let body = move |rig: &mut Rig| independent_tokens(rig, format, TokenRows::SameList);
        cases.push(Case::new(format!("SparseFfn/{format}/alone/same-list"), body));
        let body = move |rig: &mut Rig| independent_tokens(rig, format, TokenRows::OwnList);
        cases.push(Case::new(format!("SparseFfn/{format}/alone/own-list"), body));
    }
    cases
}

/// Imports a random down matrix in the layout of `spec`.
pub(super) fn import_down(rig: &mut Rig, spec: &Spec) -> Result<Tensor> {
    let (n_rows, n_out) = (spec.n_rows(), spec.n_out());
    let source = match spec.layout {
        DownLayout::Stored => rig.matrix(n_rows, n_out, spec.down)?,
        DownLayout::Transposed => rig.matrix(n_out, n_rows, spec.down)?,
        DownLayout::Across => {
            let n_matrices = spec.experts.map_or(1, |experts| experts.n_filled());
            rig.matrix(n_matrices * n_out, n_rows / n_matrices, spec.down)?
        }
    };
    let transpose = spec.layout == DownLayout::Transposed;
    let pack = PackDesc { transpose, ..PackDesc::whole(source.desc()) };
    rig.device.import("down", &pack, &source)
}

/// The op of `spec` with new random data.
pub(super) fn build(rig: &mut Rig, spec: &Spec) -> Result<SparseFfn<Tensor>> {
    let (n_rows, n_out, n_tokens) = (spec.n_rows(), spec.n_out(), spec.n_tokens);
    let gate = match spec.kind {
        FfnKind::Plain => None,
        FfnKind::Gated | FfnKind::GatedBoth => {
            Some(rig.weight(n_rows, spec.n_embd(), spec.format)?)
        }
    };
    let up = rig.weight(n_rows, spec.n_embd(), spec.format)?;
    let down = import_down(rig, spec)?;
    let bias = |rig: &mut Rig, rows, cols| {
        if spec.biases { rig.input(rows, cols).map(Some) } else { Ok(None) }
    };
    let bias_gate = if gate.is_some() { bias(rig, 1, n_rows)? } else { None };
    let bias_up = bias(rig, 1, n_rows)?;
    let bias_down = bias(rig, spec.experts.map_or(1, |experts| experts.n_expert), n_out)?;
    let threshold = match spec.skip {
        Skip::BelowPerRow => {
            let values: Vec<f32> = rig.rng.floats(n_rows).iter().map(|v| v.abs() / 2.0).collect();
            Some(rig.tensor(1, n_rows, &values)?)
        }
        Skip::Never | Skip::NotPositive | Skip::GaussianCut(_) => None,
    };
    let expert_weights = match spec.experts {
        Some(experts) => Some(experts.weights(rig, n_tokens)?),
        None => None,
    };
    let rows = rows(rig, spec)?;
    let initial_y = if spec.accumulate {
        rig.rng.floats(n_tokens * n_out)
    } else {
        vec![POISON; n_tokens * n_out]
    };
    // `hits` may have more columns than the block has rows, since one tensor may serve blocks of
    // different sizes.
    let hits = if spec.hits && n_tokens <= MAX_COUNTED_TOKENS {
        Some(rig.output_from(1, n_rows + 3, &vec![5.0; n_rows + 3])?)
    } else {
        None
    };
    Ok(SparseFfn {
        gate,
        up,
        down,
        bias_gate,
        bias_up,
        bias_down,
        threshold,
        expert_weights,
        rows,
        x: rig.input(n_tokens, spec.n_embd())?,
        y: rig.output_from(n_tokens, n_out, &initial_y)?,
        active: rig.output_from(1, n_tokens, &vec![3.0; n_tokens])?,
        hits,
        union: None,
        kind: spec.kind,
        activation: spec.activation,
        skip: spec.skip,
        experts: spec.experts.map(|experts| experts.ranges(n_rows)),
        orientation: if spec.layout == DownLayout::Across {
            Down::AcrossNeurons
        } else {
            Down::ByNeuron
        },
        dense_from: NEVER_DENSE,
        accumulate: spec.accumulate,
    })
}

fn rows(rig: &mut Rig, spec: &Spec) -> Result<Rows<Tensor>> {
    let (n_rows, n) = (spec.n_rows(), spec.n_tokens);
    let ids = match spec.listed {
        ListedRows::All => return Ok(Rows::All),
        ListedRows::ZeroCapacity | ListedRows::Empty => Vec::new(),
        ListedRows::First => vec![0],
        ListedRows::Last => vec![n_rows as u32 - 1],
        ListedRows::Some => rig.rng.choose(n_rows * 2 / 3, n_rows),
        ListedRows::Every => (0..n_rows as u32).collect(),
    };
    let wanted: Vec<bool> = match spec.listed {
        ListedRows::Some => (0..ids.len() * n).map(|_| rig.rng.chance(0.6)).collect(),
        ListedRows::All | ListedRows::ZeroCapacity | ListedRows::Empty => Vec::new(),
        ListedRows::First | ListedRows::Last | ListedRows::Every => vec![true; ids.len() * n],
    };
    let capacity = if spec.listed == ListedRows::ZeroCapacity { 0 } else { n_rows };
    // Capacity for more tokens than the step has: each row has more membership words than needed.
    Ok(Rows::Active(rig.row_set(capacity, n + 16, &ids, n, &|i, t| wanted[i * n + t])?))
}

pub(super) fn run(rig: &mut Rig, spec: &Spec) -> Result<()> {
    let op = build(rig, spec)?;
    finish(rig, op)
}

pub(super) fn finish(rig: &mut Rig, op: SparseFfn<Tensor>) -> Result<()> {
    rig.run([Op::SparseFfn(op.clone())])?;
    rig.watch("y", &op.y)?;
    rig.watch("active", &op.active)?;
    op.hits.as_ref().map_or(Ok(()), |hits| rig.watch("hits", hits))
}

/// The rows of a step with a single token of the batch.
#[derive(Clone, Copy, PartialEq)]
enum TokenRows {
    Dense,
    /// The batch's row list; the token needs only some of its rows.
    SameList,
    /// A list of only the rows that the token needs, as in a separate step.
    OwnList,
}

/// In steps of up to 16 tokens, a token's values do not depend on the other tokens.
fn independent_tokens(rig: &mut Rig, format: Format, token_rows: TokenRows) -> Result<()> {
    let spec = Spec { n_tokens: 16, ..Spec::new(format, DownLayout::Transposed) };
    let (n_rows, n_out, n) = (spec.n_rows(), spec.n_out(), spec.n_tokens);
    let mut op = build(rig, &spec)?;
    let ids = rig.rng.choose(n_rows * 2 / 3, n_rows);
    let wanted: Vec<bool> = (0..ids.len() * n).map(|_| rig.rng.chance(0.5)).collect();
    let wants = |i: usize, t: usize| wanted[i * n + t];
    if token_rows != TokenRows::Dense {
        op.rows = Rows::Active(rig.row_set(n_rows, n, &ids, n, &wants)?);
    }
    finish(rig, op.clone())?;
    let (whole, x) = (rig.read(&op.y)?, rig.read(&op.x)?);
    let n_embd = spec.n_embd();
    for t in 0..n {
        let mut single = op.clone();
        single.x = rig.input(1, n_embd)?;
        rig.queue.write(&single.x, &f32_bytes(&x[t * n_embd..][..n_embd]))?;
        single.y = rig.output(1, n_out)?;
        single.active = rig.tensor(1, 1, &[0.0])?;
        match token_rows {
            TokenRows::Dense => {}
            TokenRows::SameList => {
                let set = rig.row_set(n_rows, 1, &ids, 1, &|i, _| wants(i, t))?;
                single.rows = Rows::Active(set);
            }
            TokenRows::OwnList => {
                let own = ids.iter().enumerate().filter(|(i, _)| wants(*i, t));
                let own: Vec<u32> = own.map(|(_, &id)| id).collect();
                single.rows = Rows::Active(rig.row_set(n_rows, 1, &own, 1, &|_, _| true)?);
            }
        }
        rig.run([Op::SparseFfn(single.clone())])?;
        let y = rig.read(&single.y)?;
        rig.same_bits(&format!("token {t}"), &whole[t * n_out..][..n_out], &y);
    }
    Ok(())
}
