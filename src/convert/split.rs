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

/// A split of a model into several files.
#[derive(Clone, Debug)]
pub struct Split {
    /// A file, or the first part of a split model.
    pub input: PathBuf,
    /// The parts are `PREFIX-00001-of-0000N.gguf` and so on.
    pub prefix: PathBuf,
    /// Size limit of a part.
    pub limit: Limit,
    /// Write a first part that has metadata only.
    pub no_tensor_first: bool,
    /// Overwrite existing files.
    pub force: bool,
}

/// Path of a file and bytes of tensors in it.
pub type PartSize = (PathBuf, u64);

impl Split {
    /// Splits the file. Parts are renamed to their final names, and existing files replaced, only
    /// when all parts are complete.
    ///
    /// # Errors
    /// A file that cannot be read, parts that exist already, an I/O error,
    /// [`Error::Interrupted`].
    pub fn run(&self, progress: Progress<'_>) -> Result<(Vec<PathBuf>, Summary), Error> {
        let file = File::open(&self.input)?;
        let groups = self.groups(&file)?;
        let groups = groups.iter().map(|group| copies(&file, group)).collect::<Result<_, _>>()?;
        let parts = Parts { groups, prefix: &self.prefix, force: self.force };
        parts.write(&file, &|writer: &mut Writer| copy_keys(file.metadata(), &[], writer), progress)
    }

    /// The files that [`Split::run`] would write.
    ///
    /// # Errors
    /// A file that cannot be read, too many parts.
    pub fn dry_run(&self) -> Result<Vec<PartSize>, Error> {
        let file = File::open(&self.input)?;
        let groups = self.groups(&file)?;
        let size =
            |group: &Vec<&TensorInfo>| group.iter().map(|tensor| tensor.n_bytes()).sum::<u64>();
        let path = |number| part_path(&self.prefix, number, groups.len());
        Ok(groups.iter().enumerate().map(|(n, group)| (path(n), size(group))).collect())
    }

    fn groups<'a>(&self, file: &'a File) -> Result<Vec<Vec<&'a TensorInfo>>, Error> {
        let mut groups = groups(file.tensors(), self.limit);
        if self.no_tensor_first {
            groups.insert(0, Vec::new());
        }
        if groups.len() > MAX_PARTS {
            return Err(Error::Parts { found: groups.len(), limit: MAX_PARTS });
        }
        Ok(groups)
    }
}

/// Path of part `number`, from 0, of `count` parts.
fn part_path(prefix: &Path, number: usize, count: usize) -> PathBuf {
    let name = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
    prefix.with_file_name(format!("{name}-{:05}-of-{count:05}.gguf", number + 1))
}

/// Splits a file with tensors in every part; see [`Split`].
///
/// # Errors
/// As [`Split::run`].
pub fn split(
    input: &Path,
    prefix: &Path,
    limit: Limit,
    force: bool,
    progress: Progress<'_>,
) -> Result<(Vec<PathBuf>, Summary), Error> {
    let (input, prefix) = (input.to_owned(), prefix.to_owned());
    Split { input, prefix, limit, no_tensor_first: false, force }.run(progress)
}

/// Several files to be written.
pub(super) struct Parts<'a> {
    /// The tensors of each file; at most [`MAX_PARTS`] files.
    pub(super) groups: Vec<Vec<Output>>,
    pub(super) prefix: &'a Path,
    pub(super) force: bool,
}

impl Parts<'_> {
    /// Writes the files; `set_keys` sets the keys of the first. Returns their paths. `file` is the
    /// model that they are made from.
    ///
    /// # Errors
    /// As [`Split::run`].
    pub(super) fn write(
        &self,
        file: &File,
        set_keys: &dyn Fn(&mut Writer) -> Result<(), Error>,
        progress: Progress<'_>,
    ) -> Result<(Vec<PathBuf>, Summary), Error> {
        let count = self.groups.len();
        let path = |number: usize| part_path(self.prefix, number, count);
        let inputs: Vec<_> = file.paths().iter().map(PathBuf::as_path).collect();
        for number in 0..count {
            write::check_target(&path(number), &inputs, self.force)?;
        }
        let bytes = |group: &Vec<Output>| group.iter().map(Output::n_bytes).sum::<u64>();
        let total: u64 = self.groups.iter().map(bytes).sum();
        let n_tensors: usize = self.groups.iter().map(Vec::len).sum();
        let (mut parts, mut before, mut size) = (Vec::new(), 0, 0);
        for (number, outputs) in self.groups.iter().enumerate() {
            let mut writer = Writer::new(file.container());
            if number == 0 {
                set_keys(&mut writer)?;
            }
            // The casts cannot overflow: [`MAX_PARTS`] fits in 16 bits, and the size limit of a
            // header limits the number of tensors.
            writer.set("split.no", Value::U16(number as u16))?;
            writer.set("split.count", Value::U16(count as u16))?;
            writer.set("split.tensors.count", Value::I32(n_tensors as i32))?;
            let total_progress = |done: u64, _: u64| progress(before + done, total);
            let part = write::complete(writer, outputs, &path(number), &total_progress)?;
            before += bytes(outputs);
            size += part.size()?;
            parts.push(part);
        }
        for part in parts {
            part.publish()?;
        }
        let paths = (0..count).map(path).collect();
        Ok((paths, Summary { what: String::new(), n_tensors, size, notes: Vec::new() }))
    }
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
    Ok(Summary { what: String::new(), n_tensors: outputs.len(), size, notes: Vec::new() })
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
