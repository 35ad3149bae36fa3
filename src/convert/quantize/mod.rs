//! Quantises a file: the type of each tensor, and the copy.

mod mix;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;

use hal::format::Format;

use super::output::{Content, Output, SourceMatrices};
use super::write::{self, Progress};
use super::{Error, Summary};
use gguf::{File, Metadata, TensorInfo, TensorType, Writer};

use mix::Mix;
use target::Extra;
pub use target::Target;

/// Keys that the copy sets itself.
const OWN_KEYS: &[&str] = &["general.file_type", "general.quantization_version"];
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
    /// Keep the output matrix unchanged.
    pub leave_output: bool,
    /// Allow tensors that are quantised already.
    pub requantize: bool,
    /// Overwrite an existing file.
    pub force: bool,
}

impl Quantization {
    /// Quantises the file. `output` appears only when the file is complete.
    ///
    /// # Errors
    /// A file that cannot be read, tensors that are quantised already, an I/O error,
    /// [`Error::Interrupted`].
    pub fn run(&self, progress: Progress<'_>) -> Result<Summary, Error> {
        let file = File::open(&self.input)?;
        let inputs: Vec<_> = file.paths().iter().map(PathBuf::as_path).collect();
        write::check_target(&self.output, &inputs, self.force)?;
        let mix = Mix::new(&file, self)?;
        let mut misfits: BTreeMap<String, usize> = BTreeMap::new();
        let mut outputs = Vec::new();
        for tensor in file.tensors() {
            let (ty, wanted) = mix.choose(tensor);
            if ty != wanted {
                let misfit =
                    format!("rows of {} values do not fit {wanted}; using {ty}", tensor.shape[0]);
                *misfits.entry(misfit).or_default() += 1;
            }
            outputs.push(self.output_of(&file, tensor, ty)?);
        }
        let mut notes: Vec<_> =
            misfits.iter().map(|(why, n)| format!("{why} for {n} tensors")).collect();
        let base = self.target.format();
        if self.target.extra == Extra::Experts && outputs.iter().all(|output| output.ty != base) {
            notes.push(format!(
                "{base} applies only to expert matrices, and this model has none: using Q8_0; use --pure for {base} in all matrices"
            ));
        }
        let mut writer = Writer::new(file.container());
        copy_keys(file.metadata(), OWN_KEYS, &mut writer)?;
        writer.set("general.file_type", self.target.file_type())?;
        if base.quants().is_some() {
            writer.set("general.quantization_version", 2_u32)?;
        }
        let size = write::write(writer, &outputs, &self.output, progress)?;
        Ok(Summary { n_tensors: outputs.len(), size, notes })
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
        let content = Content::Rows(vec![SourceMatrices::stored(bytes, format, n_rows, n_cols)]);
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
