//! Models split over files: `NAME-00001-of-00003.gguf` and the `split.*` keys.
//!
//! Source: llama.cpp's gguf-split.

use std::path::{Path, PathBuf};

use super::{Error, Metadata, Problem};

/// Digits of a part's number in its file name, and the largest such number.
const DIGITS: usize = 5;
const MAX_PARTS: u64 = 99_999;

/// The position of a file in a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// Number of this part, from 0.
    pub(super) number: u64,
    /// Number of parts, 2 or more.
    pub(super) count: u64,
    /// Number of tensors in all parts together; `None` if not stated.
    pub(super) n_tensors: Option<u64>,
}

impl Split {
    /// Reads the `split.*` keys; `None` for a file that is not split.
    pub(super) fn read(metadata: &Metadata) -> Result<Option<Split>, Error> {
        let count = metadata.u64("split.count")?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let number = metadata.u64("split.no")?.unwrap_or(0);
        Ok(Some(Split { number, count, n_tensors: metadata.u64("split.tensors.count")? }))
    }
}

/// The paths of all `count` parts, including `path`.
pub(super) fn paths(path: &Path, count: u64) -> Result<impl Iterator<Item = PathBuf>, Problem> {
    if count > MAX_PARTS {
        return Err(Problem::Split {
            what: "key `split.count`",
            expected: format!("at most {MAX_PARTS}"),
            found: count.to_string(),
        });
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((prefix, extension)) = prefix(&name, count) else {
        return Err(Problem::Split {
            what: "file name",
            expected: format!(
                "NAME-00001-of-{count:0DIGITS$}.gguf, as for each of its {count} parts"
            ),
            found: name,
        });
    };
    let (prefix, extension) = (prefix.to_owned(), extension.to_owned());
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    Ok((1..=count).map(move |number| {
        folder.join(format!("{prefix}-{number:0DIGITS$}-of-{count:0DIGITS$}{extension}"))
    }))
}

/// The paths of all parts that belong to `path` by its name; only `path` for any other name.
pub fn parts_by_name(path: &Path) -> Vec<PathBuf> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let count = name.rsplit_once("-of-").and_then(|(_, count)| count.parse().ok());
    let all = count.filter(|&count| count > 0).and_then(|count| paths(path, count).ok());
    all.map_or_else(|| vec![path.to_owned()], Iterator::collect)
}

/// Splits a file name into the text before `-00001-of-00003` and the text after it; `None` for any
/// other name.
fn prefix(name: &str, count: u64) -> Option<(&str, &str)> {
    let (start, extension) = name.split_at(name.rfind('.').unwrap_or(name.len()));
    let start = start.strip_suffix(&format!("-of-{count:0DIGITS$}"))?;
    let (prefix, number) = start.rsplit_once('-')?;
    let is_number = number.len() == DIGITS && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((prefix, extension))
}
