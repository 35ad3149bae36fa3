//! LoRA adapters, merged into the weights of a model: `W + scale * alpha / rank * B A`.
//!
//! An adapter is a GGUF file as llama.cpp's `convert_lora_to_gguf.py` writes it. The merged
//! matrices are an overlay over the model's file ([`File::with_overlay`]), so everything after this
//! module sees one model. A quantised matrix becomes [`Format::Q8_0`]: its own format would round
//! the adapter away, and F16 would take twice the bytes for an error that is smaller than that of
//! the rounded activations (`docs/adapters.md`).

mod error;
mod low_rank;

pub use error::AdapterError;

use std::collections::BTreeMap;

use hal::Bytes;
use hal::format::Format;

use gguf::{Container, File, Hash, TensorInfo, Writer};
use low_rank::LowRank;

use error::shape_text;

/// An adapter and its scale.
#[derive(Debug)]
pub struct Adapter {
    /// The open file.
    pub file: File,
    /// Factor on the adapter's contribution, besides `alpha / rank`. With 0, the adapter is checked
    /// but changes nothing.
    pub scale: f32,
}

/// Adapters that are checked against a model's file, but not merged yet.
#[derive(Debug)]
pub struct AdapterMerge {
    /// The matrices that change, by name.
    matrices: BTreeMap<String, Merged>,
    /// Identifies the adapters and their scales.
    identity: String,
    /// Norms that the adapters contain.
    n_ignored: usize,
}

/// A matrix that adapters change.
#[derive(Debug)]
struct Merged {
    shape: Vec<u64>,
    format: Format,
    size: u64,
    /// Bytes of the matrix in the model's file.
    size_before: u64,
    updates: Vec<LowRank>,
}

/// Key of the text that identifies the adapters and their scales, in an overlay's header.
const IDENTITY_KEY: &str = "thermocline.adapters";

impl AdapterMerge {
    /// Checks `adapters` against the model in `model`.
    ///
    /// # Errors
    /// [`AdapterError`].
    pub fn new(model: &File, adapters: &[Adapter]) -> Result<AdapterMerge, AdapterError> {
        let mut merge =
            AdapterMerge { matrices: BTreeMap::new(), identity: String::new(), n_ignored: 0 };
        for adapter in adapters {
            merge.add(model, adapter)?;
        }
        Ok(merge)
    }

    fn add(&mut self, model: &File, adapter: &Adapter) -> Result<(), AdapterError> {
        let Adapter { file, scale } = adapter;
        let alpha = check_keys(file, model)?;
        if !scale.is_finite() {
            let file = file.name().to_owned();
            return Err(AdapterError::Scale { file, what: "the scale", found: *scale });
        }
        let mut pairs: BTreeMap<&str, Pair<'_>> = BTreeMap::new();
        let mut n_ignored = 0;
        for tensor in file.tensors() {
            if let Some(name) = tensor.name.strip_suffix(".lora_a") {
                pairs.entry(name).or_default().a = Some(tensor);
            } else if let Some(name) = tensor.name.strip_suffix(".lora_b") {
                pairs.entry(name).or_default().b = Some(tensor);
            } else if tensor.name.ends_with("_norm.weight") {
                // llama.cpp ignores norms in adapters too.
                n_ignored += 1;
            } else {
                let (file, tensor) = (file.name().to_owned(), tensor.name.clone());
                return Err(AdapterError::UnknownTensor { file, tensor });
            }
        }
        if pairs.is_empty() {
            return Err(AdapterError::Empty { file: file.name().to_owned() });
        }
        for (name, pair) in pairs {
            let (a, b) = pair.both(file, name)?;
            let target = target(model, file, name)?;
            let update = LowRank::read(file, target, a, b, *scale, alpha)?;
            if *scale != 0.0 {
                self.matrix(model, target)?.updates.push(update);
            }
        }
        self.n_ignored += n_ignored;
        if *scale != 0.0 {
            self.identity += &format!("{:016x}:{:08x} ", checksum(file)?, scale.to_bits());
        }
        Ok(())
    }

    fn matrix(&mut self, model: &File, target: &TensorInfo) -> Result<&mut Merged, AdapterError> {
        let format = target.ty.format().filter(|format| format.is_weight());
        let format = format.ok_or_else(|| AdapterError::Format {
            file: model.name().to_owned(),
            tensor: target.name.clone(),
            found: target.ty.to_string(),
        })?;
        let format = if format.quants().is_some() { Format::Q8_0 } else { format };
        let row = usize::try_from(target.row_len()).ok().and_then(|cols| format.row_bytes(cols));
        let size = row.and_then(|row| (row as u64).checked_mul(target.n_rows()));
        let size = size.ok_or_else(|| AdapterError::Shape {
            file: model.name().to_owned(),
            tensor: target.name.clone(),
            found: shape_text(&target.shape),
            expected: format!("rows of whole blocks of {format}"),
        })?;
        Ok(self.matrices.entry(target.name.clone()).or_insert_with(|| Merged {
            shape: target.shape.clone(),
            format,
            size,
            size_before: target.n_bytes(),
            updates: Vec::new(),
        }))
    }

    /// Number of matrices that change; 0 if all scales are 0.
    #[must_use]
    pub fn n_matrices(&self) -> usize {
        self.matrices.len()
    }

    /// Number of norms in the adapters, which are not applied.
    #[must_use]
    pub fn n_ignored(&self) -> usize {
        self.n_ignored
    }

