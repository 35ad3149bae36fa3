//! MiniCPM: factors on embeddings, layer outputs and logits; MiniCPM 3 with latent attention.

use hal::op::Pairing;

use super::llama::LLAMA;
use crate::{ArchSpec, Factor, KvKind, Positions, ScaleKeys, ScaleRules};

/// The factors of MiniCPM 3, whose files have no keys.
const SCALES: ScaleRules = ScaleRules {
    embedding: Factor::Number(12.0),
    residual: Factor::PerRootLayers(1.4),
    logits: Factor::PerWidth(256.0),
    keys: ScaleKeys::None,
};

/// Old files have no keys. Logits are divided by `n_embd / 256` as in the model's own code;
/// llama.cpp multiplies by it in such files.
pub(super) const MINICPM: ArchSpec = ArchSpec {
    name: "minicpm",
    models: "MiniCPM 1B, 2B and S-1B, MiniCPM4",
    scales: ScaleRules { logits: Factor::TimesWidth(1.0 / 256.0), keys: ScaleKeys::All, ..SCALES },
    windows: false,
    ..LLAMA
};

pub(super) const MINICPM3: ArchSpec = ArchSpec {
    name: "minicpm3",
    models: "MiniCPM3 4B",
    kv: KvKind::Latent,
    positions: Positions::Rotary(Pairing::Halves),
    scales: SCALES,
    ..MINICPM
};
