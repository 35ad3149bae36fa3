//! The tiers of a plan: bytes on devices, in memory and on disk, what the disk costs, and what more
//! memory would bring.

use super::{Report, shown_rate};
use crate::cli::failure::Failure;
use crate::engine::{EngineOptions, ReadRates, Tiers};
use crate::model::Model;
use crate::placement::{Forecast, Task, plan};
use hal::Bytes;
use runtime::Runtime;
use serde_json::{Value, json};
use std::cell::OnceCell;

/// The memory that a plan compares with.
const MORE: Bytes = Bytes(8 << 30);

/// Adds what the disk costs to forecasts.
pub(super) struct DiskCosts<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) model: &'a Model,
    pub(super) settings: &'a EngineOptions,
    rates: OnceCell<Option<ReadRates>>,
}

impl<'a> DiskCosts<'a> {
    pub(super) fn new(
        runtime: &'a Runtime,
        model: &'a Model,
        settings: &'a EngineOptions,
    ) -> DiskCosts<'a> {
        DiskCosts { runtime, model, settings, rates: OnceCell::new() }
    }

    /// Measures the disk if nothing has needed its speed before.
    fn rates(&self) -> Option<ReadRates> {
        *self.rates.get_or_init(|| self.runtime.disk_rates(self.model))
    }

    /// The tiers of a run with the placement of `forecast` and `more` host memory, and the forecast
    /// with the time that the disk takes. A run that is refused never ends by its forecast.
    fn add_to(
        &self,
        forecast: Forecast,
        more: Bytes,
    ) -> (Forecast, Result<Option<Tiers>, runtime::Error>) {
        let tiers = self.runtime.disk_tiers(self.model, self.settings, &forecast, more);
        let forecast = match &tiers {
            Ok(None) => forecast,
            Ok(Some(tiers)) => match self.rates() {
                Some(rate) => {
                    let prompt = forecast.prompt.map(|seconds| tiers.prompt_seconds(seconds, rate));
                    let seconds = tiers.token_seconds(forecast.seconds, rate);
                    forecast.with_disk(seconds, prompt)
                }
                None => forecast,
            },
            Err(_) => {
                let prompt = forecast.prompt.map(|_| f64::INFINITY);
                forecast.with_disk(f64::INFINITY, prompt)
            }
        };
        (forecast, tiers)
    }

    /// `forecast` with the time that the disk takes.
    pub(super) fn alternative(&self, forecast: Forecast) -> Forecast {
        self.add_to(forecast, Bytes(0)).0
    }

    /// `forecast` with the time that the disk takes, the tiers, and why a run would be refused.
    pub(super) fn main(
        &self,
        forecast: Forecast,
        task: &Task,
    ) -> (Forecast, PlanTiers, Option<String>) {
        let bare = forecast.clone();
        let (forecast, tiers) = self.add_to(forecast, Bytes(0));
        let (tiers, refused) = match tiers {
            Ok(tiers) => (tiers, None),
            Err(error) => (None, Some(why(error))),
        };
        let mut more = Vec::new();
        if let Some(budget) = task.devices.get(1).map(|device| device.budget)
            && budget < Bytes::MAX
        {
            let mut larger = task.clone();
            larger.devices[1].budget = budget + MORE;
            more.push(("device memory", self.alternative(plan(&larger))));
        }
        if tiers.is_some() || refused.is_some() {
            more.push(("RAM", self.add_to(bare, MORE).0));
        }
        let bandwidth = tiers.and_then(|_| self.rates()).map(|rates| rates.bandwidth);
        (forecast, PlanTiers { tiers, bandwidth, more }, refused)
    }
}

/// The message and the help of an error as one text.
pub(super) fn why(error: runtime::Error) -> String {
    let failure = Failure::from(error);
    let causes: String = failure.causes.iter().map(|cause| format!(": {cause}")).collect();
    let help = failure.help.map_or(String::new(), |help| format!("; {help}"));
    format!("{}{causes}{help}", failure.message)
}

/// The tiers of a plan.
#[derive(Debug, Default)]
pub(super) struct PlanTiers {
    /// `None` if all weights fit into memory.
    pub(super) tiers: Option<Tiers>,
    /// Bytes per second of the disk; `None` if unknown or unused.
    pub(super) bandwidth: Option<f64>,
    /// What [`MORE`] of a memory would bring, by its name.
    more: Vec<(&'static str, Forecast)>,
}

impl Report {
    /// Bytes on devices, in host memory and on disk.
    pub(super) fn bytes_by_tier(&self) -> [Bytes; 3] {
        let devices = (1..self.devices.len()).map(|device| self.used(device)).sum();
        let on_disk = self.disk.tiers.map_or(Bytes(0), |tiers| tiers.on_disk());
        [devices, self.needed - on_disk, on_disk]
    }

