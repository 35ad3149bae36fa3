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
use hal::{Bytes, Device};

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
        let wanted = if options.repack { Vec::new() } else { to_convert(model, &wants, cpu) };
        if !wanted.is_empty() {
            terminal.note(&format!("--no-repack: {}", cost_of_rows_as_they_are(&wanted)));
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
    let free = cpu.memory().ok().and_then(|memory| memory.free);
    match short_of_memory(size, rest, free, cost_of_rows_as_they_are(&weights)) {
        None => options,
        Some(note) => {
            terminal.note(&note);
            EngineOptions { repack: false, ..options }
        }
    }
}

/// What it costs to run without these weights laid out anew.
fn cost_of_rows_as_they_are(weights: &[Weight]) -> &'static str {
    match weights.iter().any(|weight| weight.pack.transpose) {
        true => {
            "neurons that are skipped save the rows of gate and up only, all of ffn_down is read"
        }
        false => "a neuron's rows lie far apart in the file, which reads them more slowly",
    }
}

/// What is said where the copy of `size` does not fit into `free` beside the `rest`.
fn short_of_memory(size: Bytes, rest: Bytes, free: Option<Bytes>, cost: &str) -> Option<String> {
    let free = free.filter(|&free| size + rest > free)?;
    Some(format!(
        "weights laid out anew would take {size} of memory, with {rest} for the context, and {free} are free: the model runs from the file as it is, and {cost}"
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_left_where_it_does_not_fit() {
        let gib = |n: u64| Bytes(n << 30);
        assert_eq!(short_of_memory(gib(2), gib(1), None, ""), None);
        assert_eq!(short_of_memory(gib(2), gib(1), Some(gib(3)), ""), None);
        let note = short_of_memory(gib(2), gib(1), Some(gib(3) - Bytes(1)), "").unwrap();
        assert!(note.contains("runs from the file as it is"), "{note}");
        assert!(short_of_memory(Bytes::MAX, Bytes::MAX, Some(gib(1)), "").is_some());
    }
}
