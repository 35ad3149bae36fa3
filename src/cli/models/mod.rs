//! Models by name: finds the model that a command line names, and downloads missing files.

mod errors;
mod interrupt;
mod progress;
mod settings;

pub(crate) use errors::{failure, not_a_name};
pub(crate) use interrupt::ExitOnSignal;
pub(crate) use progress::{DownloadBar, shown_size};
pub(crate) use settings::open_hub;

use super::args::{Command, HubArgs, is_url};
use super::failure::Failure;
use super::folders;
use super::interrupt::{Interrupt, SIGINT};
use super::terminal::Terminal;
use clap::ArgMatches;
use clap::parser::ValueSource;
use hub::{Found, Hub, ModelName, Wanted};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A model that is not a local file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remote {
    /// A repository on the hub.
    Name(Wanted),
    /// Any other URL.
    Url(String),
}

/// Whether a word is a model's name on the hub: one slash, no file or folder of that name here.
pub(crate) fn is_name(word: &OsStr) -> bool {
    word.to_str().and_then(name).is_some()
}

fn name(text: &str) -> Option<ModelName> {
    let name = ModelName::parse(text)?;
    let is_path = Path::new(text).exists() || Path::new(&name.user).is_dir();
    (!is_path).then_some(name)
}

/// What `-m` or a word names; `None` for a file.
fn remote(text: &str, endpoint: &str) -> Option<Remote> {
    if let Some(wanted) = Wanted::of_url(text, endpoint) {
        return Some(Remote::Name(wanted));
    }
    if let Some(name) = name(text) {
        return Some(Remote::Name(Wanted::new(name)));
    }
    is_url(text).then(|| Remote::Url(text.to_owned()))
}

/// Replaces names and addresses of models in `command` by the files in the cache, and downloads
/// what is missing. `given` holds whether each flag came from the command line.
///
/// # Errors
/// Flags that contradict each other; a model that cannot be found or fetched.
pub(crate) fn resolve(
    command: &mut Command,
    given: &ArgMatches,
    terminal: &Terminal,
) -> Result<(), Failure> {
    if command.placement().is_some_and(|placement| placement.list_devices) {
        return Ok(());
    }
    // These commands have no handler of their own.
    let needs_default =
        matches!(command, Command::Info(_) | Command::Plan(_) | Command::Tokenize(_));
    let Some((hub, models)) = command.models_mut() else { return Ok(()) };
    let fetch = |remote: &Remote| {
        let found = fetch_missing(remote, hub, terminal)?;
        if needs_default {
            Interrupt::restore_default()?;
        }
        Ok::<_, Failure>(found)
    };
    let on_line = |id: &str| {
        given.try_contains_id(id).is_ok()
            && given.value_source(id) == Some(ValueSource::CommandLine)
    };
    let flags = [("-hf", "hf_repo"), ("-mu", "model_url"), ("-m", "model")];
    let named: Vec<&str> =
        flags.iter().filter(|(_, id)| on_line(id)).map(|(flag, _)| *flag).collect();
    if let [first, second, ..] = named[..] {
        let message = format!("{first} and {second} both name a model");
        return Err(Failure::usage(message).help(format!("remove {first} or {second}")));
    }
    if on_line("hf_file") && hub.hf_repo.is_none() {
        let help = "such as -hf USER/REPO -hff FILE.gguf";
        return Err(Failure::usage("--hf-file needs --hf-repo").help(help));
    }
    let uses = |flag: &str| named.is_empty() || named[0] == flag;
    let remote_model = match (&hub.hf_repo, &hub.model_url) {
        (Some(name), _) if uses("-hf") => {
            let file = hub.hf_file.clone();
            Some(Remote::Name(Wanted { file, ..Wanted::new(name.clone()) }))
        }
        (_, Some(url)) if uses("-mu") => Some(of_address(url)?),
        _ => None,
    };
    if let Some(remote) = remote_model {
        models.set(&[fetch(&remote)?]);
        return Ok(());
    }
    let mut files = Vec::new();
    for path in models.paths() {
        files.push(match path.to_str().and_then(remote_of) {
            Some(remote) => fetch(&remote).map_err(|mut failure| {
                if !path.to_str().is_some_and(is_url) {
                    failure.causes.push(format!("there is no file '{}' here", path.display()));
                }
                failure
            })?,
            None if is_bare_name(&path) => return Err(errors::no_such_file(&path, hub)),
            None => path,
        });
    }
    models.set(&files);
    Ok(())
}

/// Whether a path that does not exist may be meant as a name: it lacks the extension of models, such
/// as `llama3.2`.
fn is_bare_name(path: &Path) -> bool {
    let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    !path.as_os_str().is_empty() && !is_gguf && !path.exists()
}

/// As [`remote`], for the hub that the environment names.
pub(crate) fn remote_of(text: &str) -> Option<Remote> {
    remote(text, &settings::endpoint())
}

fn of_address(url: &str) -> Result<Remote, Failure> {
    remote_of(url).ok_or_else(|| {
        let message = format!("'{url}' is not a URL");
        Failure::usage(message).help("-mu takes a URL that begins with https:// or http://")
    })
}

/// The file of a model, from the cache if it is there, otherwise downloaded.
fn fetch_missing(remote: &Remote, args: &HubArgs, terminal: &Terminal) -> Result<PathBuf, Failure> {
    let hub = open_hub(args)?;
    if let Remote::Name(wanted) = remote {
        let found = hub.find(wanted).map_err(|e| failure(e, &hub))?;
        if let Some(found) = found {
            terminal.detail(&format!("{} is in the cache: {}", wanted.name, found.path.display()));
            return Ok(found.path);
        }
    }
    let _guard = ExitOnSignal::install(&[SIGINT], terminal)?;
    Ok(pull(remote, &hub, terminal)?.path)
}

/// Downloads what is missing or has changed.
///
/// # Errors
/// The model cannot be found or fetched.
pub(crate) fn pull(remote: &Remote, hub: &Hub, terminal: &Terminal) -> Result<Found, Failure> {
    let mut bar = DownloadBar::new(terminal);
    let found = match remote {
        Remote::Name(wanted) => hub.pull(wanted, &mut bar),
        Remote::Url(url) => hub.download(url, &folders::downloads()?, &mut bar),
    };
    bar.clear();
    let found = found.map_err(|e| failure(e, hub))?;
    if let (Some(folder), 1..) = (&found.activation, found.downloaded) {
        terminal.note(&format!(
            "the repository has PowerInfer's activation counts: `thermocline profile -m '{}' --import '{}'` uses them",
            found.path.display(),
            folder.display(),
        ));
    }
    Ok(found)
}
