//! PowerInfer's predictors of active neurons: `model_0.pt`, `model_1.pt`, ... in a folder.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hal::{HostRows, Source};

use super::change::Change;
use super::config::Json;
use super::output::{Content, Output, SourceMatrices};
use super::source::read_torch;
use super::{Error, OutType};
use gguf::{Bytes, TensorType};

/// The tensors of a predictor that the converter reads.
const PARTS: [&str; 2] = ["fc1.weight", "fc2.weight"];

/// Adds `fc1` and `fc2` of each layer to `outputs`, and a note about unused tensors to `notes`.
/// Returns the threshold in the folder's `config.json`; `None` if it states none.
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
            let change = Change::default();
            let piece = SourceMatrices::new(tensor, change)?;
            let shape = tensor.shape.iter().rev().copied().collect::<Vec<u64>>();
            // fc1 is `[rank, n_embd]` and fc2 `[n_ff, rank]`, for any rank.
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
            let ty = out_type.tensor_type(&name, &shape, piece.encoding());
            outputs.push(Output { name, shape, ty, content: Content::Rows(vec![piece]) });
        }
    }
    let n: usize = left_out.values().sum();
    if n > 0 {
        let names: Vec<String> =
            left_out.into_keys().take(4).map(|name| format!("`{name}`")).collect();
        notes.push(format!(
            "skipped: {n} tensors of the predictors ({}), since GGUF stores only their two matrices; the predicted neurons may differ",
            names.join(", ")
        ));
    }
    match Json::open_if_present(&folder.join("config.json"))? {
        Some(config) => config.f32(&["sparse_threshold"]),
        None => Ok(None),
    }
}

/// The predictors of a folder.
#[derive(Debug)]
pub struct Predictors {
    /// `fc1` `[rank, n_embd]` and `fc2` `[n_ff, rank]` of each layer.
    pub layers: Vec<[HostRows; 2]>,
    /// The threshold; `None` if the folder states none.
    pub threshold: Option<f32>,
    /// Notes about unused tensors and their effect.
    pub notes: Vec<String>,
}

/// Reads the predictors of a folder, for a model of width `n_embd` with `n_ff` neurons in each
/// layer.
///
/// # Errors
/// Errors in the folder or its files; matrices of wrong sizes.
pub fn predictors(folder: &Path, n_embd: usize, n_ff: &[usize]) -> Result<Predictors, Error> {
    let n_layer = n_ff.len();
    let up = |(layer, n_ff): (usize, &usize)| Output {
        name: format!("blk.{layer}.ffn_up.weight"),
        shape: vec![n_embd as u64, *n_ff as u64],
        ty: TensorType::F32,
        content: Content::Rows(Vec::new()),
    };
    let mut outputs: Vec<Output> = n_ff.iter().enumerate().map(up).collect();
    let mut notes = Vec::new();
    let threshold = add(folder, n_layer as u32, &mut outputs, OutType::F16, &mut notes)?;
    let mut layers = Vec::new();
    for pair in outputs[n_layer..].chunks_exact(2) {
        layers.push([rows(&pair[0]), rows(&pair[1])]);
    }
    Ok(Predictors { layers, threshold, notes })
}

fn rows(output: &Output) -> HostRows {
    let (n_rows, n_cols) = (output.n_rows(), output.row_len());
    let mut bytes = vec![0; n_rows * output.row_bytes()];
    output.fill(0..n_rows, &mut Vec::new(), &mut bytes);
    let format = output.ty.format().expect("weights are written in supported formats");
    let source = Source::Owned(Arc::new(bytes));
    HostRows::new(source, n_rows, n_cols, format).expect("the bytes match the rows")
}
