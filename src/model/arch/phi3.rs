//! Phi 3, 3.5 and 4.

use hal::op::Pairing;

use super::llama::LLAMA;
use crate::{ArchSpec, Positions};

pub(super) const PHI3: ArchSpec = ArchSpec {
    name: "phi3",
    models: "Phi 3, 3.5 and 4",
    positions: Positions::Rotary(Pairing::Halves),
    ..LLAMA
};
