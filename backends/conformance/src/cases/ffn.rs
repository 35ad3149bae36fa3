//! SparseFfn: every format in every layout, with different row lists.

use hal::format::Format;
use hal::op::{Activation, Down, FfnKind, MOST_COUNTED, NEVER_DENSE, Skip, SparseFfn};
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
    /// Transposed by the pack.
    Transposed,
    /// One row per output, as in ordinary files.
    Across,
}

pub(super) const DOWN_LAYOUTS: [DownLayout; 3] =
    [DownLayout::Stored, DownLayout::Transposed, DownLayout::Across];

/// The listed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// No list: all rows for every token.
    All,
    /// A list with capacity 0.
    NoRoom,
    Empty,
    First,
    Last,
    /// Some rows, each needed by some tokens.
    Some,
    /// Every row, for every token.
    Every,
}

/// Parameters of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) format: Format,
    pub(super) down: Format,
    pub(super) layout: DownLayout,
    pub(super) kind: FfnKind,
    pub(super) activation: Activation,
    pub(super) skip: Skip,
    pub(super) listed: Listed,
    pub(super) n_tokens: usize,
    pub(super) biases: bool,
    pub(super) experts: Option<Experts>,
    pub(super) accumulate: bool,
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
            listed: Listed::All,
            n_tokens: 5,
            biases: false,
            experts: None,
            accumulate: false,
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

    /// The case for this block.
    pub(super) fn case(self, name: String) -> Case {
        let rounded = self.layout == DownLayout::Across && self.down.quants().is_some();
        let case = Case::new(name, move |rig| run(rig, &self));
        if rounded { case.within(1e-5, ROUNDED) } else { case }
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
            if layout == DownLayout::Across {
                continue;
            }
            for n_tokens in [1, 5, 17, 40, 515] {
                let name = format!("SparseFfn/{format}/{layout:?}/listed/t{n_tokens}");
                cases.push(Spec { n_tokens, listed: Listed::Some, ..spec }.case(name));
            }
            for listed in [Listed::Empty, Listed::First, Listed::Last, Listed::Every] {
                let name =
                    format!("SparseFfn/{format}/{layout:?}/listed-{listed:?}").to_lowercase();
                let name = name.replace("sparseffn", "SparseFfn");
                cases.push(Spec { listed, n_tokens: 40, ..spec }.case(format!("{name}/t40")));
                cases.push(Spec { listed, ..spec }.case(name));
            }
        }
        let mut mixed = vec![(format, Format::F32)];
        // With F32 the same pair would occur twice.
        if format != Format::F32 {
            mixed.push((Format::BF16, format));
        }
        for (up, down) in mixed {
            for layout in DOWN_LAYOUTS {
                let name = format!("SparseFfn/{up}+{down}/{layout:?}/mixed");
                cases.push(Spec { down, ..Spec::new(up, layout) }.case(name));
            }
        }
        let body = move |rig: &mut Rig| alone(rig, format, Alone::Dense);
        cases.push(Case::new(format!("SparseFfn/{format}/alone"), body));
        let body = move |rig: &mut Rig| alone(rig, format, Alone::SameList);
        cases.push(Case::new(format!("SparseFfn/{format}/alone/same-list"), body));
        let body = move |rig: &mut Rig| alone(rig, format, Alone::OwnList);
        cases.push(Case::new(format!("SparseFfn/{format}/alone/own-list"), body));
    }
    cases
}

/// Imports down in this orientation.
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

