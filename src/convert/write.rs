//! Streams outputs into a file: a few megabytes of rows at a time, on all threads, in file order.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use rayon::prelude::*;

use super::Error;
use super::output::Output;
use gguf::{CompleteFile, DataWriter, Writer};

/// Bytes of output per chunk: enough work for many threads, little memory.
const CHUNK: usize = 8 << 20;
/// Values that one thread converts at a time.
const TASK: usize = 1 << 17;

/// Progress callback: bytes done, bytes in total. Its result decides whether to continue.
pub type Progress<'a> = &'a dyn Fn(u64, u64) -> ControlFlow<()>;

/// Writes the file at `path`, which appears only when it is complete. Returns its size in bytes.
pub(super) fn write(
    writer: Writer,
    outputs: &[Output],
    path: &Path,
    progress: Progress<'_>,
) -> Result<u64, Error> {
    let file = complete(writer, outputs, path, progress)?;
    let size = file.size()?;
    file.publish()?;
    Ok(size)
}

/// Writes a complete file under a temporary name; publishing it moves it to `path`.
pub(super) fn complete(
    mut writer: Writer,
    outputs: &[Output],
    path: &Path,
    progress: Progress<'_>,
) -> Result<CompleteFile, Error> {
    for output in outputs {
        writer.declare(&output.name, &output.shape, output.ty)?;
    }
    let total = outputs.iter().map(Output::n_bytes).sum();
    let mut data = writer.create(path)?;
    let mut done = 0;
    for output in outputs {
        fill(output, &mut data, &mut done, total, progress)?;
    }
    Ok(data.complete()?)
}

fn fill<S: Write>(
    output: &Output,
    data: &mut DataWriter<S>,
    done: &mut u64,
    total: u64,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let (row_bytes, n_rows) = (output.row_bytes(), output.n_rows());
    if row_bytes == 0 {
        return Ok(());
    }
    let per_task = (TASK / output.row_len().max(1)).max(1);
    // A row larger than `CHUNK` is a chunk of its own.
    let at_once = (CHUNK / row_bytes).max(1).next_multiple_of(per_task);
    let mut bytes = Vec::new();
    for first in (0..n_rows).step_by(at_once) {
        if progress(*done, total).is_break() {
            return Err(Error::Interrupted);
        }
        let n = at_once.min(n_rows - first);
        bytes.resize(n * row_bytes, 0);
        bytes.par_chunks_mut(per_task * row_bytes).enumerate().for_each_init(
            Vec::new,
            |values, (task, bytes)| {
                let start = first + task * per_task;
                output.fill(start..start + bytes.len() / row_bytes, values, bytes);
            },
        );
        data.write(&output.name, &bytes)?;
        *done += bytes.len() as u64;
        // Without this, mapped pages that were read would count as this process's memory until the
        // end.
        for source in output.sources() {
            source.release(source);
        }
    }
    let _ = progress(*done, total);
    Ok(())
}

/// Returns an error if `path` exists and `force` is not set, or if `path` is one of the inputs.
pub(super) fn check_target(path: &Path, inputs: &[&Path], force: bool) -> Result<(), Error> {
    if !path.exists() {
        return Ok(());
    }
    let file = path.display().to_string();
    if inputs.iter().any(|input| gguf::is_same_file(input, path)) {
        return Err(Error::SameFile { file });
    }
    if force { Ok(()) } else { Err(Error::Exists { file }) }
}
