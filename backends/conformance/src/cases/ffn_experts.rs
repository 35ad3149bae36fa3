//! Cases of SparseFfn with experts, in decode and in prefill, with different routings.

use hal::format::Format;
use hal::op::{Activation, ExpertRanges, Skip};
use hal::{Result, Tensor};

use super::ffn::{DOWN_LAYOUTS, DownLayout, ListedRows, Spec, build, finish};
use crate::Case;
use crate::rig::{Rig, f32_bytes};
use crate::weights::weight_formats;

/// Which tokens use which experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Routing {
    /// Each token uses up to `n_used` experts; some experts have no token.
    Mixed,
    /// Every token uses `n_used` experts.
    Full,
    /// All tokens use the last expert only.
    One,
    /// No token uses any expert.
    None,
}

/// The experts of a block. The second expert has no rows, as can happen on a device that holds only
/// some of the block's neurons.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub(super) n_expert: usize,
    n_used: usize,
    /// Rows per expert, before rounding up to whole blocks of the down matrix.
    rows: usize,
    routing: Routing,
}

impl Experts {
    /// Each token uses up to `n_used` of `n_expert` experts.
    pub(super) fn mixed(n_expert: usize, n_used: usize, rows: usize) -> Experts {
        Experts { n_expert, n_used, rows, routing: Routing::Mixed }
    }

    /// Number of experts that have rows.
    pub(super) fn n_filled(&self) -> usize {
        self.n_expert - 1
    }

    /// Total number of rows, with each expert's rounded up to a multiple of `block`.
    pub(super) fn n_rows(&self, block: usize) -> usize {
        self.n_filled() * self.rows.next_multiple_of(block)
    }

    /// The `experts` parameter of the op, for `n_rows`.
    pub(super) fn ranges(&self, n_rows: usize) -> ExpertRanges {
        let rows = (n_rows / self.n_filled()) as u32;
        let start = |g: usize| (g - usize::from(g > 1)) as u32 * rows;
        ExpertRanges { starts: (0..=self.n_expert).map(start).collect(), n_used: self.n_used }
    }

    pub(super) fn weights(&self, rig: &mut Rig, n_tokens: usize) -> Result<Tensor> {
        let mut weights = vec![0.0; n_tokens * self.n_expert];
        for weights in weights.chunks_exact_mut(self.n_expert) {
            let used = match self.routing {
                Routing::Mixed => {
                    let n = rig.rng.below(self.n_used + 1);
                    rig.rng.choose(n, self.n_expert)
                }
                Routing::Full => rig.rng.choose(self.n_used, self.n_expert),
                Routing::One => vec![self.n_expert as u32 - 1],
                Routing::None => Vec::new(),
            };
            for g in used {
                weights[g as usize] = rig.rng.float();
            }
        }
        rig.tensor(n_tokens, self.n_expert, &weights)
    }

