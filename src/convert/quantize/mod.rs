//! Quantises a file: the type of each tensor, and the copy.

mod mix;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hal::format::Format;
use regex::Regex;

use super::output::{Content, Output, SourceMatrices};
use super::split::Parts;
use super::write::{self, Progress};
use super::{Error, ImportanceMatrix};
use gguf::{File, Metadata, TensorInfo, TensorType, Value, Writer};

pub(super) use mix::Mix;
use target::Mixture;
pub use target::Target;

/// Keys that only the files of a split model have.
const SPLIT_KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// A quantisation.
#[derive(Clone, Debug)]
pub struct Quantization {
    /// A file, or the first part of a split model.
    pub input: PathBuf,
    /// The output file.
    pub output: PathBuf,
    /// The mix of types.
    pub target: Target,
    /// Use the mix's base type for every tensor.
    pub pure: bool,
    /// The type of the output matrix; `None` for the mix's.
    pub output_type: Option<Format>,
    /// The type of the embedding; `None` for the mix's.
    pub embedding_type: Option<Format>,
    /// Types of further tensors; the first rule that matches a name counts.
    pub tensor_types: Vec<TensorTypeRule>,
    /// The importance of the columns; `None` without one.
    pub importance: Option<Arc<ImportanceFile>>,
    /// Keys to set in the copy, instead of the file's.
    pub overrides: Vec<KeyOverride>,
    /// Keep the output matrix unchanged.
    pub leave_output: bool,
    /// Allow tensors that are quantised already.
    pub requantize: bool,
    /// Overwrite an existing file.
    pub force: bool,
}

/// The type of all tensors whose names match a pattern.
#[derive(Clone, Debug)]
pub struct TensorTypeRule {
    /// Searched for in the names.
    pub pattern: Regex,
    /// The type.
    pub format: Format,
}

impl TensorTypeRule {
    /// The type of all tensors in whose names the regular expression `pattern` is found.
    ///
    /// # Errors
    /// [`Error::Pattern`].
    pub fn new(pattern: &str, format: Format) -> Result<TensorTypeRule, Error> {
        let pattern = Regex::new(pattern)
            .map_err(|reason| Error::Pattern { pattern: pattern.to_owned(), reason })?;
        Ok(TensorTypeRule { pattern, format })
    }
}

/// An importance matrix from a file.
#[derive(Clone, Debug)]
pub struct ImportanceFile {
    /// The path, as the copy will state it.
    pub path: String,
    /// The matrix.
    pub matrix: ImportanceMatrix,
}

/// A key to set, and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyOverride {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
}

/// Result of a quantisation.
#[derive(Clone, Debug)]
pub struct QuantizeSummary {
    /// Tensors in the file.
    pub n_tensors: usize,
    /// Bytes of the file or files; of a dry run, of the tensors.
    pub size: u64,
    /// Bytes of the tensors before and after.
    pub tensor_bytes: BeforeAfter,
    /// Values in all tensors.
    pub n_values: u64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A number of bytes before and after a quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeforeAfter {
    /// Bytes before.
    pub before: u64,
    /// Bytes after.
    pub after: u64,
}

impl QuantizeSummary {
    /// Bits per value of the tensors in the copy.
    #[must_use]
    pub fn bits_per_value(&self) -> f64 {
        8.0 * self.tensor_bytes.after as f64 / self.n_values.max(1) as f64
    }
}

/// The tensors of the output, and notes about their types.
struct Prepared {
    outputs: Vec<Output>,
    tensor_bytes: BeforeAfter,
    n_values: u64,
    notes: Vec<String>,
}

impl Prepared {
    fn summary(self, size: u64) -> QuantizeSummary {
        let Prepared { outputs, tensor_bytes, n_values, notes } = self;
        QuantizeSummary { n_tensors: outputs.len(), size, tensor_bytes, n_values, notes }
    }
}

impl Quantization {
    /// A quantisation of `input` to `target`, written to `output`, with the mix's types and without
    /// an importance matrix.
    #[must_use]
    pub fn new(input: PathBuf, output: PathBuf, target: Target) -> Quantization {
        Quantization {
            input,
            output,
            target,
            pure: false,
            output_type: None,
            embedding_type: None,
            tensor_types: Vec::new(),
            importance: None,
            overrides: Vec::new(),
            leave_output: false,
            requantize: false,
            force: false,
        }
    }

