//! Writes the repack cache: packs each weight and streams it into the file.

use std::ops::ControlFlow;
use std::path::Path;
use std::{fs, io};

use hal::{Bytes, Device};

use super::fingerprint::{checksum, fingerprint};
use super::{
    FINGERPRINT_KEY, MODEL_KEY, PACKS_KEY, SUMS, VERSION, VERSION_KEY, Weight, files, full_path,
    size,
};
use gguf::{Array, Container, File, Strings, TensorType, Value, Writer, free_bytes};

/// Bytes of disk space that must stay free.
const MARGIN: Bytes = Bytes(1 << 30);
/// Alignment of packs in bytes: a page.
const ALIGNMENT: u32 = 4096;

/// Why no file was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The folder cannot be created.
    #[error("cannot create the folder {folder}: {reason}")]
    Folder {
        /// Path of the folder.
        folder: String,
        /// The system's error.
        reason: io::Error,
    },
    /// The disk has too little space.
    #[error(
        "the file needs {wanted} and {MARGIN} must stay free, but the disk has only {free} free"
    )]
    Disk {
        /// Size of the file.
        wanted: Bytes,
        /// Free bytes on the disk.
        free: Bytes,
    },
    /// Writing failed.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
    /// Packing failed.
    #[error(transparent)]
    Device(#[from] hal::Error),
}

/// Writes the file at `path` from `weights` of `model` in the layout of `device`. Pages of the
/// model file are dropped from memory after use. `progress` gets the bytes written so far and the
/// total, and stops the work by breaking.
///
/// # Errors
/// [`WriteError`]; no file is left behind.
pub fn write(
    path: &Path,
    model: &File,
    weights: &[Weight],
    device: &Device,
    progress: &dyn Fn(u64, u64) -> ControlFlow<()>,
) -> Result<(), WriteError> {
    let report = |done: u64, total: u64| match progress(done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(WriteError::Stopped),
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)
        .map_err(|reason| WriteError::Folder { folder: folder.display().to_string(), reason })?;
    gguf::drop_leftovers(folder, |target| target.ends_with(files::SUFFIX));
    let total = size(weights);
    check_disk(total, free_bytes(folder).map(Bytes))?;
    let mut data = header(model, weights)?.create_own(path)?;
    report(0, total.0)?;
    let (mut pack, mut sums, mut done) = (Vec::new(), Vec::new(), 0);
    for weight in weights {
        pack.resize(weight.stored.len, 0);
        device.pack_into(&weight.pack, &weight.source, &mut pack)?;
        model.release_rows(&weight.source);
        data.write(&weight.label, &pack)?;
        sums.extend(checksum(&pack).to_le_bytes());
        done += pack.len() as u64;
        report(done, total.0)?;
    }
    data.write(SUMS, &sums)?;
    let file = data.complete()?;
    model.check_unchanged()?;
    Ok(file.publish()?)
}

fn check_disk(wanted: Bytes, free: Option<Bytes>) -> Result<(), WriteError> {
    match free.filter(|&free| wanted + MARGIN > free) {
        Some(free) => Err(WriteError::Disk { wanted, free }),
        None => Ok(()),
    }
}

fn header(model: &File, weights: &[Weight]) -> Result<Writer, gguf::Error> {
    let mut writer = Writer::new(Container::Gguf);
    writer.set("general.alignment", ALIGNMENT)?;
    writer.set(VERSION_KEY, VERSION)?;
    let path = model.paths().first().map_or_else(|| model.name().into(), |path| full_path(path));
    writer.set(MODEL_KEY, &*path.to_string_lossy())?;
    writer.set(FINGERPRINT_KEY, fingerprint(model, weights).as_str())?;
    let mut packs = Strings::default();
    weights.iter().for_each(|weight| packs.push(weight.description().as_bytes()));
    writer.set(PACKS_KEY, Value::Array(Array::String(packs)))?;
    for weight in weights {
        writer.declare(&weight.label, &[weight.stored.len as u64], TensorType::I8)?;
    }
    writer.declare(SUMS, &[8 * weights.len() as u64], TensorType::I8)?;
    Ok(writer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_disk_space_stays_free() {
        let gib = |n: u64| Bytes(n << 30);
        assert!(check_disk(gib(2), Some(gib(3))).is_ok());
        assert!(check_disk(gib(2), None).is_ok());
        let error = check_disk(gib(2), Some(gib(3) - Bytes(1))).unwrap_err();
        assert!(error.to_string().starts_with("the file needs 2.00 GiB"), "{error}");
    }
}
