//! The decisions of a run about weights on disk, for a plan: nothing is loaded or written.

use engine::{EngineOptions, NeuronReads, PagingOptions, ReadRates, Tiers};
use hal::{Bytes, MemoryReport};
use model::Model;
use placement::{CPU, Forecast};

use crate::options::Budget;
use crate::runtime::Runtime;
use crate::tiers::{IN_USE, USUAL_DEPTH, disk_speed};
use crate::{Result, neuron_reads, repack};

impl Runtime {
    /// The tiers below the devices in a run of `model` with the placement of `forecast`, if the host
    /// memory were larger by `more`; `None` if all weights fit into memory.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] or an error of the engine if what must be in memory at once does not
    /// fit.
    pub fn disk_tiers(
        &self,
        model: &Model,
        settings: &EngineOptions,
        forecast: &Forecast,
        more: Bytes,
    ) -> Result<Option<Tiers>> {
        let mut computation = self.options().computation.clone();
        if let Budget::Bytes(bytes) = &mut computation.devices.ram_budget {
            *bytes = bytes.saturating_add(more.0);
        }
        let MemoryReport { free, total } = self.machine().memory_for(model, IN_USE);
        let memory = MemoryReport {
            free: free.map(|free| free + more),
            total: total.map(|total| total + more),
        };
        let plan = |_: &EngineOptions| Some(forecast.clone());
        let asked = (&computation, memory);
        let usable = self.memory_beside_disk(model, settings, Some(forecast), plan, asked)?;
        let Some(budget) = usable else { return Ok(None) };
        let neurons = NeuronReads::Layer;
        let paging = Some(PagingOptions { budget, depth: USUAL_DEPTH, neurons });
        let settings = EngineOptions { paging, ..settings.clone() };
        let (devices, placement) = (self.machine().devices(), &forecast.placement);
        let rates = self.disk_rates(model);
        let settings =
            neuron_reads::choose(model, &devices, settings, placement, &computation, rates);
        let (settings, copies_mapped) =
            repack::foresee(model, settings, &computation, &self.machine().cpu, memory.free);
        let tiers = engine::planned_tiers(model, &devices, &settings, placement, copies_mapped)?;
        Ok(Some(tiers).filter(|tiers| tiers.on_disk() > Bytes(0)))
    }

    /// How fast the disk that `model` is on reads: assumed, cached or measured. `None` for a model
    /// without a file, or if the disk cannot be measured.
    #[must_use]
    pub fn disk_rates(&self, model: &Model) -> Option<ReadRates> {
        let measured = || {
            let observer = self.observer().as_ref();
            let speed = disk_speed(&model.file, &self.options().computation, observer)?;
            Some(ReadRates { bandwidth: speed.bandwidth, small_reads: speed.small_reads })
        };
        self.machine().disk_assumed().map(ReadRates::of_bandwidth).or_else(measured)
    }
}

/// Whether anything is placed on a device other than the CPU.
pub(crate) fn uses_devices(forecast: &Forecast) -> bool {
    let placement = &forecast.placement;
    let ends = [placement.embed, placement.head];
    placement.layers.iter().map(|layer| layer.home).chain(ends).any(|home| home != CPU)
}
