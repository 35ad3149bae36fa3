//! Weights that are laid out anew: from a file made earlier, made into one now, made in memory, or not at all.

use std::path::Path;
use std::sync::Arc;

use super::bar;
use super::memory::Need;
use crate::cli::config::model::{Computation, Folder};
use crate::cli::terminal::Terminal;
use crate::converted::{self, Converted, Stale, Weight};
use crate::engine::{EngineOptions, to_convert};
use crate::model::Model;
use hal::Device;

/// Decides where laid-out weights come from, and makes the file of them where there shall be one.
pub(super) fn prepare(
    model: &Model,
    options: EngineOptions,
    computation: &Computation,
    cpu: &Device,
    terminal: &Terminal,
) -> EngineOptions {
    let weights = to_convert(model, &options, cpu);
    if weights.is_empty() {
        let wants = EngineOptions { repack: true, ..options.clone() };
        if !options.repack && !to_convert(model, &wants, cpu).is_empty() {
            terminal.note("--no-repack: neurons that are skipped save the rows of gate and up only, all of ffn_down is read");
        }
        return options;
    }
    let size = converted::size(&weights);
    let kept = match &computation.folder {
        Some(Folder { path, least }) if computation.mmap && size >= *least => {
            keep(path, model, &weights, cpu, terminal)
        }
        Some(_) | None => None,
    };
    let options = EngineOptions { converted: kept, ..options };
    if options.converted.is_some() {
        return options;
    }
    let rest = Need::of(model, &options, cpu).beside_weights();
    match cpu.memory().ok().and_then(|memory| memory.free).filter(|&free| size + rest > free) {
        None => options,
        Some(free) => {
            terminal.note(&format!(
                "weights laid out anew would take {size} of memory, with {rest} for the context, and {free} are free: the model runs from the file as it is, and where neurons are skipped all of ffn_down is read"
            ));
            EngineOptions { repack: false, ..options }
        }
    }
}

/// Opens the file of packs, or makes it; `None`, said, where there can be none.
fn keep(
    folder: &Path,
    model: &Model,
    weights: &[Weight],
    cpu: &Device,
    terminal: &Terminal,
) -> Option<Arc<Converted>> {
    let path = converted::path(folder, &model.file, weights)?;
    let shown = path.display();
    match Converted::open(&path, &model.file, weights) {
        Ok(converted) => return Some(converted),
        Err(Stale::Absent) => {}
        Err(stale) => terminal.note(&format!("{shown} is made anew: {stale}")),
    }
    let size = converted::size(weights);
    terminal.note(&format!(
        "writing the converted layout, {size}, to {shown}; --repack-cache off forbids it"
    ));
    let made = write(&path, model, weights, cpu, terminal);
    match made.and_then(|()| {
        Converted::open(&path, &model.file, weights).map_err(|stale| stale.to_string())
    }) {
        Ok(converted) => Some(converted),
        Err(reason) => {
            terminal.note(&format!("the converted layout is not kept: {reason}"));
            None
        }
    }
}

fn write(
    path: &Path,
    model: &Model,
    weights: &[Weight],
    cpu: &Device,
    terminal: &Terminal,
) -> Result<(), String> {
    let bar = bar("converting", converted::size(weights), terminal);
    let progress = |done: u64, _: u64| bar.set_position(done);
    let made = converted::write(path, &model.file, weights, cpu, &progress);
    bar.finish_and_clear();
    made.map_err(|error| error.to_string())
}
