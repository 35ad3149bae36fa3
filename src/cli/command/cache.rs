//! `thermocline cache`.

use crate::cli::args::{CacheAction, CacheArgs};
use crate::cli::failure::{Exit, Failure};
use crate::cli::folders::cache_folder;
use crate::cli::output::Output;
use crate::cli::terminal::{counted, printable};
use crate::converted;
use hal::Bytes;
use runtime::CacheFolder;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Lists the files of the cache folder, or deletes those of repacked weights.
///
/// # Errors
/// The cache folder is unknown or cannot be read, or a file cannot be deleted.
pub(crate) fn run(args: &CacheArgs) -> Result<(), Failure> {
    let folder = cache_folder(args.repack_cache.as_deref());
    let Some(CacheFolder { path: folder, .. }) = folder else {
        return Err(Failure::usage("the cache folder for repacked weights is unknown")
            .help("set it with --repack-cache DIR"));
    };
    let shown = printable(&folder.display().to_string());
    let failed = |what: &str, error: &std::io::Error| {
        Failure::new(Exit::Failed, format!("cannot {what} '{shown}'")).caused_by(error)
    };
    let mut out = Output::stdout();
    match args.action {
        CacheAction::List => {
            let entries = converted::list(&folder).map_err(|e| failed("list", &e))?;
            for entry in &entries {
                let name = printable(&entry.path.display().to_string());
                let model = entry.model.as_deref().map_or("damaged".to_owned(), printable);
                let gone = if entry.is_orphan() { ", which no longer exists" } else { "" };
                out.line(&format!("{:>11}  {name}  ({model}{gone})", entry.size.to_string()))?;
            }
            let total: Bytes = entries.iter().map(|entry| entry.size).sum();
            let n = counted(entries.len(), "file");
            out.line(&format!("{:>11}  of repacked weights in {n} in {shown}", total.to_string()))?;
            for (path, size, what) in kept_files(&folder).map_err(|e| failed("list", &e))? {
                let name = printable(&path.display().to_string());
                out.line(&format!("{:>11}  {name}  ({what})", size.to_string()))?;
            }
        }
        CacheAction::Clear => {
            let freed = converted::clear(&folder).map_err(|e| failed("clear", &e))?;
            out.line(&format!("{freed} freed in {shown}"))?;
            let kept = kept_files(&folder).map_err(|e| failed("list", &e))?;
            if !kept.is_empty() {
                let n = counted(kept.len(), "file");
                out.line(&format!("{n} with measurements kept; `thermocline cache` lists them"))?;
            }
        }
    }
    out.flush()
}

/// The files of a cache folder that `cache clear` keeps, because measuring or training them again
/// takes long: path, size, and what they hold.
fn kept_files(folder: &Path) -> io::Result<Vec<(PathBuf, Bytes, &'static str)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let what = if name.starts_with("speeds-") && name.ends_with(".json") {
            "measured speeds of the devices; --reset-gpu-index replaces them"
        } else if name.ends_with(learn::learned::SUFFIX) {
            "profile and predictor of a model"
        } else if name.starts_with("wgpu_pipeline_cache") {
            "compiled GPU programs"
        } else {
            continue;
        };
        files.push((entry.path(), Bytes(entry.metadata()?.len()), what));
    }
    files.sort();
    Ok(files)
}