    /// Gives the experts different numbers of rows. Only a down matrix with one row per neuron
    /// allows that.
    fn uneven(op: &mut ExpertRanges, rig: &mut Rig) {
        let mut starts = op.starts.to_vec();
        let n_rows = starts.last().map_or(0, |&end| end as usize);
        let cuts = rig.rng.choose(starts.len() - 2, n_rows);
        let inner = 1..starts.len() - 1;
        starts[inner].copy_from_slice(&cuts);
        op.starts = starts.into();
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        for layout in DOWN_LAYOUTS {
            // With SiLU all neurons are active, with ReLU about half.
            let silu = Spec {
                skip: Skip::Never,
                activation: Activation::Silu,
                experts: Some(Experts::mixed(5, 2, 43)),
                ..Spec::new(format, layout)
            };
            for n_tokens in [1, 5, 40] {
                let name = format!("SparseFfn/{format}/{layout:?}/experts/t{n_tokens}");
                cases.push(Spec { n_tokens, ..silu }.case(name));
            }
            for n_tokens in [1, 6] {
                let name = format!("SparseFfn/{format}/{layout:?}/experts-uncounted/t{n_tokens}");
                cases.push(Spec { n_tokens, hits: false, ..silu }.case(name));
            }
        }
        let body = move |rig: &mut Rig| independent_tokens(rig, format, DownLayout::Across);
        cases.push(Case::new(format!("SparseFfn/{format}/alone/experts"), body));
    }
    for format in [Format::F32, Format::Q4_0] {
        for layout in DOWN_LAYOUTS {
            for routing in [Routing::Mixed, Routing::Full, Routing::One, Routing::None] {
                for n_tokens in [1, 16, 17, 100, 530] {
                    let experts = Experts { n_expert: 7, n_used: 3, rows: 70, routing };
                    let spec = Spec {
                        n_tokens,
                        biases: n_tokens % 2 == 0,
                        accumulate: n_tokens == 17 && routing != Routing::None,
                        experts: Some(experts),
                        ..Spec::new(format, layout)
                    };
                    let name = format!("experts-{routing:?}").to_lowercase();
                    cases.push(
                        spec.case(format!("SparseFfn/{format}/{layout:?}/{name}/t{n_tokens}")),
                    );
                }
            }
        }
        for layout in [DownLayout::Stored, DownLayout::Transposed] {
            for n_tokens in [1, 9, 60] {
                let experts = Some(Experts::mixed(6, 4, 300));
                let spec = Spec { n_tokens, experts, ..Spec::new(format, layout) };
                let body = move |rig: &mut Rig| uneven(rig, &spec);
                let name = format!("SparseFfn/{format}/{layout:?}/experts-uneven/t{n_tokens}");
                cases.push(Case::new(name, body));
                let listed = Spec { listed: ListedRows::Some, ..spec };
                let name = format!("SparseFfn/{format}/{layout:?}/experts-listed/t{n_tokens}");
                cases.push(listed.case(name));
            }
        }
        let body = move |rig: &mut Rig| independent_tokens(rig, format, DownLayout::Stored);
        cases.push(Case::new(format!("SparseFfn/{format}/alone/experts-by-neuron"), body));
    }
    cases
}

fn uneven(rig: &mut Rig, spec: &Spec) -> Result<()> {
    let mut op = build(rig, spec)?;
    if let Some(experts) = &mut op.experts {
        Experts::uneven(experts, rig);
    }
    finish(rig, op)
}

/// In steps of up to 16 tokens, a token's values do not depend on which experts the others use.
fn independent_tokens(rig: &mut Rig, format: Format, layout: DownLayout) -> Result<()> {
    let experts = Some(Experts::mixed(4, 3, 64));
    let spec = Spec { n_tokens: 16, experts, ..Spec::new(format, layout) };
    let op = build(rig, &spec)?;
    let (n_embd, n_out, n_expert) = (spec.n_embd(), spec.n_out(), 4);
    let weights = op.expert_weights.clone().map_or(Ok(Vec::new()), |weights| rig.read(&weights))?;
    let x = rig.read(&op.x)?;
    rig.run([op.clone().into()])?;
    rig.watch("active", &op.active)?;
    let whole = rig.read(&op.y)?;
    for t in 0..spec.n_tokens {
        let mut single = op.clone();
        single.x = rig.input(1, n_embd)?;
        rig.queue.write(&single.x, &f32_bytes(&x[t * n_embd..][..n_embd]))?;
        single.expert_weights =
            Some(rig.tensor(1, n_expert, &weights[t * n_expert..][..n_expert])?);
        single.y = rig.output(1, n_out)?;
        single.active = rig.tensor(1, 1, &[0.0])?;
        rig.run([single.clone().into()])?;
        let y = rig.read(&single.y)?;
        rig.same_bits(&format!("token {t}"), &whole[t * n_out..][..n_out], &y);
    }
    Ok(())
}
