//! `modules.json` of Sentence Transformers, which lists what follows the model.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::Error;
use crate::config::Json;

/// The folders of the modules whose type ends in `kind`, inside `folder`, in order.
///
/// # Errors
/// A list that is not JSON.
pub(crate) fn folders_of(folder: &Path, kind: &str) -> Result<Vec<PathBuf>, Error> {
    let modules = Json::list_if_present(&folder.join("modules.json"))?.unwrap_or_default();
    let text = |module: &Value, key: &str| Some(module.get(key)?.as_str()?.to_owned());
    let is_kind = |module: &&Value| {
        text(module, "type").is_some_and(|of| of.rsplit('.').next() == Some(kind))
    };
    let paths = modules.iter().filter(is_kind).filter_map(|module| text(module, "path"));
    // A path that leaves the folder is not followed.
    let inside =
        |path: &PathBuf| path.components().all(|part| matches!(part, Component::Normal(_)));
    Ok(paths.map(PathBuf::from).filter(inside).map(|path| folder.join(path)).collect())
}
