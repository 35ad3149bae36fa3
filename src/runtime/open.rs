//! A model file that is opened and parsed, but not loaded.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use hal::format::Format;
use hal::{Bytes, Device, KvCache};
use model::{Model, ModelOptions};
use text::tokenizer::{Tokenizer, Vocab};

use crate::notice::{Notice, Observer, SilentObserver, Task};
use crate::options::Computation;
use crate::{Error, Result, adapters, embedded};

/// A model that is parsed, but not loaded.
#[derive(Debug)]
pub struct Opened {
    /// The model.
    pub model: Arc<Model>,
    /// The model's tokenizer. [`Opened::open`] checks its size against the embedding.
    pub tokenizer: Tokenizer,
}

impl Opened {
    /// Opens the model file, or the built-in model without a path. Nothing is loaded, but without
    /// [`Computation::mmap`] the file is read into memory.
    ///
    /// # Errors
    /// [`Error`] if the file cannot be read, is not a supported model or does not fit into memory.
    pub fn open(
        path: Option<&Path>,
        computation: &Computation,
        cpu: &Device,
        observer: &dyn Observer,
    ) -> Result<Opened> {
        let file = file(path)?;
        let file = if computation.mmap { file } else { read_whole(file, cpu, observer)? };
        let opened = Opened::parse(file, computation, observer)?;
        for warning in opened.tokenizer.warnings() {
            observer.notice(&Notice::Vocabulary(warning.to_string()));
        }
        let (found, expected) = (opened.tokenizer.n_vocab(), opened.model.n_vocab());
        if found != expected {
            let file = opened.model.file.name().to_owned();
            return Err(Error::VocabularySize { file, found, expected });
        }
        Ok(opened)
    }

    /// The model, if it generates text.
    ///
    /// # Errors
    /// [`engine::Error::Encoder`].
    pub fn decoder(self) -> Result<Opened> {
        if self.model.hyper.causal { Ok(self) } else { Err(engine::Error::Encoder.into()) }
    }

    /// Merges the adapters of `computation` into an open file without notices, and parses the
    /// model.
    ///
    /// # Errors
    /// [`Error::Vocabulary`], [`Error::Adapter`], [`Error::AdaptersTooLarge`], [`Error::Model`].
    pub fn from_file(file: gguf::File, computation: &Computation) -> Result<Opened> {
        Opened::parse(file, computation, &SilentObserver)
    }

    fn parse(
        file: gguf::File,
        computation: &Computation,
        observer: &dyn Observer,
    ) -> Result<Opened> {
        let tokenizer = tokenizer(&file)?;
        let file = adapters::merge(file, &computation.adapters, observer)?;
        let (activation, rope) = (computation.activation.clone(), computation.rope.clone());
        let model = Model::from_file(file, &ModelOptions { activation, rope })?;
        if !computation.rope.is_empty() && !model.has_rope() {
            observer.notice(&Notice::NoRope);
        }
        Ok(Opened { model: Arc::new(model), tokenizer })
    }
}

/// Sends a notice if values have a cache type of their own, and some layers store no values.
pub(crate) fn check_cache_types(model: &Model, kv: KvCache<Format>, observer: &dyn Observer) {
    let values = model.layers.iter().filter_map(|layer| Some(layer.attention()?.sizes.cached().v));
    let (plain, latent): (Vec<_>, Vec<_>) = values.partition(Option::is_some);
    if !latent.is_empty() && kv.k != kv.v {
        let (n_latent, n_attention) = (latent.len(), latent.len() + plain.len());
        observer.notice(&Notice::ValuesInKeys { n_latent, n_attention });
    }
}

/// Opens the file; without a path, the built-in model.
///
/// # Errors
/// [`Error::File`], whose source names the file and the problem.
pub fn file(path: Option<&Path>) -> Result<gguf::File> {
    path.map_or_else(embedded::file, gguf::File::open).map_err(Error::File)
}

/// The tokenizer of a file.
///
/// # Errors
/// [`Error::Vocabulary`] if the vocabulary is missing, invalid or of an unsupported kind.
pub fn tokenizer(file: &gguf::File) -> Result<Tokenizer> {
    let tokenizer = Vocab::from_metadata(file.metadata()).and_then(Tokenizer::new);
    tokenizer.map_err(|reason| Error::Vocabulary { file: file.name().to_owned(), reason })
}

/// Bytes read between two reports of progress.
const READ_AT_ONCE: u64 = 16 << 20;

/// Reads the file into ordinary memory. A split model stays mapped, and a notice says so.
fn read_whole(file: gguf::File, cpu: &Device, observer: &dyn Observer) -> Result<gguf::File> {
    let [path] = file.paths() else {
        if file.paths().len() > 1 {
            observer.notice(&Notice::SplitFileIsMapped);
        }
        return Ok(file);
    };
    let size = file.size_bytes();
    let total = cpu.memory().ok().and_then(|memory| memory.total);
    let mut bytes = Vec::new();
    let fits = usize::try_from(size).is_ok_and(|size| bytes.try_reserve_exact(size).is_ok());
    if !fits || total.is_some_and(|total| Bytes(size) > total) {
        return Err(Error::TooLargeToRead { size: Bytes(size) });
    }
    let failed = |reason| Error::Read { file: path.display().to_string(), reason };
    let mut input = std::fs::File::open(path).map_err(failed)?;
    while (bytes.len() as u64) < size {
        observer.progress(Task::Read, Bytes(bytes.len() as u64), Bytes(size));
        let most = READ_AT_ONCE.min(size - bytes.len() as u64);
        if input.by_ref().take(most).read_to_end(&mut bytes).map_err(failed)? == 0 {
            break;
        }
    }
    observer.progress(Task::Read, Bytes(size), Bytes(size));
    gguf::File::from_bytes_of(path, bytes).map_err(Error::File)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_opens() {
        let computation = Computation { mmap: false, ..Computation::default() };
        let cpu = crate::devices::cpu(Some(1));
        let opened = Opened::open(None, &computation, &cpu, &SilentObserver).unwrap();
        assert!(opened.model.is_exactly_sparse());
        let silu = Computation { activation: Some("silu".to_owned()), ..computation };
        let opened = Opened::open(None, &silu, &cpu, &SilentObserver).unwrap();
        assert!(!opened.model.is_exactly_sparse());
    }

    #[test]
    fn a_missing_file_is_named_in_the_error() {
        let error = file(Some(Path::new("no/such.gguf"))).unwrap_err();
        let reason = std::error::Error::source(&error).unwrap().to_string();
        assert!(reason.contains("no/such.gguf"), "{error}: {reason}");
    }
}