    /// Quantises the file. `output` appears only when the file is complete.
    ///
    /// # Errors
    /// A file that cannot be read, tensors that are quantised already, an I/O error,
    /// [`Error::Interrupted`].
    pub fn run(&self, progress: Progress<'_>) -> Result<QuantizeSummary, Error> {
        let file = File::open(&self.input)?;
        let inputs: Vec<_> = file.paths().iter().map(PathBuf::as_path).collect();
        write::check_target(&self.output, &inputs, self.force)?;
        let prepared = self.prepare(&file)?;
        let mut writer = Writer::new(file.container());
        self.set_keys(&file, &mut writer)?;
        let size = write::write(writer, &prepared.outputs, &self.output, progress)?;
        Ok(prepared.summary(size))
    }

    /// Quantises each file of a split model on its own: `output` without `.gguf` is the prefix of
    /// the new files. Returns their paths.
    ///
    /// # Errors
    /// As [`Quantization::run`].
    pub fn run_parts(
        &self,
        progress: Progress<'_>,
    ) -> Result<(Vec<PathBuf>, QuantizeSummary), Error> {
        let file = File::open(&self.input)?;
        if file.paths().len() < 2 {
            return Ok((vec![self.output.clone()], self.run(progress)?));
        }
        let mut prepared = self.prepare(&file)?;
        let outputs = std::mem::take(&mut prepared.outputs);
        let mut groups: Vec<Vec<Output>> = file.paths().iter().map(|_| Vec::new()).collect();
        for (tensor, output) in file.tensors().iter().zip(outputs) {
            groups[tensor.part()].push(output);
        }
        let is_gguf = self.output.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        let prefix = if is_gguf { self.output.with_extension("") } else { self.output.clone() };
        let parts = Parts { groups, prefix: &prefix, force: self.force };
        let set_keys = &|writer: &mut Writer| self.set_keys(&file, writer);
        let (paths, summary) = parts.write(&file, set_keys, progress)?;
        let n_tensors = summary.n_tensors;
        Ok((paths, QuantizeSummary { n_tensors, ..prepared.summary(summary.size) }))
    }

    /// What [`Quantization::run`] would write, and the bytes of its tensors.
    ///
    /// # Errors
    /// A file that cannot be read, tensors that are quantised already.
    pub fn dry_run(&self) -> Result<QuantizeSummary, Error> {
        let file = File::open(&self.input)?;
        let prepared = self.prepare(&file)?;
        let size = prepared.tensor_bytes.after;
        Ok(prepared.summary(size))
    }

    fn prepare(&self, file: &File) -> Result<Prepared, Error> {
        let mix = Mix::new(file, self)?;
        let mut misfits: BTreeMap<String, usize> = BTreeMap::new();
        let mut outputs = Vec::new();
        // Quantised matrices of layers, and those with an importance.
        let (mut n_layers, mut n_weighted) = (0, 0);
        for tensor in file.tensors() {
            let (ty, wanted) = mix.choose(tensor);
            if ty != wanted {
                let misfit =
                    format!("rows of {} values do not fit {wanted}; using {ty}", tensor.shape[0]);
                *misfits.entry(misfit).or_default() += 1;
            }
            let output = self.output_of(file, tensor, ty)?;
            let is_new = !matches!(output.content, Content::Copy(_));
            if is_new && mix.needs_importance(&tensor.name, ty) && self.importance.is_none() {
                let (tensor, ty) = (tensor.name.clone(), ty.to_string());
                return Err(Error::NeedsImportance { tensor, ty });
            }
            let uses_importance = ty.format().is_some_and(|f| f.quants().is_some());
            if is_new && uses_importance && tensor.name.starts_with("blk.") {
                n_weighted += usize::from(matches!(output.content, Content::Weighted { .. }));
                n_layers += 1;
            }
            outputs.push(output);
        }
        let mut notes: Vec<_> =
            misfits.iter().map(|(why, n)| format!("{why} for {n} tensors")).collect();
        let base = self.target.format();
        if self.importance.is_some() && n_weighted < n_layers {
            notes.push(format!(
                "the importance matrix has no entry for {} of {n_layers} quantised matrices; they are quantised without one",
                n_layers - n_weighted
            ));
        }
        if self.target.mixture == Mixture::Experts && outputs.iter().all(|output| output.ty != base)
        {
            notes.push(format!(
                "{base} applies only to expert matrices, and this model has none: using Q8_0; use --pure for {base} in all matrices"
            ));
        }
        let tensor_bytes = BeforeAfter {
            before: file.tensors().iter().map(TensorInfo::n_bytes).sum(),
            after: outputs.iter().map(Output::n_bytes).sum(),
        };
        let n_values = file.tensors().iter().map(TensorInfo::n_elements).sum();
        Ok(Prepared { outputs, tensor_bytes, n_values, notes })
    }

