//! The interpreter as the executor of the fake CUDA driver.

#![allow(unsafe_code, reason = "kernels access memory by address")]

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fakes::{Executor, Geometry, LaunchFault, Range};

use crate::counts::{Counter, Launch, in_flight};
use crate::fault::{Fault, FaultKind};
use crate::launch::launch;
use crate::module::Module;

/// Changes the text of a unit before it is loaded; `None` leaves it as it is.
pub type Change = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Loads PTX and runs its kernels.
#[derive(Default)]
pub struct Interpreter {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Loaded modules with their devices.
    modules: HashMap<u64, (i32, Arc<Module>)>,
    n_loaded: u64,
    /// All unchanged units that were loaded so far, by their text: each is parsed once.
    parsed: HashMap<String, Arc<Module>>,
    changes: HashMap<i32, Change>,
    /// Launches since counting began, of the devices whose launches are counted.
    launches: HashMap<i32, Vec<Launch>>,
    faults: Vec<(i32, Fault)>,
}

impl fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interpreter").finish_non_exhaustive()
    }
}

impl Interpreter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on changes the units that a device loads, so that a test sees whether a fault of a
    /// kernel is found; `None` ends it.
    pub fn change(&self, device: i32, change: Option<Change>) {
        let mut state = self.state();
        match change {
            Some(change) => drop(state.changes.insert(device, change)),
            None => drop(state.changes.remove(&device)),
        }
    }

    /// From now on counts what the launches of a device execute.
    pub fn count(&self, device: i32) {
        self.state().launches.insert(device, Vec::new());
    }

    /// The launches of a device since [`count`](Self::count), which ends.
    #[must_use]
    pub fn take_launches(&self, device: i32) -> Vec<Launch> {
        self.state().launches.remove(&device).unwrap_or_default()
    }

    /// The faults of a device's kernels since the last call.
    #[must_use]
    pub fn take_faults(&self, device: i32) -> Vec<Fault> {
        let mut state = self.state();
        let (taken, kept) = state.faults.drain(..).partition(|(of, _)| *of == device);
        state.faults = kept;
        let taken: Vec<(i32, Fault)> = taken;
        taken.into_iter().map(|(_, fault)| fault).collect()
    }

    /// The units loaded so far, without changed ones. What they have executed is counted over all
    /// devices.
    #[must_use]
    pub fn modules(&self) -> Vec<Arc<Module>> {
        self.state().parsed.values().cloned().collect()
    }

    fn module(&self, text: &str) -> Result<Arc<Module>, String> {
        if let Some(module) = self.state().parsed.get(text) {
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(Module::parse(text)?);
        let mut state = self.state();
        // Two devices may have parsed it at the same time.
        Ok(Arc::clone(state.parsed.entry(text.to_owned()).or_insert(module)))
    }

    fn loaded(&self, module: u64) -> Option<(i32, Arc<Module>)> {
        self.state().modules.get(&module).cloned()
    }
}

impl Executor for Interpreter {
    fn load(&self, device: i32, image: &str) -> Result<u64, String> {
        let change = self.state().changes.get(&device).cloned();
        let module = match change.and_then(|change| change(image)) {
            None => self.module(image)?,
            Some(text) => Arc::new(Module::parse(&text)?),
        };
        let mut state = self.state();
        state.n_loaded += 1;
        let number = state.n_loaded;
        state.modules.insert(number, (device, module));
        Ok(number)
    }

    fn unload(&self, module: u64) {
        self.state().modules.remove(&module);
    }

    fn parameters(&self, module: u64, kernel: &str) -> Option<Vec<u32>> {
        let (_, module) = self.loaded(module)?;
        Some(module.entry(kernel)?.parameters.iter().map(|parameter| parameter.bytes).collect())
    }

    unsafe fn launch(
        &self,
        module: u64,
        kernel: &str,
        geometry: &Geometry,
        values: &[u64],
        ranges: &[Range],
    ) -> Result<(), LaunchFault> {
        let gone = || LaunchFault::Kernel("the module was unloaded".to_owned());
        let (device, module) = self.loaded(module).ok_or_else(gone)?;
        let entry = module.entry(kernel).ok_or_else(gone)?;
        let counts = self.state().launches.contains_key(&device);
        let mut counter = counts.then(|| Counter::new(entry, values, ranges));
        // SAFETY: passed on.
        let done = unsafe { launch(&module, entry, geometry, values, ranges, counter.as_mut()) };
        if let Some((launches, counter)) = self.state().launches.get_mut(&device).zip(counter) {
            launches.push(Launch {
                unit: module.unit.clone(),
                kernel: entry.name.clone(),
                grid: geometry.grid,
                threads: geometry.block[0],
                in_flight: in_flight(&entry.code),
                counts: counter.counts,
            });
        }
        done.map_err(|fault| {
            let text = fault.to_string();
            let is_address = matches!(fault.kind, FaultKind::Address(_));
            self.state().faults.push((device, *fault));
            if is_address { LaunchFault::Address(text) } else { LaunchFault::Kernel(text) }
        })
    }
}
