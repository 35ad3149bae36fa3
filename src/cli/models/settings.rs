//! Where models come from: the variables of Hugging Face's own tools.

use crate::cli::args::HubArgs;
use crate::cli::failure::Failure;
use crate::cli::folders;
use crate::cli::texts::read_text;
use hal::Bytes;
use hub::{Hub, Options, Token};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum size of a file with a token.
const MAX_TOKEN: Bytes = Bytes(64 << 10);

fn variable(name: &str) -> Option<OsString> {
    #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The address of the hub: `HF_ENDPOINT`, or llama.cpp's `MODEL_ENDPOINT`.
pub(super) fn endpoint() -> String {
    let named = ["HF_ENDPOINT", "MODEL_ENDPOINT"].into_iter().find_map(variable);
    let named = named.and_then(|value| value.into_string().ok());
    named.map_or(hub::ENDPOINT.to_owned(), |url| url.trim_end_matches('/').to_owned())
}

/// The hub that flags and environment describe.
///
/// # Errors
/// No cache folder is known; an invalid token or file of certificates.
pub(crate) fn open_hub(args: &HubArgs) -> Result<Hub, Failure> {
    let home = folders::hub_home(variable);
    let cache = match variable("HF_HUB_CACHE").or(variable("HUGGINGFACE_HUB_CACHE")) {
        Some(folder) => PathBuf::from(folder),
        None => home.as_ref().map(|home| home.join("hub")).ok_or_else(|| {
            Failure::usage("the folder for downloaded models is unknown").help("set HF_HOME")
        })?,
    };
    let token = token(args, home.as_deref())?;
    let is_on = |value: OsString| {
        let value = value.to_string_lossy().to_ascii_lowercase();
        ["1", "on", "yes", "true"].contains(&value.as_str())
    };
    let offline = args.offline || variable("HF_HUB_OFFLINE").is_some_and(is_on);
    let certificates = variable("SSL_CERT_FILE").map(PathBuf::from);
    let options = Options { endpoint: endpoint(), cache, token, offline, certificates };
    Hub::new(options).map_err(|error| {
        let failure = Failure::chain(crate::cli::failure::Exit::Failed, &error);
        failure.help("SSL_CERT_FILE names this file")
    })
}

/// `--hf-token`, `HF_TOKEN`, or the file that `hf auth login` writes.
fn token(args: &HubArgs, home: Option<&Path>) -> Result<Option<Token>, Failure> {
    let given = |source: &str, text: &str| {
        Token::new(text).map(Some).ok_or_else(|| {
            // The value is a secret, so the message does not show it.
            Failure::usage(format!("{source} is not a token"))
                .help("a token begins with hf_; https://huggingface.co/settings/tokens makes one")
        })
    };
    if let Some(text) = &args.hf_token {
        return given("--hf-token", text);
    }
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(text) = variable(name) {
            return given(name, &text.to_string_lossy());
        }
    }
    let file = variable("HF_TOKEN_PATH").map(PathBuf::from);
    let file = file.or(home.map(|home| home.join("token")));
    let text = |path| fs::File::open(path).and_then(|file| read_text(file, MAX_TOKEN)).ok();
    Ok(file.and_then(text).and_then(|text| Token::new(&text)))
}
