//! State of an open device that buffers, programs and queues share: loaded kernels, and uploads of
//! weights.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hal::{RawStaging, Result};

use crate::buffer::{Memory, Span};
use crate::driver::Driver;
use crate::granule::Granule;
use crate::pinned::Pinned;
use crate::probe::{Options, SubmissionMode};
use crate::self_check::VerifiedDevice;
use crate::stream::Stream;
use crate::units::{AvoidedUnits, Unit};

/// Bytes per staging block: the device copies one block while the host fills the other.
const UPLOAD_BYTES: usize = 8 << 20;

/// Maximum number of threads that load kernels in parallel.
const MAX_LOAD_THREADS: usize = 8;

#[derive(Debug)]
pub(crate) struct Card<D: Driver> {
    pub(crate) driver: Arc<D>,
    /// How programs are submitted to the device.
    pub(crate) submission: SubmissionMode,
    /// Facts about the device, checked by running kernels.
    pub(crate) checked: VerifiedDevice,
    /// Code tables of the formats (`layout::tables`).
    pub(crate) tables: Memory<D>,
    /// What allocations take.
    pub(crate) granule: Granule,
    /// Set once the device has waited too long for an answer: programs compiled later end their
    /// submissions at hand-offs.
    pub(crate) timed_out: AtomicBool,
    /// Kernel files that are not used.
    pub(crate) avoided: AvoidedUnits,
    kernels: Arc<Kernels<D>>,
    uploader: Mutex<Uploader<D>>,
    /// Number of the last step that was started, on any queue.
    steps: AtomicU32,
}

/// Kernels by unit and name, loaded on first use.
#[derive(Debug)]
pub(crate) struct Kernels<D: Driver> {
    driver: Arc<D>,
    units: Mutex<HashMap<String, D::Module>>,
}

impl<D: Driver> Kernels<D> {
    pub(crate) fn new(driver: &Arc<D>) -> Arc<Kernels<D>> {
        Arc::new(Kernels { driver: Arc::clone(driver), units: Mutex::default() })
    }

    /// Loads the missing units in parallel: the driver compiles each unit, which can take seconds.
    ///
    /// # Errors
    /// [`hal::Error::Driver`] for a unit that the driver rejects.
    pub(crate) fn load(&self, units: &BTreeSet<Unit>) -> Result<()> {
        let is_loaded = |unit: &&Unit| lock(&self.units).contains_key(unit.name());
        let missing: Vec<&Unit> = units.iter().filter(|unit| !is_loaded(unit)).collect();
        let n_threads =
            std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_LOAD_THREADS));
        let next = AtomicUsize::new(0);
        let load_units = || -> Result<()> {
            while let Some(unit) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let module = self.driver.module(unit.name())?;
                let mut units = lock(&self.units);
                // Another thread may have loaded this unit meanwhile, and its functions may be in
                // use, so the first module is kept.
                if !units.contains_key(unit.name()) {
                    units.insert(unit.name().to_owned(), module);
                }
            }
            Ok(())
        };
        if missing.len() < 2 {
            return load_units();
        }
        std::thread::scope(|scope| {
            // This thread loads too, and alone if the system refuses others.
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, load_units).ok();
            let threads: Vec<_> = (1..n_threads.min(missing.len())).map_while(start).collect();
            let own = load_units();
            let others = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // Every thread is joined, also after an error.
            others.fold(own, |all, one| all.and(one))
        })
    }

    /// # Errors
    /// [`hal::Error::Driver`] for a unit or kernel that the driver rejects.
    pub(crate) fn function(&self, unit: &Unit, kernel: &str) -> Result<D::Function> {
        let mut units = lock(&self.units);
        if !units.contains_key(unit.name()) {
            let module = self.driver.module(unit.name())?;
            units.insert(unit.name().to_owned(), module);
        }
        self.driver.function(&units[unit.name()], kernel)
    }
}

