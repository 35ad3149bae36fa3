//! `thermocline cache`.

use crate::cli::args::CacheAction;
use crate::cli::config::model::Folder;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::terminal::printable;
use crate::converted;

/// Lists the files of converted weights, or removes them.
///
/// # Errors
/// No folder, one that cannot be read, a file that cannot be removed.
pub(crate) fn run(action: CacheAction, folder: Option<Folder>) -> Result<(), Failure> {
    let Some(Folder { path: folder, .. }) = folder else {
        return Err(Failure::usage("no folder for converted weights is known")
            .help("name one with --repack-cache"));
    };
    let shown = printable(&folder.display().to_string());
    let failed = |what: &str, error: &std::io::Error| {
        Failure::new(Exit::Failed, format!("cannot {what} '{shown}'")).caused_by(error)
    };
    let mut out = Output::stdout();
    match action {
        CacheAction::List => {
            let entries = converted::list(&folder).map_err(|e| failed("list", &e))?;
            for entry in &entries {
                let name = printable(&entry.path.display().to_string());
                let model = entry.model.as_deref().map_or("damaged".to_owned(), printable);
                let gone = if entry.is_orphan() { ", which is gone" } else { "" };
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