    /// Rows of the answer, each with its label.
    pub(super) fn tier_rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = Vec::new();
        if let Some(seconds) = self.forecast.prompt.filter(|seconds| seconds.is_finite()) {
            let n = self.forecast.n_prompt;
            let text = format!("{} s after a prompt of {n} tokens", shown_rate(seconds, 2));
            rows.push(("1st token", text));
        }
        if let Some(tiers) = &self.disk.tiers {
            rows.push(("tiers", self.tiers_text(tiers)));
            rows.push(("disk", self.disk_text(tiers)));
        }
        // If all weights fit into memory, more of it may bring nothing.
        let gains = |faster: &Forecast| {
            self.disk.tiers.is_some() || faster.rate() > 1.001 * self.forecast.rate()
        };
        let more = self.disk.more.iter().filter(|(_, forecast)| gains(forecast));
        let more = more.map(|(what, forecast)| {
            format!("of {what}: {} tokens/s", shown_rate(forecast.rate(), 1))
        });
        let more: Vec<String> = more.collect();
        if !more.is_empty() {
            rows.push(("8 GiB more", more.join("; ")));
        }
        rows
    }

    fn tiers_text(&self, tiers: &Tiers) -> String {
        let [devices, memory, disk] = self.bytes_by_tier();
        let on_devices = match self.devices.len() {
            1 => String::new(),
            _ => format!("{devices} on devices, "),
        };
        let (always, cache) = (tiers.pinned + tiers.copies, tiers.cache);
        format!(
            "{on_devices}{memory} in memory ({always} of weights always, {cache} for those in use), {disk} on disk"
        )
    }

    fn disk_text(&self, tiers: &Tiers) -> String {
        let Tiers {
            read_per_token,
            needed_per_token,
            by_profile,
            read_ahead,
            row_reads_per_token,
            ..
        } = tiers;
        let speed = match self.disk.bandwidth {
            Some(rate) => format!(" at {:.2} GB/s", rate / 1e9),
            None => ", whose speed is unknown (--assume cpu,disk=3GB/s)".to_owned(),
        };
        let chosen = match (read_per_token == read_ahead, *row_reads_per_token > 0.0) {
            (true, _) => String::new(),
            (false, true) => format!(", in {row_reads_per_token:.0} neurons"),
            (false, false) => ", with experts".to_owned(),
        };
        let uses = match (chosen.is_empty(), *by_profile, *row_reads_per_token > 0.0) {
            (true, ..) => "",
            (false, true, _) => " used as in the profile",
            (false, false, true) => " used as is typical (no profile)",
            (false, false, false) => " all used equally often (no profile)",
        };
        format!(
            "a token reads {read_per_token}{speed}; {:.0} % of the {needed_per_token} that it needs from the CPU are in memory{chosen}{uses}",
            100.0 * tiers.hits()
        )
    }

    /// What takes most of a token's time, as a word.
    pub(super) fn limit(&self) -> &'static str {
        let parts = &self.forecast.parts;
        let all = [
            ("cpu", parts.cpu),
            ("devices", parts.devices),
            ("hand-offs", parts.hand_offs),
            ("disk", parts.disk),
        ];
        all.iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("cpu", |(name, _)| name)
    }

    /// The tiers in the JSON report.
    pub(super) fn tiers_value(&self) -> Value {
        let [devices, memory, disk] = self.bytes_by_tier();
        let tiers = self.disk.tiers;
        json!({
            "device_bytes": devices.0,
            "memory_bytes": memory.0,
            "disk_bytes": disk.0,
            "always_bytes": tiers.map(|tiers| (tiers.pinned + tiers.copies).0),
            "cache_bytes": tiers.map(|tiers| tiers.cache.0),
            "hits": tiers.map(|tiers| tiers.hits()),
            "hits_from": tiers.map(|tiers| if tiers.by_profile { "profile" } else { "uniform" }),
            "needed_bytes_per_token": tiers.map(|tiers| tiers.needed_per_token.0),
            "disk_bytes_per_token": tiers.map(|tiers| tiers.read_per_token.0),
            "disk_neurons_per_token": tiers.map(|tiers| tiers.row_reads_per_token),
            "disk_bytes_per_prompt": tiers.map(|tiers| tiers.read_per_prompt.0),
            "disk_bytes_per_second": self.disk.bandwidth,
            "more_bytes": MORE.0,
            "with_more": self.disk.more.iter().map(|(what, forecast)| {
                json!({ "of": what, "tokens_per_second": forecast.rate() })
            }).collect::<Vec<_>>(),
        })
    }
}
