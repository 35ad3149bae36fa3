//! Qwen 2, 2.5 (offsets on queries, keys and values) and 3 (their norms instead).

use hal::op::Pairing;

use super::llama::LLAMA;
use crate::model::{ArchSpec, Positions};

pub(super) const QWEN2: ArchSpec =
    ArchSpec { name: "qwen2", positions: Positions::Rotary(Pairing::Halves), ..LLAMA };

pub(super) const QWEN3: ArchSpec = ArchSpec { name: "qwen3", qk_norm: true, ..QWEN2 };
