//! Experts whose 4-bit codes and scales are separate in the checkpoint (gpt-oss).

use hal::format::Format;

use super::Error;
use super::change::RowMap;
use super::family::Transform;
use super::output::{Content, Output};
use super::source::{Checkpoint, Encoding, Tensor};

/// The output of MXFP4 experts with codes `[experts, rows, blocks, 16]` and scales `[experts,
/// rows, blocks]`.
pub(super) fn mxfp4(
    tensor: &Tensor,
    checkpoint: &Checkpoint,
    name: &str,
    transform: Transform,
) -> Result<Output, Error> {
    let scales_name = tensor.name.replace("_blocks", "_scales");
    let scales =
        checkpoint.tensors.get(&scales_name).ok_or(Error::MissingTensor { tensor: scales_name })?;
    for tensor in [tensor, scales] {
        if tensor.encoding != Encoding::U8 {
            let (tensor, found) = (tensor.name.clone(), tensor.encoding.name().to_owned());
            return Err(Error::Encoding { tensor, expected: "bytes", found });
        }
    }
    let &[experts, rows, blocks, 16] = tensor.shape.as_slice() else {
        let expected = "[experts, rows, blocks, 16]".to_owned();
        return Err(Error::Shape {
            tensor: tensor.name.clone(),
            expected,
            found: tensor.shape.clone(),
        });
    };
    if scales.shape != [experts, rows, blocks] || tensor.bytes.is_empty() {
        let expected = format!("[{experts}, {rows}, {blocks}]");
        return Err(Error::Shape {
            tensor: scales.name.clone(),
            expected,
            found: scales.shape.clone(),
        });
    }
    let map = if matches!(transform, Transform::Mxfp4) {
        RowMap::Same
    } else {
        RowMap::Every { first: usize::from(matches!(transform, Transform::Mxfp4Odd)) }
    };
    let (n_source, n_rows) = (rows as usize, map.n_rows(rows as usize));
    let content = Content::Mxfp4 {
        blocks: tensor.bytes.clone(),
        scales: scales.bytes.clone(),
        map,
        n_source,
        n_rows,
    };
    let shape = vec![blocks * 32, n_rows as u64, experts];
    Ok(Output { name: name.replace("_blocks", ""), shape, ty: Format::MXFP4.into(), content })
}
