//! Errors of the hub as failures that say what to do.

use super::progress::shown_size;
use super::settings::open_hub;
use crate::cli::args::HubArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::printable;
use hub::{Error, Hub, ModelName};
use std::io::ErrorKind;
use std::path::Path;

/// Most names in a list.
const MAX_LISTED: usize = 12;
const MAKE_TOKEN: &str = "https://huggingface.co/settings/tokens makes one";

const HOW_TO_NAME: &str = "name a model on Hugging Face as USER/REPO or USER/REPO:QUANT, such as ggml-org/gemma-3-1b-it-GGUF; `thermocline pull` downloads it, `thermocline list` shows the downloaded models, docs/models.md has models to start with";

/// The failure of a word that names no model to download.
pub(crate) fn not_a_name(text: &str, args: &HubArgs) -> Failure {
    let failure = Failure::usage(format!("'{text}' is not a model's name"));
    failure.help(how_to_name(text, args))
}

/// The failure of a word that is neither a file nor a model's name.
pub(super) fn no_such_file(path: &Path, args: &HubArgs) -> Failure {
    let text = path.to_string_lossy();
    let mut failure = Failure::new(Exit::BadModel, "cannot open the model");
    failure.causes =
        vec![format!("there is no file '{text}' here, and a model's name has the form USER/REPO")];
    failure.help(how_to_name(&text, args))
}

/// How models are named. Begins with a file or a downloaded model that `text` may mean.
fn how_to_name(text: &str, args: &HubArgs) -> String {
    let file = format!("{text}.gguf");
    let suggestion = if Path::new(&file).is_file() {
        Some(file)
    } else {
        let models = open_hub(args).ok().and_then(|hub| hub.list().ok()).unwrap_or_default();
        let whole = models.iter().filter(|model| model.path.is_some());
        whole.map(|model| model.name.to_string()).find(|name| is_part_of(text, name))
    };
    match suggestion {
        Some(name) => format!("did you mean `{}`? Otherwise {HOW_TO_NAME}", printable(&name)),
        None => HOW_TO_NAME.to_owned(),
    }
}

/// Whether `name` contains each part of `text`, which colons separate as in ollama's `llama3.2:1b`.
/// Case and punctuation do not matter.
fn is_part_of(text: &str, name: &str) -> bool {
    let plain = |text: &str| -> String {
        let letters = text.chars().filter(|c| c.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect()
    };
    let mut parts = text.split(':').map(plain).filter(|part| part != "latest").peekable();
    let name = plain(name);
    parts.peek().is_some() && parts.all(|part| !part.is_empty() && name.contains(&part))
}

/// The failure for an error of the hub.
pub(crate) fn failure(error: Error, hub: &Hub) -> Failure {
    let failure = Failure::chain(Exit::Failed, &error);
    let failure = Failure { message: printable(&failure.message), ..failure };
    match &error {
        Error::Offline(_) => failure.help(format!("remove --offline to download it; {}", cached(hub))),
        Error::Unreachable { .. } => failure.help(format!(
            "check the network and HTTPS_PROXY; --offline uses the cache only; {}",
            cached(hub)
        )),
        Error::NotFound { name, has_token, .. } => failure.help(not_found(name, *has_token)),
        Error::Gated { name, has_token } => failure.help(gated(name, *has_token)),
        Error::Refused { has_token: true, .. } => failure.help(format!(
            "HF_TOKEN or --hf-token is invalid or lacks the permission to read this model; {MAKE_TOKEN}"
        )),
        Error::Refused { has_token: false, .. } => failure.help(format!(
            "check the name; if the model is private or gated, set HF_TOKEN; {MAKE_TOKEN}"
        )),
        Error::NoFile { known, .. } => failure.help(format!("its GGUF files: {}", listed(known))),
        Error::NoModel { has_weights: true, .. } => failure.help(
            "it has safetensors: search for a repository whose name ends in -GGUF, or download it with `hf download` and run `thermocline convert`",
        ),
        Error::NoModel { .. } => failure
            .help("https://huggingface.co/models?library=gguf lists repositories with GGUF files"),
        Error::NoQuantisation { name, known, .. } => failure.help(format!(
            "it has {}; for example: thermocline pull {}:{}",
            listed(known),
            name.path(),
            known.first().map_or("", String::as_str)
        )),
        Error::MissingParts { .. } => failure.help("choose another quantisation or repository"),
        Error::Status { status: 404, .. } => {
            failure.help("the file was moved or deleted; check the address")
        }
        Error::Status { status: 429, .. } => failure.help(format!(
            "too many requests: wait a few minutes, or set HF_TOKEN, which allows more; {MAKE_TOKEN}"
        )),
        Error::Status { .. } | Error::Answer { .. } => {
            failure.help("try again later; HF_ENDPOINT selects another server")
        }
        Error::Size { .. } | Error::Checksum { .. } => failure.help(
            "run the command again; if it happens again, a proxy or mirror changes files, or the disk fails",
        ),
        Error::Broken { .. } => {
            failure.help("run the command again: the download continues where it stopped")
        }
        Error::Full { needed, free, .. } => full(failure, *needed, *free),
        Error::Io { source, .. } if source.kind() == ErrorKind::StorageFull => full(failure, 0, 0),
        Error::Io { .. } => failure.help("HF_HOME or HF_HUB_CACHE selects another folder"),
    }
}

fn full(mut failure: Failure, needed: u64, free: u64) -> Failure {
    failure.message = "the disk is full".to_owned();
    if needed > 0 {
        failure.causes = vec![format!(
            "{} more are needed in the cache, and {} are free",
            shown_size(needed),
            shown_size(free)
        )];
    }
    failure.help(
        "delete models with `thermocline rm` (`thermocline list` shows them), or set HF_HOME to a folder on another disk; a download continues where it stopped",
    )
}

fn not_found(name: &ModelName, has_token: bool) -> String {
    let search = format!(
        "check the spelling: https://huggingface.co/models?search={}",
        printable(&name.repository)
    );
    let token = if has_token { "the token may lack access" } else { "set HF_TOKEN" };
    format!("{search}; for a private repository, {token}")
}

fn gated(name: &ModelName, has_token: bool) -> String {
    let accept = format!("accept the terms at https://huggingface.co/{}", name.path());
    if has_token {
        format!("{accept} with the account of your token, and wait for the owner's approval")
    } else {
        format!("{accept}, then set HF_TOKEN to a token of your account; {MAKE_TOKEN}")
    }
}

/// What the cache holds, as the end of a sentence.
fn cached(hub: &Hub) -> String {
    let models = hub.list().unwrap_or_default();
    let whole = models.iter().filter(|model| model.path.is_some());
    let names: Vec<String> = whole.map(|model| model.name.to_string()).collect();
    if names.is_empty() {
        return format!("the cache {} has no models", hub.cache().display());
    }
    format!("the cache has {}", listed(&names))
}

fn listed(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(MAX_LISTED).map(|name| printable(name)).collect();
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_their_parts() {
        let name = "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M";
        for text in ["llama3.2", "llama3.2:1b", "LLAMA-3.2:latest", "instruct"] {
            assert!(is_part_of(text, name), "{text}");
        }
        for text in ["llama3.1", "llama3.2:3b", "", ":", "latest", "qwen"] {
            assert!(!is_part_of(text, name), "{text}");
        }
    }
}