/// The op with new random data.
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
    let bias_down = bias(rig, spec.experts.map_or(1, |experts| experts.n_group), n_out)?;
    let threshold = match spec.skip {
        Skip::BelowPerRow => {
            let values: Vec<f32> = rig.rng.floats(n_rows).iter().map(|v| v.abs() / 2.0).collect();
            Some(rig.tensor(1, n_rows, &values)?)
        }
        Skip::Never | Skip::NotPositive | Skip::GaussianCut(_) => None,
    };
    let group_weight = match spec.experts {
        Some(experts) => Some(experts.weights(rig, n_tokens)?),
        None => None,
    };
    let rows = rows(rig, spec)?;
    let old = if spec.accumulate {
        rig.rng.floats(n_tokens * n_out)
    } else {
        vec![POISON; n_tokens * n_out]
    };
    // Wider than the number of rows, since one tensor may serve shares of different sizes.
    let hits = if n_tokens <= MOST_COUNTED {
        Some(rig.updated(1, n_rows + 3, &vec![5.0; n_rows + 3])?)
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
        group_weight,
        rows,
        x: rig.input(n_tokens, spec.n_embd())?,
        y: rig.updated(n_tokens, n_out, &old)?,
        active: rig.updated(1, n_tokens, &vec![3.0; n_tokens])?,
        hits,
        union: None,
        kind: spec.kind,
        activation: spec.activation,
        skip: spec.skip,
        groups: spec.experts.map(|experts| experts.groups(n_rows)),
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
        Listed::All => return Ok(Rows::All),
        Listed::NoRoom | Listed::Empty => Vec::new(),
        Listed::First => vec![0],
        Listed::Last => vec![n_rows as u32 - 1],
        Listed::Some => rig.rng.choose(n_rows * 2 / 3, n_rows),
        Listed::Every => (0..n_rows as u32).collect(),
    };
    let wanted: Vec<bool> = match spec.listed {
        Listed::Some => (0..ids.len() * n).map(|_| rig.rng.chance(0.6)).collect(),
        Listed::All | Listed::NoRoom | Listed::Empty => Vec::new(),
        Listed::First | Listed::Last | Listed::Every => vec![true; ids.len() * n],
    };
    let capacity = if spec.listed == Listed::NoRoom { 0 } else { n_rows };
    // Capacity for more tokens than the step has, so that rows have more words than it needs.
    Ok(Rows::Active(rig.row_set(capacity, n + 16, &ids, n, &|i, t| wanted[i * n + t])?))
}

pub(super) fn run(rig: &mut Rig, spec: &Spec) -> Result<()> {
    let op = build(rig, spec)?;
    finish(rig, op)
}

/// Runs the op and reads its outputs.
pub(super) fn finish(rig: &mut Rig, op: SparseFfn<Tensor>) -> Result<()> {
    rig.run([Op::SparseFfn(op.clone())])?;
    rig.watch("y", &op.y)?;
    rig.watch("active", &op.active)?;
    op.hits.as_ref().map_or(Ok(()), |hits| rig.watch("hits", hits))
}

/// How a token of a batch is run alone.
#[derive(Clone, Copy, PartialEq)]
enum Alone {
    Dense,
    /// With the batch's list, of which it needs only some rows.
    SameList,
    /// With a list of its own rows only, as a separate step would have.
    OwnList,
}

/// Up to 16 tokens, a token's values do not depend on its neighbours.
fn alone(rig: &mut Rig, format: Format, how: Alone) -> Result<()> {
    let spec = Spec { n_tokens: 16, ..Spec::new(format, DownLayout::Transposed) };
    let (n_rows, n_out, n) = (spec.n_rows(), spec.n_out(), spec.n_tokens);
    let mut op = build(rig, &spec)?;
    let ids = rig.rng.choose(n_rows * 2 / 3, n_rows);
    let wanted: Vec<bool> = (0..ids.len() * n).map(|_| rig.rng.chance(0.5)).collect();
    let wants = |i: usize, t: usize| wanted[i * n + t];
    if how != Alone::Dense {
        op.rows = Rows::Active(rig.row_set(n_rows, n, &ids, n, &wants)?);
    }
    finish(rig, op.clone())?;
    let (whole, x) = (rig.read(&op.y)?, rig.read(&op.x)?);
    let n_embd = spec.n_embd();
    for t in 0..n {
        let mut one = op.clone();
        one.x = rig.input(1, n_embd)?;
        rig.queue.write(&one.x, &f32_bytes(&x[t * n_embd..][..n_embd]))?;
        one.y = rig.output(1, n_out)?;
        one.active = rig.tensor(1, 1, &[0.0])?;
        match how {
            Alone::Dense => {}
            Alone::SameList => {
                let set = rig.row_set(n_rows, 1, &ids, 1, &|i, _| wants(i, t))?;
                one.rows = Rows::Active(set);
            }
            Alone::OwnList => {
                let own = ids.iter().enumerate().filter(|(i, _)| wants(*i, t));
                let own: Vec<u32> = own.map(|(_, &id)| id).collect();
                one.rows = Rows::Active(rig.row_set(n_rows, 1, &own, 1, &|_, _| true)?);
            }
        }
        rig.run([Op::SparseFfn(one.clone())])?;
        let y = rig.read(&one.y)?;
        rig.same_bits(&format!("token {t}"), &whole[t * n_out..][..n_out], &y);
    }
    Ok(())
}
