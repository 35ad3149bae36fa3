//! Splits one file into several, and merges them.
//!
//! Source: names and keys of llama.cpp's gguf-split.

use std::path::{Path, PathBuf};

use super::output::{Content, Output};
use super::quantize::copy_keys;
use super::write::{self, Progress};
use super::{Error, Summary};
use gguf::{File, TensorInfo, Value, Writer};

/// Maximum number of parts: file names have five digits, and `split.count` has 16 bits.
const MAX_PARTS: usize = 65_535;

/// Size limit of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Maximum number of bytes of tensors in a part; a larger tensor gets its own part.
    Bytes(u64),
    /// Maximum number of tensors in a part.
    Tensors(usize),
}

/// Splits the file at `input` into `PREFIX-00001-of-0000N.gguf` and so on. Parts are renamed to
/// their final names, and existing files replaced, only when all parts are complete.
///
/// # Errors
/// A file that cannot be read, parts that exist already, an I/O error,
/// [`Error::Interrupted`].
pub fn split(
    input: &Path,
    prefix: &Path,
    limit: Limit,
    force: bool,
    progress: Progress<'_>,
) -> Result<(Vec<PathBuf>, Summary), Error> {
    let file = File::open(input)?;
    let groups = groups(file.tensors(), limit);
    if groups.len() > MAX_PARTS {
        return Err(Error::Parts { found: groups.len(), limit: MAX_PARTS });
    }
    let name = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let count = groups.len();
    let path = |number: usize| {
        prefix.with_file_name(format!("{name}-{:05}-of-{count:05}.gguf", number + 1))
    };
    let inputs: Vec<_> = file.paths().iter().map(PathBuf::as_path).collect();
    for number in 0..count {
        write::check_target(&path(number), &inputs, force)?;
    }
    let total: u64 = file.tensors().iter().map(TensorInfo::n_bytes).sum();
    let (mut parts, mut before, mut size) = (Vec::new(), 0, 0);
    for (number, group) in groups.iter().enumerate() {
        let mut writer = Writer::new(file.container());
        if number == 0 {
            copy_keys(file.metadata(), &[], &mut writer)?;
        }
        // The casts cannot overflow: [`MAX_PARTS`] fits in 16 bits, and the size limit of a header
        // limits the number of tensors.
        writer.set("split.no", Value::U16(number as u16))?;
        writer.set("split.count", Value::U16(count as u16))?;
        writer.set("split.tensors.count", Value::I32(file.tensors().len() as i32))?;
        let outputs = copies(&file, group)?;
        let total_progress = |done: u64, _: u64| progress(before + done, total);
        let part = write::complete(writer, &outputs, &path(number), &total_progress)?;
        before += group.iter().map(|tensor| tensor.n_bytes()).sum::<u64>();
        size += part.size()?;
        parts.push(part);
    }
    for part in parts {
        part.publish()?;
    }
    let paths = (0..count).map(path).collect();
    Ok((paths, Summary { n_tensors: file.tensors().len(), size, notes: Vec::new() }))
}

/// Merges the split model that contains the part `first` into the file at `output`.
///
/// # Errors
/// A part that is missing or cannot be read, an output file that exists already, an I/O
/// error, [`Error::Interrupted`].
pub fn merge(
    first: &Path,
    output: &Path,
    force: bool,
    progress: Progress<'_>,
) -> Result<Summary, Error> {
    let file = File::open(first)?;
    let inputs: Vec<_> = file.paths().iter().map(PathBuf::as_path).collect();
    write::check_target(output, &inputs, force)?;
    let mut writer = Writer::new(file.container());
    copy_keys(file.metadata(), &[], &mut writer)?;
    let tensors: Vec<&TensorInfo> = file.tensors().iter().collect();
    let outputs = copies(&file, &tensors)?;
    let size = write::write(writer, &outputs, output, progress)?;
    Ok(Summary { n_tensors: outputs.len(), size, notes: Vec::new() })
}

fn copies(file: &File, tensors: &[&TensorInfo]) -> Result<Vec<Output>, Error> {
    let copy = |tensor: &&TensorInfo| {
        let content = Content::Copy(file.slice(tensor)?);
        Ok(Output {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            ty: tensor.ty,
            content,
        })
    };
    tensors.iter().map(copy).collect()
}

/// Divides the tensors into consecutive groups within the limit, or of one larger tensor.
fn groups(tensors: &[TensorInfo], limit: Limit) -> Vec<Vec<&TensorInfo>> {
    let mut groups: Vec<Vec<&TensorInfo>> = vec![Vec::new()];
    let mut bytes = 0u64;
    for tensor in tensors {
        let last = groups.last().map_or(0, Vec::len);
        let is_full = match limit {
            Limit::Bytes(max) => bytes.saturating_add(tensor.n_bytes()) > max,
            Limit::Tensors(max) => last >= max.max(1),
        };
        if is_full && last > 0 {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += tensor.n_bytes();
        groups.last_mut().expect("at least one group").push(tensor);
    }
    groups
}
