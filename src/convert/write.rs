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

/// Writes a complete file under a temporary name; publishing it moves it to `path`. Fails if a
/// source of `outputs` was written to meanwhile.
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
    let file = data.complete()?;
    // Bytes from before and after a write would be one model.
    let mut sources = outputs.iter().flat_map(Output::sources);
    sources.try_for_each(gguf::Bytes::check_unchanged)?;
    Ok(file)
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::{Limit, Quantization, merge, split};
    use gguf::{Container, Problem};

    /// A model of ten matrices.
    fn create(path: &Path) {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("general.architecture", "llama").unwrap();
        writer.set("llama.block_count", 10_u32).unwrap();
        let names: Vec<String> = (0..10).map(|i| format!("blk.{i}.ffn_up.weight")).collect();
        for name in &names {
            writer.declare(name, &[256, 8], gguf::TensorType::F32).unwrap();
        }
        let mut data = writer.create(path).unwrap();
        for name in &names {
            data.write(name, &[0; 256 * 8 * 4]).unwrap();
        }
        data.finish().unwrap();
    }

    /// Changes the last byte of a file in place: the same file, of the same length.
    fn overwrite(path: &Path) {
        use std::io::{Seek, SeekFrom};
        // File systems have a clock of a few milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        let mut file = fs::File::options().write(true).open(path).unwrap();
        file.seek(SeekFrom::End(-1)).unwrap();
        file.write_all(&[1]).unwrap();
    }

    #[test]
    fn no_output_is_made_of_a_file_that_is_written_to_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let (model, out) = (folder.path().join("model.gguf"), folder.path().join("out"));
        type Make<'a> = &'a dyn Fn(Progress<'_>) -> Result<(), Error>;
        let quantize: Make<'_> = &|progress| {
            let target = "q8_0".parse()?;
            Quantization::new(model.clone(), out.clone(), target).run(progress).map(drop)
        };
        let merge: Make<'_> = &|progress| merge(&model, &out, false, progress).map(drop);
        let split: Make<'_> =
            &|progress| split(&model, &out, Limit::Tensors(4), false, progress).map(drop);
        for make in [quantize, merge, split] {
            // With the split, the first part is complete before the last of these calls.
            for changed_at in [0, 7] {
                create(&model);
                let calls = Cell::new(0);
                let progress = |_, _| {
                    if calls.replace(calls.get() + 1) == changed_at {
                        overwrite(&model);
                    }
                    ControlFlow::Continue(())
                };
                let error = make(&progress).unwrap_err();
                let Error::Container(error) = error else { panic!("{error}") };
                assert!(matches!(error.problem(), Problem::SourceChanged), "{error}");
                assert!(error.file().ends_with("model.gguf"), "{error}");
                assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the model");
            }
            make(&|_, _| ControlFlow::Continue(())).unwrap();
            let all = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
            all.for_each(|path| fs::remove_file(path).unwrap());
        }
    }
}
