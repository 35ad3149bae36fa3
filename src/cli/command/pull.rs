//! `thermocline pull`, `list` and `rm`.

use std::time::{Instant, SystemTime};

use crate::cli::args::{HubArgs, ListArgs, PullArgs, RmArgs};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::{SIGINT, SIGTERM};
use crate::cli::models::{self, ExitOnSignal, Remote, open_hub, shown_size};
use crate::cli::output::Output;
use crate::cli::terminal::{Terminal, printable};
use hub::{Hub, Wanted};

/// Downloads models, and prints the path of each.
///
/// # Errors
/// A name is invalid, or a model cannot be found or fetched.
pub(crate) fn pull(args: &PullArgs, terminal: &Terminal) -> Result<(), Failure> {
    let wanted = wanted(args)?;
    let hub = open_hub(&args.hub)?;
    let _guard = ExitOnSignal::install(&[SIGINT, SIGTERM], terminal)?;
    let mut out = Output::stdout();
    for (name, remote) in wanted {
        let start = Instant::now();
        let found = models::pull(&remote, &hub, terminal)?;
        let how = match found.downloaded {
            0 => "was downloaded already".to_owned(),
            bytes => {
                let seconds = start.elapsed().as_secs_f64();
                format!("is downloaded ({} in {seconds:.0} s)", shown_size(bytes))
            }
        };
        let name = printable(&name);
        terminal.note(&format!("{name} {how}; `thermocline run {name}` runs it"));
        out.line(&found.path.display().to_string())?;
    }
    out.flush()
}

/// The models that the command line names, each as it was written.
fn wanted(args: &PullArgs) -> Result<Vec<(String, Remote)>, Failure> {
    let HubArgs { hf_repo, hf_file, model_url, .. } = &args.hub;
    let mut wanted = Vec::new();
    if let Some(name) = hf_repo.clone() {
        let shown = name.to_string();
        wanted.push((shown, Remote::Name(Wanted { file: hf_file.clone(), ..Wanted::new(name) })));
    }
    for text in args.names.iter().chain(model_url) {
        let remote = models::remote_of(text).ok_or_else(|| models::not_a_name(text, &args.hub))?;
        wanted.push((text.clone(), remote));
    }
    if wanted.is_empty() {
        let help = "such as `thermocline pull USER/REPO` or `thermocline pull USER/REPO:Q4_K_M`";
        return Err(Failure::usage("pull needs the name of a model").help(help));
    }
    Ok(wanted)
}

fn cache_only() -> Result<Hub, Failure> {
    let args =
        HubArgs { hf_repo: None, hf_file: None, hf_token: None, model_url: None, offline: true };
    open_hub(&args)
}

/// Prints the models in the cache.
///
/// # Errors
/// The cache cannot be read.
pub(crate) fn list(args: &ListArgs) -> Result<(), Failure> {
    let hub = cache_only()?;
    let models = hub.list().map_err(|e| models::failure(e, &hub))?;
    let mut out = Output::stdout();
    if args.json {
        let models = models.iter().map(|model| {
            let time = model.modified.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
            serde_json::json!({
                "name": model.name.to_string(),
                "path": model.path,
                "bytes": model.size,
                "modified": time.map(|time| time.as_secs()),
                "complete": model.path.is_some(),
            })
        });
        out.line(&serde_json::Value::from(models.collect::<Vec<_>>()).to_string())?;
        return out.flush();
    }
    let names: Vec<String> =
        models.iter().map(|model| printable(&model.name.to_string())).collect();
    let width = names.iter().map(String::len).max().unwrap_or_default();
    for (model, name) in models.iter().zip(&names) {
        let when = match (&model.path, model.modified) {
            (None, _) => "not complete; `thermocline pull` continues it".to_owned(),
            (Some(_), time) => time.map_or(String::new(), age),
        };
        out.line(&format!("{name:width$}  {:>9}  {when}", shown_size(model.size)))?;
    }
    let total: u64 = models.iter().map(|model| model.size).sum();
    let (n, folder) = (models.len(), hub.cache().display());
    let plural = if n == 1 { "" } else { "s" };
    out.line(&format!("{n} model{plural}, {} in {folder}", shown_size(total)))?;
    out.flush()
}

/// How long ago a time was.
fn age(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or_default().as_secs();
    let units = [(86400 * 365, "year"), (86400 * 30, "month"), (86400, "day"), (3600, "hour")];
    let unit = units.into_iter().find(|(size, _)| seconds >= *size);
    let (size, unit) = unit.unwrap_or((60, "minute"));
    match seconds / size {
        0 => "just now".to_owned(),
        1 => format!("1 {unit} ago"),
        n => format!("{n} {unit}s ago"),
    }
}

/// Deletes models from the cache.
///
/// # Errors
/// A model is not in the cache, or a file cannot be deleted.
pub(crate) fn remove(args: &RmArgs) -> Result<(), Failure> {
    let hub = cache_only()?;
    let mut out = Output::stdout();
    for name in &args.names {
        let removed = hub.remove(name).map_err(|e| models::failure(e, &hub))?;
        let Some(removed) = removed else {
            return Err(Failure::new(Exit::Failed, format!("'{name}' is not in the cache"))
                .help("`thermocline list` shows the models in the cache"));
        };
        let plural = if removed.files == 1 { "" } else { "s" };
        let (files, bytes) = (removed.files, shown_size(removed.bytes));
        out.line(&format!("deleted {name}: {files} file{plural}, {bytes}"))?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages_have_one_unit() {
        let ago = |seconds| age(SystemTime::now() - Duration::from_secs(seconds));
        assert_eq!(ago(5), "just now");
        assert_eq!(ago(61), "1 minute ago");
        assert_eq!(ago(3 * 86400 + 7), "3 days ago");
    }
}
