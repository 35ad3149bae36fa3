//! Decides how to get repacked weights: from the cache, repacked into the cache, repacked in
//! memory, or not at all.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::converted::{self, RepackFile, StaleFile, Weight, WriteError};
use engine::{EngineOptions, NeuronReads, PagingOptions, to_repack};
use hal::{Bytes, Device};
use model::Model;

use crate::memory::MemoryNeed;
use crate::notice::{Notice, Observer, Task};
use crate::options::Computation;

/// How weights are repacked, or why they are not.
#[derive(Clone, Debug, PartialEq)]
pub enum RepackNotice {
    /// Repacking is turned off.
    Off {
        /// The cost of running without repacking.
        cost: &'static str,
    },
    /// Too little memory is free for the copy.
    TooLarge {
        /// Bytes of the copy.
        size: Bytes,
        /// Bytes of KV cache, recurrent states and scratch.
        rest: Bytes,
        /// Free memory.
        free: Bytes,
        /// The cost of running without the copy.
        cost: &'static str,
    },
    /// The cached file is invalid and will be written again.
    Stale {
        /// Path of the file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The cached file is being written.
    Writing {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file.
        size: Bytes,
    },
    /// The cached file cannot be written or used.
    NotKept {
        /// The reason, as text.
        reason: String,
    },
}

impl fmt::Display for RepackNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RepackNotice::Off { cost } => write!(f, "weights are not repacked: {cost}"),
            RepackNotice::TooLarge { size, rest, free, cost } => write!(
                f,
                "repacked weights need {size} of memory in addition to {rest} for the context, but only {free} are free: weights are not repacked, and {cost}"
            ),
            RepackNotice::Stale { path, reason } => {
                write!(f, "the repacked weights in {} are written again: {reason}", path.display())
            }
            RepackNotice::Writing { path, size } => {
                write!(f, "writing repacked weights, {size}, to {}", path.display())
            }
            RepackNotice::NotKept { reason } => {
                write!(f, "the repacked weights are not kept on disk: {reason}")
            }
        }
    }
}

/// Decides where repacked weights come from, and writes the cached file if needed. Returns
/// `options` with that file, or without repacking if memory is too small for the copy.
///
/// # Errors
/// [`engine::Error::Interrupted`] if the observer stops the writing.
pub(crate) fn prepare(
    model: &Model,
    options: EngineOptions,
    computation: &Computation,
    cpu: &Device,
    observer: &dyn Observer,
) -> engine::Result<EngineOptions> {
    let weights = to_repack(model, &options, cpu);
    if weights.is_empty() {
        let wants = EngineOptions { repack: true, ..options.clone() };
        let wanted = if options.repack { Vec::new() } else { to_repack(model, &wants, cpu) };
        if !wanted.is_empty() {
            let cost = cost_without_repacking(&wanted);
            observer.notice(&Notice::Repack(RepackNotice::Off { cost }));
        }
        return Ok(options);
    }
    let size = converted::size(&weights);
    let kept = match cache_for(computation, size) {
        Some(path) => open_or_write(path, model, &weights, cpu, observer)?,
        None => None,
    };
    let options = EngineOptions { converted: kept, ..options };
    if options.converted.is_some() {
        return Ok(options);
    }
    if let Some(whole) = with_whole_layers(&options) {
        return prepare(model, whole, computation, cpu, observer);
    }
    let rest = MemoryNeed::new(model, &options, cpu).without_weights();
    let free = cpu.memory().ok().and_then(|memory| memory.free);
    Ok(match copy_too_large(size, rest, free, cost_without_repacking(&weights)) {
        None => options,
        Some(notice) => {
            observer.notice(&Notice::Repack(notice));
            EngineOptions { repack: false, ..options }
        }
    })
}

/// The folder in which `size` bytes of repacked weights are kept; `None` if they are not.
pub(crate) fn cache_for(computation: &Computation, size: Bytes) -> Option<&Path> {
    let folder = computation.cache.as_ref().filter(|folder| size >= folder.least);
    folder.filter(|_| computation.mmap).map(|folder| folder.path.as_path())
}

