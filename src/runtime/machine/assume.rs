//! The CPU and devices that `--assume` describes.

use hal::{Bytes, MemoryReport};
use model::Model;

use super::{Machine, Result};
use crate::assumed_device::{AssumedDevice, AssumedHost, AssumedSpeed};
use crate::choice::{budget, check_budget_count, choose, device_full};
use crate::devices::Candidate;
use crate::error::DeviceError;
use crate::memory::memory_for;
use crate::notice::{Notice, SharedObserver};
use crate::options::{DeviceOptions, Options};

impl Machine {
    /// The CPU and assumed devices.
    ///
    /// # Errors
    /// [`DeviceError::Assumed`] for an invalid description, another [`DeviceError`] if a named
    /// device is not assumed.
    pub fn assume(
        options: &Options,
        assumed: &[AssumedDevice],
        observer: &SharedObserver,
    ) -> Result<Machine> {
        let refused = |what: String| DeviceError::Assumed { what, help: None };
        let mut machine = Machine::cpu(options, observer);
        let wanted = &options.computation.devices;
        let mut named: Vec<(Candidate, AssumedSpeed)> = Vec::new();
        for given in assumed {
            if given.name.as_deref().is_some_and(|name| name.eq_ignore_ascii_case("cpu")) {
                if machine.host_assumed.is_some() {
                    return Err(refused("cpu may be given only once".to_owned()));
                }
                machine.host_assumed = Some(AssumedHost::new(given));
                continue;
            }
            let n = named.len();
            let given = given.with_known_values();
            if given.disk.is_some() {
                let help = Some("the disk belongs to the machine: --assume cpu,disk=3GB/s");
                return Err(DeviceError::Assumed { what: "a device has no disk".to_owned(), help });
            }
            let name = given.name.clone().unwrap_or_else(|| format!("Assumed{n}"));
            if named.iter().any(|(other, _)| other.name == name) {
                return Err(refused(format!("the device '{name}' is given twice")));
            }
            let Some(memory) = given.memory else {
                let what = format!("'{name}' has no memory size");
                let help = Some(
                    "add memory=8GiB or another size; cards such as rtx4090 and rx7900xtx are known by name",
                );
                return Err(DeviceError::Assumed { what, help });
            };
            let speed = AssumedSpeed::of_device(&given);
            named.push((Candidate::assumed(&name, Bytes(memory)), speed));
        }
        if wanted.backend == Some("cpu") {
            return Ok(machine);
        }
        // Assumed devices match any backend.
        let any = DeviceOptions { backend: None, ..wanted.clone() };
        let found = named.iter().map(|(candidate, _)| candidate.clone()).collect();
        if wanted.layers_ignored {
            observer.notice(&Notice::WholeLayersIgnored);
        }
        let chosen = choose(&any, found, &[])?;
        check_budget_count(wanted, chosen.len())?;
        for candidate in chosen {
            let speed = named.iter().find(|(c, _)| c.name == candidate.name).map(|(_, s)| *s);
            let opened = candidate.open_with(&wanted.switches);
            let backend = opened.map_err(|error| refused(error.to_string()))?;
            let before = machine.others.len();
            let (memory, name) = (backend.memory().unwrap_or_default(), &candidate.name);
            if wanted.budgets.is_empty()
                && budget(None, memory, name, observer.as_ref())? == Bytes(0)
            {
                return Err(refused(device_full(name, memory).to_string()));
            }
            machine.add(candidate, backend, wanted, observer)?;
            machine.others[before..].iter_mut().for_each(|other| other.assumed = speed);
        }
        Ok(machine)
    }

    /// Whether at least one speed is measured, not assumed.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.host_assumed.is_none_or(|host| host.speed.is_none())
            || self.others.iter().any(|other| other.assumed.is_none())
    }

    /// Memory for a run of `model`: assumed, or as [`memory_for`].
    pub(crate) fn memory_for(&self, model: &Model, more: Bytes) -> MemoryReport {
        match self.host_assumed.and_then(|host| host.memory) {
            Some(memory) => MemoryReport { free: Some(memory), total: Some(memory) },
            None => memory_for(model, more),
        }
    }

    /// Memory of the machine: assumed, or what the system reports.
    #[must_use]
    pub fn host_memory(&self) -> MemoryReport {
        match self.host_assumed.and_then(|host| host.memory) {
            Some(memory) => MemoryReport { free: Some(memory), total: Some(memory) },
            None => self.cpu.memory().unwrap_or_default(),
        }
    }

    /// Bytes per second of the assumed disk; `None` if the disk is this machine's.
    #[must_use]
    pub fn disk_assumed(&self) -> Option<f64> {
        self.host_assumed.and_then(|host| host.disk)
    }

    /// Defaults of assumed devices that the prefill estimate depends on, as text.
    #[must_use]
    pub fn assumed_defaults(&self) -> Vec<String> {
        let cpu = [(&self.cpu, self.host_assumed.and_then(|host| host.speed))];
        let others = self.others.iter().map(|other| (&other.device, other.assumed));
        let all = cpu.into_iter().chain(others);
        all.filter_map(|(device, assumed)| assumed?.defaults(&device.info().name)).collect()
    }
}
