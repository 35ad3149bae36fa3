//! Gemma 3n: four residual streams, of which one passes through the layers; a low-rank residual;
//! per-layer embeddings; a cut-off of the gates in the first layers.

use super::gemma4::GEMMA4;
use crate::{ArchSpec, DenseBeside, GaussianCut, GlobalLayers};

pub(super) const GEMMA3N: ArchSpec = ArchSpec {
    name: "gemma3n",
    models: "Gemma 3n E2B and E4B (text)",
    keys_as_values: false,
    global_layers: Some(GlobalLayers { period: 5, first: false }),
    dense_beside: DenseBeside::None,
    altup: true,
    // 95 % of a normal distribution are below the cut-off.
    gaussian_cut: Some(GaussianCut { n_layers: 10, factor: 1.644_853_5 }),
    ..GEMMA4
};
