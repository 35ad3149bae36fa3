//! The shapes of a model's tensors from its `config.json` alone, for plans: no checkpoint is needed
//! and no weight exists.
//!
//! Shapes are those of the GGUF files of the family that [`sizes`] assigns to the model, in the
//! types that [`crate::Quantization`] would choose. Vectors that no plan depends on (biases,
//! corrections of routers) are left out, and so are the vocabulary and settings that change values
//! but no shape.

mod sizes;
mod tensors;

use std::path::{Path, PathBuf};

use gguf::{Container, File, Writer};

use crate::Error;
use crate::config::Json;
use crate::quantize::{Mix, Quantization, Target};
use sizes::Sizes;

/// A file without data, with the tensors of the model that `config` (a `config.json`, or a folder
/// with one) describes, in the types of `target`.
///
/// # Errors
/// Errors of the file; [`Error::Shapes`] for a model whose shapes are not known.
pub fn shapes(config: &Path, target: Target) -> Result<File, Error> {
    let path = if config.is_dir() { config.join("config.json") } else { config.to_owned() };
    let json = Json::open(&path)?.flatten("text_config");
    let sizes = Sizes::read(&json)?;
    // Many files are called config.json; their folders are called like the models.
    let folder = path.parent().filter(|folder| folder.file_name().is_some());
    let name = folder.unwrap_or(&path).display().to_string();
    let floats = file(&sizes, &name, |writer, name, shape| {
        writer.declare(name, shape, tensors::float_type(name, shape))
    })?;
    let job = Quantization::new(PathBuf::new(), PathBuf::new(), target);
    let mix = Mix::new(&floats, &job)?;
    file(&sizes, &name, |writer, name, shape| {
        let tensor = floats.tensor(name);
        let of =
            tensor.map_or_else(|| tensors::float_type(name, shape), |tensor| mix.choose(tensor).0);
        writer.declare(name, shape, of)
    })
}

fn file(
    sizes: &Sizes,
    name: &str,
    mut declare: impl FnMut(&mut Writer, &str, &[u64]) -> Result<(), gguf::Error>,
) -> Result<File, Error> {
    let mut writer = Writer::new(Container::Gguf);
    sizes.set_keys(&mut writer)?;
    for (tensor, shape) in tensors::list(sizes) {
        declare(&mut writer, &tensor, &shape)?;
    }
    Ok(writer.shapes(name)?)
}

/// The names in `model_type` of `config.json` whose shapes are known.
pub fn shape_types() -> impl Iterator<Item = &'static str> {
    sizes::model_types()
}
