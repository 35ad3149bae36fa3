//! Decides whether weights stay on disk, and how much memory the rest may take.

use std::fmt;
use std::path::PathBuf;

use engine::{EngineOptions, PagingOptions, Tiers, least_paged};
use hal::{Bytes, Device};
use model::Model;
use store::{DirectFile, DiskSpeed, ReadAt};

use crate::Result;
use crate::memory::MemoryNeed;
use crate::notice::{Notice, Observer};
use crate::options::{Budget, Computation};

/// Host memory of a process beside weights, KV cache and scratch: code, vocabulary, threads,
/// buffers.
const OTHER_MEMORY: Bytes = Bytes(64 << 20);
/// The least memory that [`Budget::Auto`] leaves free, and the part of the free memory.
const MARGIN: (Bytes, u64) = (Bytes(64 << 20), 16);
/// Number of reading threads if the disk cannot be measured.
const USUAL_DEPTH: usize = 8;

/// A message about weights on disk.
#[derive(Clone, Debug, PartialEq)]
pub enum DiskNotice {
    /// The file system cannot read past the page cache.
    NotDirect {
        /// The model's file.
        file: PathBuf,
    },
    /// Weights stay on disk, because they do not fit into memory.
    Tiers {
        /// Host memory that may be used.
        budget: Bytes,
        /// Sizes of the tiers.
        tiers: Tiers,
    },
    /// What weights on disk cost.
    Reads {
        /// Bytes that a token reads by the estimate.
        per_token: Bytes,
        /// Measured bytes per second of the disk; `None` if it cannot be measured.
        bandwidth: Option<f64>,
    },
}

impl fmt::Display for DiskNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskNotice::NotDirect { file } => write!(
                f,
                "the file system of {} cannot read past the page cache, so the system may cache weights beyond the budget",
                file.display()
            ),
            DiskNotice::Tiers { budget, tiers } => {
                let Tiers { weights, pinned, cache, .. } = tiers;
                write!(
                    f,
                    "{} of {weights} of weights stay on disk, because {budget} of memory may be used: {pinned} are always in memory, {cache} hold what the text needs most",
                    tiers.on_disk()
                )
            }
            DiskNotice::Reads { per_token, bandwidth: None } => {
                write!(f, "a token reads about {per_token} from disk")
            }
            DiskNotice::Reads { per_token, bandwidth: Some(bandwidth) } => write!(
                f,
                "a token reads about {per_token} from disk at {:.2} GB/s: up to {:.1} tokens/s by the estimate",
                bandwidth / 1e9,
                bandwidth / per_token.0.max(1) as f64
            ),
        }
    }
}

/// Weights that stay on disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskTier {
    pub(crate) options: PagingOptions,
    /// `None` if the disk could not be measured.
    speed: Option<DiskSpeed>,
}

impl DiskTier {
    /// The disk tier for a model that needs `need` of host memory; `None` if the model fits, or if
    /// its weights are not used from a mapped file.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if what must be in memory at once exceeds the budget.
    pub(crate) fn new(
        model: &Model,
        need: &MemoryNeed,
        settings: &EngineOptions,
        computation: &Computation,
        cpu: &Device,
        observer: &dyn Observer,
    ) -> Result<Option<DiskTier>> {
        let given = computation.devices.ram_budget;
        let wanted = computation.mmap && !computation.mlock && !computation.must_fit;
        let memory = cpu.memory().unwrap_or_default();
        let budget = match given {
            Budget::Bytes(bytes) => Some(Bytes(bytes)),
            Budget::Share(share) => {
                memory.total.map(|total| Bytes((total.0 as f64 * f64::from(share)) as u64))
            }
            Budget::Auto => memory.free.map(|free| free - MARGIN.0.max(Bytes(free.0 / MARGIN.1))),
        };
        let Some(budget) = budget else { return Ok(None) };
        let usable = budget - OTHER_MEMORY;
        if need.total() <= usable {
            return Ok(None);
        }
        let file = model.file.paths().first().filter(|_| wanted && cfg!(unix));
        let Some(path) = file else {
            // A limit that cannot be kept is refused; without one, the memory check decides.
            let refused = given != Budget::Auto;
            return if refused {
                Err(need.error(budget, settings.n_ctx, need.weights()))
            } else {
                Ok(None)
            };
        };
        let least = least_paged(model);
        if need.unmapped() + least > usable {
            return Err(need.error(budget, settings.n_ctx, least + OTHER_MEMORY));
        }
        let file = DirectFile::open(path, model.file.mapped_file(0)).ok();
        if file.as_ref().is_some_and(|file| !file.is_direct()) {
            observer.notice(&Notice::Disk(DiskNotice::NotDirect { file: path.clone() }));
        }
        let speed = file.and_then(|file| store::measure(&file as &dyn ReadAt));
        let depth = speed.map_or(USUAL_DEPTH, |speed| speed.depth);
        Ok(Some(DiskTier { options: PagingOptions { budget: usable, depth }, speed }))
    }

    /// Reports what is on disk, and what that costs.
    pub(crate) fn report(&self, tiers: &Tiers, observer: &dyn Observer) {
        if tiers.on_disk() == Bytes(0) {
            return;
        }
        let budget = self.options.budget + OTHER_MEMORY;
        observer.notice(&Notice::Disk(DiskNotice::Tiers { budget, tiers: *tiers }));
        let (per_token, bandwidth) =
            (tiers.read_per_token, self.speed.map(|speed| speed.bandwidth));
        if per_token > Bytes(0) {
            observer.notice(&Notice::Disk(DiskNotice::Reads { per_token, bandwidth }));
        }
    }
}
