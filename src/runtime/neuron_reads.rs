//! Decides whether neurons on disk that a predictor chooses are read one by one.

use engine::converted;
use engine::{EngineOptions, NeuronReads, PagingOptions, ReadRates, Tiers, to_repack};
use hal::Device;
use model::Model;
use placement::Placement;
use store::SMALL_DEPTH;

use crate::options::Computation;
use crate::repack;

/// How much faster reads of single neurons must be: how many a text needs is less certain.
const MIN_GAIN: f64 = 1.25;

/// `settings`, whose paging options are set, with the way to read neurons that takes less time a
/// token by the estimate: with their layer, or one by one from a repack file that has the rows of
/// each neuron together. The first of `devices` is the CPU. `disk` is `None` if the disk could not
/// be measured.
pub(crate) fn choose(
    model: &Model,
    devices: &[Device],
    settings: EngineOptions,
    placement: &Placement,
    computation: &Computation,
    disk: Option<ReadRates>,
) -> EngineOptions {
    let (Some(paging), Some(disk)) = (settings.paging, disk) else { return settings };
    if settings.n_predicting(model) == 0 {
        return settings;
    }
    let (neurons, depth) = (NeuronReads::Bundles, paging.depth.max(SMALL_DEPTH));
    let paging = Some(PagingOptions { neurons, depth, ..paging });
    let bundled = EngineOptions { paging, ..settings.clone() };
    let size = converted::size(&to_repack(model, &bundled, &devices[0]));
    if repack::cache_for(computation, size).is_none() {
        return settings;
    }
    let tiers = |options: &EngineOptions| {
        engine::planned_tiers(model, devices, options, placement, true).ok()
    };
    let whole = tiers(&settings).map_or(f64::INFINITY, |tiers| read_seconds(&tiers, disk));
    match tiers(&bundled) {
        Some(alone) if read_seconds(&alone, disk) * MIN_GAIN < whole => bundled,
        Some(_) | None => settings,
    }
}

/// Seconds that a token's reads take by the estimate.
pub(crate) fn read_seconds(tiers: &Tiers, disk: ReadRates) -> f64 {
    tiers.token_seconds(0.0, disk)
}