    fn set_keys(&self, file: &File, writer: &mut Writer) -> Result<(), Error> {
        let mut own: Vec<(&str, Value)> = Vec::new();
        if let Some(file_type) = self.target.file_type() {
            own.push(("general.file_type", file_type.into()));
            if self.target.format().quants().is_some() {
                own.push(("general.quantization_version", 2_u32.into()));
            }
        }
        if let Some(ImportanceFile { path, matrix }) = self.importance.as_deref() {
            let count = |n: u64| Value::from(u32::try_from(n).unwrap_or(u32::MAX));
            own.push(("quantize.imatrix.file", path.as_str().into()));
            if let Some(dataset) = matrix.datasets.first() {
                own.push(("quantize.imatrix.dataset", dataset.as_str().into()));
            }
            own.push(("quantize.imatrix.entries_count", count(matrix.entries.len() as u64)));
            own.push(("quantize.imatrix.chunks_count", count(matrix.n_chunks())));
        }
        for KeyOverride { key, value } in &self.overrides {
            own.retain(|(known, _)| known != key);
            own.push((key, value.clone()));
        }
        let mut skipped: Vec<&str> = own.iter().map(|(key, _)| *key).collect();
        // A float type has no version.
        if self.target.file_type().is_some() {
            skipped.push("general.quantization_version");
        }
        copy_keys(file.metadata(), &skipped, writer)?;
        for (key, value) in own {
            writer.set(key, value)?;
        }
        Ok(())
    }

    fn output_of(
        &self,
        file: &File,
        tensor: &TensorInfo,
        wanted: TensorType,
    ) -> Result<Output, Error> {
        let bytes = file.slice(tensor)?;
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        if wanted == tensor.ty {
            return Ok(Output { name, shape, ty: wanted, content: Content::Copy(bytes) });
        }
        let Some(format) = tensor.ty.format() else {
            let found = tensor.ty.to_string();
            return Err(Error::Encoding {
                tensor: name,
                expected: "a format that can be read",
                found,
            });
        };
        if format.quants().is_some() && !self.requantize {
            return Err(Error::Requantize { tensor: name, found: tensor.ty.to_string() });
        }
        // The casts cannot overflow: the whole tensor is in the mapped file.
        let (n_rows, n_cols) = (tensor.n_rows() as usize, tensor.row_len() as usize);
        let source = SourceMatrices::stored(bytes, format, n_rows, n_cols);
        // Rows of a matrix; the tensor may have several.
        let n_each = shape.get(1).map_or(1, |&n| n.max(1) as usize);
        let columns = match self.importance.as_deref() {
            Some(of) => of.matrix.columns(&name, n_cols, n_rows / n_each)?,
            None => None,
        };
        let content = match columns {
            Some(columns) => Content::Weighted { source, columns, n_rows: n_each },
            None => Content::Rows(vec![source]),
        };
        Ok(Output { name, shape, ty: wanted, content })
    }
}

/// Copies all keys except those in `skip` and those of a split model.
pub(super) fn copy_keys(
    metadata: &Metadata,
    skip: &[&str],
    writer: &mut Writer,
) -> Result<(), Error> {
    let copied =
        metadata.iter().filter(|(key, _)| !skip.contains(key) && !SPLIT_KEYS.contains(key));
    for (key, value) in copied {
        writer.set(key, value.clone())?;
    }
    Ok(())
}
