//! Cases of SparseFfn: activations, FFN kinds, skip rules, biases, experts.

use hal::format::Format;
use hal::op::{Activation, FfnKind, Skip};

use super::ffn::{DOWN_LAYOUTS, DownLayout, ListedRows, Spec};
use super::ffn_experts::Experts;
use crate::Case;

const ACTIVATIONS: [(&str, Activation); 11] = [
    ("relu", Activation::Relu),
    ("relu2", Activation::Relu2),
    ("silu", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu-erf", Activation::GeluErf),
    ("swiglu-oai", Activation::SwigluOai { alpha: 1.702, limit: 0.8 }),
    ("swiglu-clamped", Activation::SwigluClamped { limit: 0.6 }),
    ("silu-clamped", Activation::SiluClamped { limit: 0.3 }),
    ("xielu", Activation::XIelu { positive: 0.9, negative: 1.3, slope: 0.5 }),
    ("situ", Activation::Situ { beta: 0.7, cap: 0.4 }),
    ("situ-gate-alone", Activation::Situ { beta: 4.0, cap: 0.0 }),
];

const SKIPS: [(&str, Skip); 4] = [
    ("never", Skip::Never),
    ("not-positive", Skip::NotPositive),
    ("per-row", Skip::BelowPerRow),
    ("gaussian", Skip::GaussianCut(0.4)),
];

const KINDS: [FfnKind; 3] = [FfnKind::Plain, FfnKind::Gated, FfnKind::GatedBoth];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in [Format::F32, Format::Q4_0] {
        for (name, activation) in ACTIVATIONS {
            for kind in KINDS {
                for (how, skip) in SKIPS {
                    if is_valid(activation, kind, skip) {
                        let name = format!("SparseFfn/{format}/{name}/{kind:?}/{how}");
                        each_layout(&mut cases, &name, &|layout| Spec {
                            activation,
                            kind,
                            skip,
                            ..Spec::new(format, layout)
                        });
                    }
                }
            }
        }
        each_layout(&mut cases, &format!("SparseFfn/{format}/biases"), &|layout| Spec {
            biases: true,
            accumulate: true,
            ..Spec::new(format, layout)
        });
        each_layout(&mut cases, &format!("SparseFfn/{format}/biases/plain"), &|layout| Spec {
            biases: true,
            kind: FfnKind::Plain,
            ..Spec::new(format, layout)
        });
        each_layout(&mut cases, &format!("SparseFfn/{format}/accumulate"), &|layout| Spec {
            accumulate: true,
            n_tokens: 17,
            ..Spec::new(format, layout)
        });
        each_layout(&mut cases, &format!("SparseFfn/{format}/groups"), &|layout| Spec {
            experts: Some(Experts::mixed(4, 3, 17)),
            biases: true,
            skip: Skip::Never,
            activation: Activation::Silu,
            ..Spec::new(format, layout)
        });
        each_layout(&mut cases, &format!("SparseFfn/{format}/groups/per-row"), &|layout| Spec {
            experts: Some(Experts::mixed(5, 2, 9)),
            skip: Skip::BelowPerRow,
            activation: Activation::Silu,
            ..Spec::new(format, layout)
        });
        each_layout(&mut cases, &format!("SparseFfn/{format}/groups/one-token"), &|layout| Spec {
            experts: Some(Experts::mixed(67, 40, 1)),
            n_tokens: 1,
            accumulate: true,
            ..Spec::new(format, layout)
        });
        for layout in [DownLayout::Stored, DownLayout::Transposed] {
            for (how, skip) in SKIPS {
                if is_valid(Activation::Relu, FfnKind::Gated, skip) && how != "gaussian" {
                    let spec = Spec { listed: ListedRows::Some, skip, ..Spec::new(format, layout) };
                    cases.push(spec.case(format!("SparseFfn/{format}/listed/{how}/{layout:?}")));
                }
            }
            for n_tokens in [1, 5, 40] {
                let spec = Spec {
                    listed: ListedRows::ZeroCapacity,
                    n_tokens,
                    ..Spec::new(format, layout)
                };
                cases.push(spec.case(format!("SparseFfn/{format}/no-room/{layout:?}/t{n_tokens}")));
            }
            let spec = Spec {
                listed: ListedRows::Some,
                experts: Some(Experts::mixed(3, 2, 30)),
                biases: true,
                accumulate: true,
                ..Spec::new(format, layout)
            };
            cases.push(spec.case(format!("SparseFfn/{format}/listed/groups/{layout:?}")));
        }
    }
    cases
}

fn each_layout(cases: &mut Vec<Case>, name: &str, spec: &dyn Fn(DownLayout) -> Spec) {
    cases.extend(DOWN_LAYOUTS.map(|layout| spec(layout).case(format!("{name}/{layout:?}"))));
}

/// Only exactly sparse activations may skip non-positive values, and clamped activations need a
/// gate.
fn is_valid(activation: Activation, kind: FfnKind, skip: Skip) -> bool {
    let clamps = activation.up_limit().is_some() || activation.up_cap().is_some();
    (skip != Skip::NotPositive || activation.is_exactly_sparse())
        && (!clamps || kind == FfnKind::Gated)
}
