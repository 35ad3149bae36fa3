//! PLaMo: attention and feed-forward block share a norm.

use hal::op::Pairing;

use super::llama::LLAMA;
use crate::{ArchSpec, BlockKind, Positions};

pub(super) const PLAMO: ArchSpec = ArchSpec {
    name: "plamo",
    models: "PLaMo 13B",
    block: BlockKind::Parallel,
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    ..LLAMA
};
