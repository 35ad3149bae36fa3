//! OPT (125M and 1.3B to 66B: the sizes with norms before attention and feed-forward block).

use hal::op::{Activation, FfnKind, NormKind};

use super::llama::LLAMA;
use crate::{ArchSpec, Positions};

pub(super) const OPT: ArchSpec = ArchSpec {
    name: "opt",
    models: "OPT 125M and 1.3B to 66B (ReLU)",
    norm: NormKind::Layer,
    eps: Some(1e-5),
    positions: Positions::Learned { offset: 2 },
    ffn: FfnKind::Plain,
    activation: Activation::Relu,
    ..LLAMA
};
