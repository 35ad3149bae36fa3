//! Projections of a pooled embedding: the `Dense` modules of Sentence Transformers, which have folders
//! of their own.

use std::path::Path;

use super::change::Change;
use super::config::Json;
use super::family::folders_of;
use super::output::{Content, Output, SourceMatrices};
use super::source::Checkpoint;
use super::{Error, OutType};
use gguf::Value;

/// Tensors and keys of a file beside those that the rules of its family describe.
pub(super) type Additions = (Vec<Output>, Vec<(String, Value)>);

/// Names of the projections in the file; llama.cpp has two.
const NAMES: [&str; 2] = ["dense_2", "dense_3"];
/// The only activation that a file can hold.
const IDENTITY: &str = "torch.nn.modules.linear.Identity";

/// The projections in the modules beside `folder/config.json`, and their keys for architecture
/// `arch`.
pub(super) fn read(folder: &Path, arch: &str, out_type: OutType) -> Result<Additions, Error> {
    let (mut outputs, mut keys) = (Vec::new(), Vec::new());
    let modules = folders_of(folder, "Dense")?;
    for (i, module) in modules.iter().enumerate() {
        let config = Json::open(&module.join("config.json"))?;
        let Some(name) = NAMES.get(i) else {
            return Err(config.wrong_value("type", "at most two Dense modules", modules.len()));
        };
        let activation = config.text(&["activation_function"])?;
        if let Some(other) = activation.filter(|activation| activation != IDENTITY) {
            return Err(config.wrong_value("activation_function", IDENTITY, other));
        }
        let checkpoint = Checkpoint::open(module)?;
        let missing =
            || Error::MissingTensor { tensor: format!("{}: linear.weight", module.display()) };
        let tensor = checkpoint.tensors.get("linear.weight").ok_or_else(missing)?;
        if let Some(bias) = checkpoint.tensors.get("linear.bias") {
            return Err(Error::UnknownTensor {
                tensor: bias.name.clone(),
                arch: "gemma-embedding",
            });
        }
        let change = Change::default();
        let source = SourceMatrices::new(tensor, change)?;
        let shape = source.shape(None);
        let name_of = format!("{name}.weight");
        let ty = out_type.tensor_type(&name_of, &shape, source.encoding());
        for (side, n) in [("feat_in", shape[0]), ("feat_out", shape.get(1).copied().unwrap_or(1))] {
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            keys.push((format!("{arch}.{name}_{side}"), Value::U32(n)));
        }
        outputs.push(Output { name: name_of, shape, ty, content: Content::Rows(vec![source]) });
    }
    Ok((outputs, keys))
}
