//! PowerInfer's predictors of active neurons: `model_0.pt`, `model_1.pt`, ... in a folder.

use std::path::Path;

use super::config::Json;
use super::output::{Change, Content, Output, Piece, RowMap};
use super::source::read_torch;
use super::{Error, OutType};
use crate::gguf::Bytes;

/// Adds `fc1` and `fc2` of each layer; gives the threshold, if the folder states one.
pub(super) fn add(
    folder: &Path,
    n_layer: u32,
    outputs: &mut Vec<Output>,
    out_type: OutType,
) -> Result<Option<f32>, Error> {
    for layer in 0..n_layer {
        let path = folder.join(format!("model_{layer}.pt"));
        let tensors = read_torch(&path, &Bytes::open(&path)?)?;
        let up = format!("blk.{layer}.ffn_up.weight");
        let up = outputs.iter().find(|output| output.name == up).map(|output| output.shape.clone());
        let up = up
            .ok_or_else(|| Error::MissingTensor { tensor: format!("blk.{layer}.ffn_up.weight") })?;
        let mut rank = None;
        for part in ["fc1.weight", "fc2.weight"] {
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
    match Json::open_if_there(&folder.join("config.json"))? {
        Some(config) => config.f32(&["sparse_threshold"]),
        None => Ok(None),
    }
}
