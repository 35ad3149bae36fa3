//! Snowflake Arctic: a dense block after attention, beside experts that read the layer's input.

use super::llama::LLAMA;
use crate::{ArchSpec, DenseBeside};

pub(super) const ARCTIC: ArchSpec = ArchSpec {
    name: "arctic",
    models: "Snowflake Arctic 480B",
    windows: false,
    dense_beside: DenseBeside::EarlyExperts,
    ..LLAMA
};