/// What [`prepare`] would decide with `free` bytes of memory, without opening or writing a file:
/// the options, and whether repacked weights would be a mapped file.
pub(crate) fn foresee(
    model: &Model,
    options: EngineOptions,
    computation: &Computation,
    cpu: &Device,
    free: Option<Bytes>,
) -> (EngineOptions, bool) {
    let weights = to_repack(model, &options, cpu);
    let size = converted::size(&weights);
    if weights.is_empty() || cache_for(computation, size).is_some() {
        return (options, !weights.is_empty());
    }
    if let Some(whole) = with_whole_layers(&options) {
        return foresee(model, whole, computation, cpu, free);
    }
    let rest = MemoryNeed::new(model, &options, cpu).without_weights();
    let repack = copy_too_large(size, rest, free, "").is_none();
    (EngineOptions { repack, ..options }, false)
}

/// `options` with neurons on disk read with their layer, because no file has their rows together;
/// `None` if they are.
fn with_whole_layers(options: &EngineOptions) -> Option<EngineOptions> {
    let paging = options.paging.filter(|paging| paging.neurons == NeuronReads::Bundles)?;
    let paging = Some(PagingOptions { neurons: NeuronReads::Layer, ..paging });
    Some(EngineOptions { paging, ..options.clone() })
}

fn cost_without_repacking(weights: &[Weight]) -> &'static str {
    if weights.iter().any(|weight| weight.pack.transpose) {
        "skipping a neuron saves only its rows of gate and up; all of ffn_down is read"
    } else {
        "a neuron's rows are far apart in the file, so reading them is slower"
    }
}

/// The notice that the repacked copy of `size` and the other allocations, `rest`, exceed the free
/// memory; `None` if both fit or the free memory is unknown.
fn copy_too_large(
    size: Bytes,
    rest: Bytes,
    free: Option<Bytes>,
    cost: &'static str,
) -> Option<RepackNotice> {
    let free = free.filter(|&free| size + rest > free)?;
    Some(RepackNotice::TooLarge { size, rest, free, cost })
}

/// Opens the cached file, or writes it first. If that fails, sends a notice and returns `None`.
///
/// # Errors
/// [`engine::Error::Interrupted`] if the observer stops the writing.
fn open_or_write(
    folder: &Path,
    model: &Model,
    weights: &[Weight],
    cpu: &Device,
    observer: &dyn Observer,
) -> engine::Result<Option<Arc<RepackFile>>> {
    let Some(path) = converted::path(folder, &model.file, weights) else { return Ok(None) };
    let tell = |notice: RepackNotice| observer.notice(&Notice::Repack(notice));
    match RepackFile::open(&path, &model.file, weights) {
        Ok(converted) => return Ok(Some(converted)),
        Err(StaleFile::Absent) => {}
        Err(stale) => {
            tell(RepackNotice::Stale { path: path.clone(), reason: stale.to_string() });
        }
    }
    let made = match write(&path, model, weights, cpu, observer) {
        Ok(()) => RepackFile::open(&path, &model.file, weights).map_err(|stale| stale.to_string()),
        Err(WriteError::Stopped) => return Err(engine::Error::Interrupted),
        Err(error) => Err(error.to_string()),
    };
    match made {
        Ok(converted) => Ok(Some(converted)),
        Err(reason) => {
            tell(RepackNotice::NotKept { reason });
            Ok(None)
        }
    }
}

fn write(
    path: &Path,
    model: &Model,
    weights: &[Weight],
    cpu: &Device,
    observer: &dyn Observer,
) -> Result<(), WriteError> {
    let size = converted::size(weights);
    let progress = |done: u64, _: u64| {
        // The first call comes once the folder and the disk space are known to suffice.
        if done == 0 {
            let path = path.to_owned();
            observer.notice(&Notice::Repack(RepackNotice::Writing { path, size }));
        }
        observer.progress(Task::Repack, Bytes(done), size);
        if observer.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let made = converted::write(path, &model.file, weights, cpu, &progress);
    observer.progress(Task::Repack, size, size);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_not_repacked_if_the_copy_does_not_fit() {
        let gib = |n: u64| Bytes(n << 30);
        assert_eq!(copy_too_large(gib(2), gib(1), None, ""), None);
        assert_eq!(copy_too_large(gib(2), gib(1), Some(gib(3)), ""), None);
        let free = gib(3) - Bytes(1);
        let notice = copy_too_large(gib(2), gib(1), Some(free), "").unwrap();
        let (size, rest) = (gib(2), gib(1));
        assert_eq!(notice, RepackNotice::TooLarge { size, rest, free, cost: "" });
        assert!(copy_too_large(Bytes::MAX, Bytes::MAX, Some(gib(1)), "").is_some());
    }
}
