//! Keys and tensors that are computed from the values of a checkpoint, if a tensor cannot be copied
//! to the file as it is.

use super::Error;
use super::change::Change;
use super::dense::Additions;
use super::family::{Build, On};
use super::output::{Content, Output, SourceMatrices};
use super::source::{Checkpoint, Encoding, Tensor, whole_numbers};
use gguf::{Array, Bytes, TensorType, Value};

/// The tensor whose name ends in `end`, after a prefix that depends on the model.
fn find<'a>(checkpoint: &'a Checkpoint, end: &str) -> Option<&'a Tensor> {
    let is_whole = |name: &str| {
        name.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.'))
    };
    checkpoint.tensors.values().find(|tensor| is_whole(&tensor.name))
}

fn need<'a>(checkpoint: &'a Checkpoint, end: &str) -> Result<&'a Tensor, Error> {
    find(checkpoint, end).ok_or_else(|| Error::MissingTensor { tensor: end.to_owned() })
}

/// The values of a tensor of any shape.
fn values(tensor: &Tensor) -> Result<Vec<f32>, Error> {
    let shape = vec![tensor.shape.iter().product()];
    let flat = Tensor { shape, ..tensor.clone() };
    let source = SourceMatrices::new(&flat, Change { is_vector: true, ..Change::default() })?;
    let mut values = vec![0.0; source.shape(None)[0] as usize];
    source.read(0..1, &mut values);
    Ok(values)
}

/// Kimi K3: the score of a residual is the product of its norm with a row. The checkpoint stores
/// that row as two factors, the weights of a norm and a row. `n_layer`: the number of layers.
pub(super) fn kimi_scores(checkpoint: &Checkpoint, n_layer: u32) -> Result<Additions, Error> {
    let in_layers = (0..n_layer).flat_map(|layer| {
        [("attn_res_score", "self_attention_res"), ("ffn_res_score", "mlp_res")].map(
            |(to, from)| (format!("blk.{layer}.{to}.weight"), format!("layers.{layer}.{from}")),
        )
    });
    let end = [("output_res_score.weight".to_owned(), "output_attn_res".to_owned())];
    let mut outputs = Vec::new();
    for (name, from) in in_layers.chain(end) {
        let part = |part: &str| need(checkpoint, &format!("{from}_{part}.weight"));
        let (norm, row) = (part("norm")?, part("proj")?);
        let (weights, scores) = (values(norm)?, values(row)?);
        if weights.len() != scores.len() {
            let expected = format!("{} values, as {}", weights.len(), norm.name);
            let (tensor, found) = (row.name.clone(), row.shape.clone());
            return Err(Error::Shape { tensor, expected, found });
        }
        let product: Vec<f32> = weights.iter().zip(&scores).map(|(a, b)| a * b).collect();
        let (shape, content) = (vec![product.len() as u64], Content::Values(product));
        outputs.push(Output { name, shape, ty: TensorType::F32, content });
    }
    Ok((outputs, Vec::new()))
}

/// Talkie: the factor on the logits.
pub(super) fn talkie_gain(checkpoint: &Checkpoint) -> Result<Additions, Error> {
    let gain = need(checkpoint, "lm_head_gain.w_g")?;
    match values(gain)?[..] {
        [gain] => Ok((Vec::new(), vec![("talkie.logit_scale".to_owned(), gain.into())])),
        _ => Err(Error::Shape {
            tensor: gain.name.clone(),
            expected: "one value".to_owned(),
            found: gain.shape.clone(),
        }),
    }
}

/// Qwen3.8-Flash-Next: the numbers of the hash of n-grams, which do not fit in floats.
pub(super) fn qwen_hash(checkpoint: &Checkpoint) -> Result<Additions, Error> {
    const START: &str = "ple.ple_embedding.";
    let mut keys = Vec::new();
    for (to, from) in [
        ("layer_multipliers", "layer_multipliers"),
        ("head_offsets", "ngram_heads_offsets"),
        ("head_vocab_sizes", "ngram_heads_vocab_sizes"),
    ] {
        let Some(tensor) = find(checkpoint, &format!("{START}{from}")) else { continue };
        if tensor.encoding != Encoding::Other("I64") {
            let (tensor, found) = (tensor.name.clone(), tensor.encoding.name().to_owned());
            return Err(Error::Encoding { tensor, expected: "I64", found });
        }
        let numbers = tensor.bytes.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes));
        keys.push((format!("qwen4exp.ple.{to}"), Value::Array(Array::U64(numbers.collect()))));
    }
    Ok((Vec::new(), keys))
}

/// DeepSeek V4: for each token, the experts of the first layers, which are whole numbers.
pub(super) fn expert_tables(
    checkpoint: &Checkpoint,
    build: &Build<'_>,
) -> Result<Additions, Error> {
    let n_expert = build.n_expert().unwrap_or(0);
    let listed = |layer: &u32| build.applies(Some(On::ListedExperts), *layer as usize);
    let mut outputs = Vec::new();
    for layer in (0..build.n_layer()?).filter(listed) {
        let table = need(checkpoint, &format!("layers.{layer}.ffn.gate.tid2eid"))?;
        let wrong = |expected: String| {
            let (tensor, found) = (table.name.clone(), table.shape.clone());
            Error::Shape { tensor, expected, found }
        };
        let &[n_vocab, n_used] = table.shape.as_slice() else {
            return Err(wrong("a row of experts for each token".to_owned()));
        };
        let ids = whole_numbers(table)?;
        if ids.is_empty() || ids.iter().any(|&id| id as u64 >= n_expert) {
            return Err(wrong(format!("numbers below the {n_expert} experts")));
        }
        // All ids are below the number of experts, which is at most 2^24.
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect();
        let name = format!("blk.{layer}.ffn_gate_tid2eid.weight");
        let (shape, content) = (vec![n_used, n_vocab], Content::Copy(Bytes::from(bytes)));
        outputs.push(Output { name, shape, ty: TensorType::I32, content });
    }
    Ok((outputs, Vec::new()))
}

/// Jais: the largest bias of ALiBi, from the slope of the first head.
pub(super) fn jais_bias(checkpoint: &Checkpoint) -> Result<Additions, Error> {
    let bias = match find(checkpoint, "relative_pe.slopes") {
        None => 8.0,
        Some(tensor) => {
            let slopes = values(tensor)?;
            let power = 1 << slopes.len().max(1).ilog2();
            -(slopes[0].log2() * power as f32).round()
        }
    };
    Ok((Vec::new(), vec![("jais.attention.max_alibi_bias".to_owned(), bias.into())]))
}
