//! Qwen 1, Qwen 2 and 2.5 (biases on queries, keys and values) and Qwen 3 (norms of queries and keys
//! instead), dense and with experts, and the text
//! halves of vision models.

use hal::op::Pairing;

use super::llama::LLAMA;
use super::sections::{consecutive, interleaved};
use crate::{ArchSpec, Positions, QkNorm, Routing};

pub(super) const QWEN: ArchSpec = ArchSpec {
    name: "qwen",
    models: "Qwen 1",
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    half_n_ff: true,
    ..LLAMA
};

pub(super) const QWEN2: ArchSpec = ArchSpec {
    name: "qwen2",
    models: "Qwen 2 and 2.5",
    positions: Positions::Rotary(Pairing::Halves),
    ..LLAMA
};

/// Qwen 2 with experts, and a shared expert in addition to the selected ones.
pub(super) const QWEN2MOE: ArchSpec = ArchSpec {
    name: "qwen2moe",
    models: "Qwen 1.5 and 2 with experts",
    routing: Routing { renormalise: false, ..QWEN2.routing },
    ..QWEN2
};

pub(super) const QWEN3: ArchSpec = ArchSpec {
    name: "qwen3",
    models: "Qwen 3",
    qk_norm: Some(QkNorm::HEADS),
    rank_softmax: true,
    ..QWEN2
};

pub(super) const QWEN3MOE: ArchSpec = ArchSpec {
    name: "qwen3moe",
    models: "Qwen 3 with experts (30B-A3B, 235B-A22B)",
    rank_softmax: false,
    ..QWEN3
};

pub(super) const QWEN2VL: ArchSpec = ArchSpec {
    name: "qwen2vl",
    models: "Qwen2-VL and Qwen2.5-VL (text)",
    mixer: consecutive,
    windows: false,
    ..QWEN2
};

pub(super) const QWEN3VL: ArchSpec = ArchSpec {
    name: "qwen3vl",
    models: "Qwen3-VL (text)",
    mixer: interleaved,
    windows: false,
    rank_softmax: false,
    ..QWEN3
};

pub(super) const QWEN3VLMOE: ArchSpec =
    ArchSpec { name: "qwen3vlmoe", models: "Qwen3-VL with experts (text)", ..QWEN3VL };
