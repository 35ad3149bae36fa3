//! Phi 3, 3.5 and 4, and Phi 3.5 with experts.

use hal::op::Pairing;

use super::llama::LLAMA;
use crate::{ArchSpec, Positions};

pub(super) const PHI3: ArchSpec = ArchSpec {
    name: "phi3",
    models: "Phi 3, 3.5 and 4",
    positions: Positions::Rotary(Pairing::Halves),
    ..LLAMA
};

/// LayerNorm weights and biases, with an RMS norm.
pub(super) const PHIMOE: ArchSpec = ArchSpec { name: "phimoe", models: "Phi 3.5 MoE", ..PHI3 };
