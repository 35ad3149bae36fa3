//! The trained numbers of Apertus' activation (xIELU): tensors of one value in the checkpoint, lists
//! with a number for each layer in the file.

use super::Error;
use super::change::Change;
use super::output::SourceMatrices;
use super::source::Checkpoint;
use gguf::{Array, Value};

/// Names in the checkpoint and in the file, and the default of `transformers` for checkpoints that
/// lack the number.
const NUMBERS: [(&str, Option<f32>); 4] =
    [("alpha_n", None), ("alpha_p", None), ("beta", Some(0.5)), ("eps", Some(-1e-6))];

pub(super) fn keys(checkpoint: &Checkpoint, n_layer: u32) -> Result<Vec<(String, Value)>, Error> {
    let mut keys = Vec::new();
    for (part, default) in NUMBERS {
        let mut values = Vec::new();
        for layer in 0..n_layer {
            let name = format!("model.layers.{layer}.mlp.act_fn.{part}");
            let Some(tensor) = checkpoint.tensors.get(&name) else {
                let missing = || Error::MissingTensor { tensor: name.clone() };
                values.push(default.ok_or_else(missing)?);
                continue;
            };
            let change = Change { is_vector: true, ..Change::default() };
            let mut tensor = tensor.clone();
            if tensor.shape.is_empty() {
                tensor.shape.push(1);
            }
            let mut value = [0.0];
            match SourceMatrices::new(&tensor, change)? {
                source if source.shape(None) == [1] => source.read(0..1, &mut value),
                source => {
                    let found = source.shape(None);
                    return Err(Error::Shape { tensor: name, expected: "one value".into(), found });
                }
            }
            values.push(value[0]);
        }
        keys.push((format!("xielu.{part}"), Value::Array(Array::F32(values))));
    }
    Ok(keys)
}
