//! `thermocline cache`.

use crate::cli::args::{CacheAction, CacheArgs};
use crate::cli::failure::{Exit, Failure};
use crate::cli::folders::cache_folder;
use crate::cli::output::Output;
use crate::cli::terminal::printable;
use crate::converted;
use runtime::CacheFolder;

/// Lists the files of repacked weights, or deletes them.
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
            let total: hal::Bytes = entries.iter().map(|entry| entry.size).sum();
            out.line(&format!("{:>11}  in {} files in {shown}", total.to_string(), entries.len()))?;
        }
        CacheAction::Clear => {
            let freed = converted::clear(&folder).map_err(|e| failed("clear", &e))?;
            out.line(&format!("{freed} freed in {shown}"))?;
        }
    }
    out.flush()
}
