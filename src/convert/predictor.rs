//! PowerInfer's predictors of active neurons: `model_0.pt`, `model_1.pt`, ... in a folder.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::Json;
use super::output::{Change, Content, Output, Piece, RowMap};
use super::source::read_torch;
use super::{Error, OutType};
use crate::gguf::Bytes;

/// What of a predictor is read.
const PARTS: [&str; 2] = ["fc1.weight", "fc2.weight"];

/// Adds `fc1` and `fc2` of each layer; gives the threshold, if the folder states one. Notes tell what else was there.
pub(super) fn add(
    folder: &Path,
    n_layer: u32,
    outputs: &mut Vec<Output>,
    out_type: OutType,
    notes: &mut Vec<String>,
) -> Result<Option<f32>, Error> {
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    for layer in 0..n_layer {
        let path = folder.join(format!("model_{layer}.pt"));
        let tensors = read_torch(&path, &Bytes::open(&path)?)?;
        let up = format!("blk.{layer}.ffn_up.weight");
        let up = outputs.iter().find(|output| output.name == up).map(|output| output.shape.clone());
        let up = up
            .ok_or_else(|| Error::MissingTensor { tensor: format!("blk.{layer}.ffn_up.weight") })?;
        let mut rank = None;
        for tensor in tensors.iter().filter(|tensor| !PARTS.contains(&tensor.name.as_str())) {
            *left_out.entry(tensor.name.clone()).or_default() += 1;
        }
        for part in PARTS {
            let name = format!("blk.{layer}.{part}");
            let tensor = tensors.iter().find(|tensor| tensor.name == part);
            let tensor = tensor.ok_or_else(|| Error::MissingTensor {
                tensor: format!("{name} ({})", path.display()),
            })?;
            let change =
                Change { map: RowMap::Same, is_vector: false, transpose: false, plus: 0.0 };
            let piece = Piece::new(tensor, change)?;
            let shape = tensor.shape.iter().rev().copied().collect::<Vec<u64>>();
            // fc1 reads the residual and fc2 scores neurons, of whatever rank between.
            let expected = match rank {
                None => [up[0], shape.get(1).copied().unwrap_or(0)],
                Some(rank) => [rank, up.get(1).copied().unwrap_or(1)],
            };
            if shape != expected {
                let found = tensor.shape.clone();
                return Err(Error::Shape {
                    tensor: name,
                    expected: format!("[{}, {}]", expected[1], expected[0]),
                    found,
                });
            }
            rank = Some(shape[1]);
            let ty = out_type.of(&name, &shape, piece.encoding());
            outputs.push(Output { name, shape, ty, content: Content::Rows(vec![piece]) });
        }
    }
    let n: usize = left_out.values().sum();
    if n > 0 {
        let names: Vec<String> =
            left_out.into_keys().take(4).map(|name| format!("`{name}`")).collect();
        notes.push(format!(
            "left out: {n} tensors of the predictors ({}), of which files hold the two matrices alone: they choose other neurons without them",
            names.join(", ")
        ));
    }
    match Json::open_if_there(&folder.join("config.json"))? {
        Some(config) => config.f32(&["sparse_threshold"]),
        None => Ok(None),
    }
}
