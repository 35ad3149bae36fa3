//! A PyTorch checkpoint: an archive of one pickle, which describes the tensors, and one member per
//! storage.

use std::ops::Range;
use std::path::Path;

use super::{DTYPES, Tensor, n_bytes, pickle, zip};
use crate::Error;
use gguf::Bytes;

/// The tensors of the checkpoint at `path`.
///
/// # Errors
/// Errors of the archive, the pickle or a tensor in it.
pub(crate) fn read(path: &Path, bytes: &Bytes) -> Result<Vec<Tensor>, Error> {
    let file = path.display().to_string();
    let archive = |problem| Error::Archive { file: file.clone(), problem };
    let members = zip::members(bytes).map_err(archive)?;
    let missing = |member: &str| archive(zip::Problem::Missing { member: member.to_owned() });
    let pickle =
        members.keys().filter(|name| name.ends_with("/data.pkl")).min_by_key(|name| name.len());
    let pickle = pickle.ok_or_else(|| missing("data.pkl"))?;
    let folder = pickle.strip_suffix("data.pkl").unwrap_or_default();
    let order = members.get(&format!("{folder}byteorder"));
    if order.is_some_and(|range| bytes[range.clone()].starts_with(b"big")) {
        return Err(archive(zip::Problem::BigEndian));
    }
    let views = pickle::read(&bytes[members[pickle].clone()]);
    let views = views.map_err(|(at, problem)| Error::Pickle { file: file.clone(), at, problem })?;
    views
        .into_iter()
        .map(|view| {
            let key = format!("{folder}data/{}", view.key);
            let range = members.get(&key).ok_or_else(|| missing(&key))?;
            tensor(view, bytes, range)
        })
        .collect()
}

/// Converts a view to a tensor. Returns an error if its bytes lie outside of the archive member at
/// the byte range `member`.
fn tensor(view: pickle::View, bytes: &Bytes, member: &Range<usize>) -> Result<Tensor, Error> {
    let kind = DTYPES.iter().find(|(_, class, ..)| *class == view.class);
    let &(_, _, encoding, unit) =
        kind.expect("the pickle reader accepts only storage classes of the table");
    let pickle::View { name, shape, strides, offset, n_stored, .. } = view;
    let wrong =
        |expected: String| Error::Shape { tensor: name.clone(), expected, found: shape.clone() };
    let rows_first: Vec<u64> = strides_of(&shape);
    let is_dense = |expected: &[u64]| {
        let axes = shape.iter().zip(&strides).zip(expected);
        axes.into_iter().all(|((&n, stride), expected)| n == 1 || stride == expected)
    };
    let transposed = !is_dense(&rows_first);
    if transposed && !(shape.len() == 2 && is_dense(&[1, shape[0]])) {
        return Err(wrong(format!("strides {rows_first:?}, found {strides:?}")));
    }
    let n = n_bytes(&shape, unit);
    let start = offset.checked_mul(unit);
    let end = start.zip(n).and_then(|(start, n)| start.checked_add(n));
    let stored = n_stored.checked_mul(unit).map_or(0, |n| n.min(member.len() as u64));
    let (Some(start), Some(end)) = (start, end.filter(|&end| end <= stored)) else {
        return Err(wrong(format!("values within its storage of {stored} bytes")));
    };
    let bytes = bytes.slice(member.start + start as usize..member.start + end as usize);
    Ok(Tensor { name, encoding, shape, bytes, transposed, packing: None })
}

/// Strides of a tensor in row-major order, in values. They saturate on overflow and then differ
/// from the strides of every real tensor.
fn strides_of(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}