/// A staging block for uploads, and the event after the last copy from the block.
#[derive(Debug)]
struct StagingBlock<D: Driver> {
    block: Pinned<D>,
    copied: Option<D::Event>,
}

/// Uploads bytes to the device through two pinned blocks.
#[derive(Debug)]
struct Uploader<D: Driver> {
    stream: Stream<D>,
    blocks: [Option<StagingBlock<D>>; 2],
    next: usize,
    /// Whether a copy is in flight.
    busy: bool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Driver> Card<D> {
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn new(driver: Arc<D>, options: Options) -> Result<Card<D>> {
        let words = layout::tables();
        let tables = Memory::new(&driver, "tables", 4 * words.len() as u64)?;
        let granule = Granule::measure(&driver)?;
        let kernels = Kernels::new(&driver);
        let stream = Stream::new(&driver)?;
        let submission = SubmissionMode::measure(&driver, &kernels, options)?;
        let mut checked =
            VerifiedDevice::new(&driver, &kernels, options.matrix_units != Some(false))?;
        if options.prefetch == Some(false) {
            checked.facts.prefetch = 0;
        }
        let uploader = Uploader { stream, blocks: [None, None], next: 0, busy: false };
        let (uploader, steps) = (Mutex::new(uploader), AtomicU32::new(0));
        let (timed_out, avoided) = Default::default();
        let card = Card {
            driver,
            submission,
            checked,
            granule,
            tables,
            timed_out,
            avoided,
            kernels,
            uploader,
            steps,
        };
        card.upload(card.tables.span(), 0, bytemuck::cast_slice(&words))?;
        card.wait_for_uploads()?;
        Ok(card)
    }

    pub(crate) fn load(&self, units: &BTreeSet<Unit>) -> Result<()> {
        self.kernels.load(units)
    }

    pub(crate) fn function(&self, unit: &Unit, kernel: &str) -> Result<D::Function> {
        self.kernels.function(unit, kernel)
    }

    pub(crate) fn kernels(&self) -> Arc<Kernels<D>> {
        Arc::clone(&self.kernels)
    }

    /// The number of a new step, larger than all earlier ones.
    pub(crate) fn begin_step(&self) -> u32 {
        self.steps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Starts an upload to `to`, from its byte `offset` on. The caller may reuse `bytes` at once.
    ///
    /// # Errors
    /// A lost device, [`hal::Error::OutOfMemory`] for the staging blocks.
    pub(crate) fn upload(&self, to: Span, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut uploader = lock(&self.uploader);
        let mut at = offset;
        for part in bytes.chunks(UPLOAD_BYTES) {
            let next = uploader.next;
            let staging = uploader.blocks[next].take();
            let StagingBlock { mut block, copied } = match staging {
                Some(staging) => staging,
                None => {
                    let block = Pinned::new(&self.driver, "staging of weights", UPLOAD_BYTES)?;
                    StagingBlock { block, copied: None }
                }
            };
            if let Some(copied) = copied {
                self.driver.wait(&copied)?;
            }
            block.bytes_mut()[..part.len()].copy_from_slice(part);
            uploader.busy = true;
            uploader.stream.copy_in(to, at, &block, 0, part.len())?;
            let copied = Some(uploader.stream.mark(false)?);
            uploader.blocks[next] = Some(StagingBlock { block, copied });
            uploader.next = 1 - next;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Waits until all uploads have arrived.
    ///
    /// # Errors
    /// A lost device.
    pub(crate) fn wait_for_uploads(&self) -> Result<()> {
        let mut uploader = lock(&self.uploader);
        if uploader.busy {
            uploader.stream.finish()?;
            uploader.busy = false;
        }
        Ok(())
    }
}

impl<D: Driver> Drop for Uploader<D> {
    fn drop(&mut self) {
        // The blocks are freed next, so the device must have finished reading them. A lost device
        // reads nothing more.
        let _ = self.stream.finish();
    }
}