    /// Bytes of the merged matrices, which stay in memory.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.matrices.values().map(|merged| merged.size).sum())
    }

    /// Bytes of the same matrices in the model's file.
    #[must_use]
    pub fn size_before(&self) -> Bytes {
        Bytes(self.matrices.values().map(|merged| merged.size_before).sum())
    }

    /// Merges the adapters into the matrices of `model`. `progress` is called with the bytes that
    /// are done and the bytes of all merged matrices.
    ///
    /// # Errors
    /// [`AdapterError::Values`] if a merged value is too large for its format.
    pub fn apply(self, model: File, progress: &dyn Fn(Bytes, Bytes)) -> Result<File, AdapterError> {
        if self.matrices.is_empty() {
            return Ok(model);
        }
        let total = self.size();
        let mut writer = Writer::new(Container::Gguf);
        writer.set(IDENTITY_KEY, self.identity.as_str())?;
        for (name, merged) in &self.matrices {
            writer.declare(name, &merged.shape, merged.format)?;
        }
        let mut data = writer.in_memory()?;
        let mut done = Bytes(0);
        for (name, merged) in &self.matrices {
            progress(done, total);
            data.write(name, &merged.bytes(&model, name)?)?;
            done += Bytes(merged.size);
        }
        let overlay = File::from_vec(data.finish()?, "adapters")?;
        progress(total, total);
        Ok(model.with_overlay(overlay))
    }
}

impl Merged {
    /// The merged matrix in [`Merged::format`].
    fn bytes(&self, model: &File, name: &str) -> Result<Vec<u8>, AdapterError> {
        let no_tensor = || AdapterError::NoSuchTensor {
            file: model.name().to_owned(),
            tensor: name.to_owned(),
            model: model.name().to_owned(),
        };
        let tensor = model.tensor(name).ok_or_else(no_tensor)?;
        let format = tensor.ty.format().ok_or_else(no_tensor)?;
        let source = model.bytes(tensor)?;
        let n_cols = self.shape.first().map_or(0, |n| *n as usize);
        let merged = low_rank::merge(source, format, n_cols, &self.updates, self.format);
        model.release(source);
        merged.map_err(|found| AdapterError::Values {
            tensor: name.to_owned(),
            format: self.format,
            found,
        })
    }
}

/// The two factors of an update, as far as the file has them.
#[derive(Clone, Copy, Default)]
struct Pair<'a> {
    a: Option<&'a TensorInfo>,
    b: Option<&'a TensorInfo>,
}

impl<'a> Pair<'a> {
    fn both(
        self,
        file: &File,
        name: &str,
    ) -> Result<(&'a TensorInfo, &'a TensorInfo), AdapterError> {
        let missing = |suffix: &str| AdapterError::MissingTensor {
            file: file.name().to_owned(),
            tensor: format!("{name}.{suffix}"),
        };
        Ok((self.a.ok_or_else(|| missing("lora_a"))?, self.b.ok_or_else(|| missing("lora_b"))?))
    }
}

/// Checks that `file` is a LoRA adapter for the architecture of `model`. Returns `alpha`; 0 if the
/// file has none.
fn check_keys(file: &File, model: &File) -> Result<f32, AdapterError> {
    let name = || file.name().to_owned();
    let metadata = file.metadata();
    let text = |key: &str| Ok::<_, AdapterError>(metadata.str(key)?.unwrap_or("none").to_owned());
    let found = text("general.type")?;
    if found != "adapter" {
        return Err(AdapterError::NotAnAdapter { file: name(), found });
    }
    let found = text("adapter.type")?;
    if found != "lora" {
        return Err(AdapterError::Kind { file: name(), found });
    }
    if metadata.get("adapter.alora.invocation_tokens").is_some() {
        return Err(AdapterError::Activated { file: name() });
    }
    const ARCHITECTURE: &str = "general.architecture";
    let (found, expected) = (text(ARCHITECTURE)?, model.metadata().str(ARCHITECTURE)?);
    if expected != Some(found.as_str()) {
        let expected = expected.unwrap_or("none").to_owned();
        let model = model.name().to_owned();
        return Err(AdapterError::Architecture { file: name(), found, model, expected });
    }
    let alpha = metadata.f32("adapter.lora.alpha")?.unwrap_or(0.0);
    if !alpha.is_finite() {
        let what = "`adapter.lora.alpha`";
        return Err(AdapterError::Scale { file: name(), what, found: alpha });
    }
    Ok(alpha)
}

/// The matrix of `model` that an adapter changes.
fn target<'a>(model: &'a File, file: &File, name: &str) -> Result<&'a TensorInfo, AdapterError> {
    let file = file.name().to_owned();
    let Some(tensor) = model.tensor(name) else {
        let (tensor, model) = (name.to_owned(), model.name().to_owned());
        return Err(AdapterError::NoSuchTensor { file, tensor, model });
    };
    let why = if !name.ends_with(".weight") || name.contains("norm") {
        "a vector"
    } else if name.contains("conv") {
        "a convolution"
    } else if name.ends_with(".fc1.weight") || name.ends_with(".fc2.weight") {
        "a part of a predictor"
    } else if name.starts_with("rope_") || name.starts_with("position_embd") {
        "a table of positions"
    } else if name == EMBEDDING && model.tensor("output.weight").is_none() {
        "the embedding and the output matrix at once"
    } else {
        return Ok(tensor);
    };
    Err(AdapterError::NotAMatrix { file, tensor: name.to_owned(), why })
}

/// The embedding. The two factors of its update have exchanged roles, because the ids of tokens
/// select its rows.
const EMBEDDING: &str = "token_embd.weight";

/// A checksum of the header and of all tensors.
fn checksum(file: &File) -> Result<u64, AdapterError> {
    let mut hash = Hash::default();
    file.headers().for_each(|header| hash.add(header));
    for tensor in file.tensors() {
        hash.add(file.bytes(tensor)?);
    }
    Ok(hash.finish())
}
