//! Models by name: `USER/REPOSITORY[:QUANTISATION]` on Hugging Face, fetched into the cache that
//! Hugging Face's own tools use (`models--USER--REPOSITORY/{blobs,refs,snapshots}`).
//!
//! [`ModelName`] parses names, [`Hub::find`] looks into the cache, [`Hub::pull`] downloads,
//! [`Hub::list`] and [`Hub::remove`] list and delete cached models. Downloads resume. Until its
//! size and checksum are verified, a file has a name that ends in `.incomplete`, so an interruption
//! at any time leaves no broken file under a final name.
//!
//! The crate knows nothing of engines, reads no environment and prints nothing.
//!
//! **Why not `hf-hub`.** 1.0 needs an async runtime, a second HTTP client and Xet, which add
//! megabytes to the program. 0.5 with `ureq` verifies neither checksum nor length, does not report
//! why a server refused a request, and ignores `HF_HUB_CACHE`. `ureq` uses the same rustls and ring
//! as the server; the root certificates are Mozilla's (`webpki-roots`), or those in a file that the
//! user names.

mod cache;
mod choose;
mod client;
mod download;
mod error;
mod fetch;
mod listing;
mod name;
mod progress;
mod verify;

pub use cache::{CachedModel, Removed};
pub use error::Error;
pub use name::{ModelName, Wanted};
pub use progress::Progress;

use cache::Cache;
use client::Client;
use std::fmt;
use std::path::PathBuf;

/// The address of Hugging Face.
pub const ENDPOINT: &str = "https://huggingface.co";

/// A secret that identifies the user. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token in `text`, without surrounding white space; `None` if nothing is left, or if it
    /// has characters that a request cannot carry.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Where models come from and where they are kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address of the hub, without `/` at the end, such as [`ENDPOINT`].
    pub endpoint: String,
    /// The cache folder, which contains `models--USER--REPOSITORY` folders.
    pub cache: PathBuf,
    /// The user's token, sent to `endpoint` only.
    pub token: Option<Token>,
    /// Use only the cache.
    pub offline: bool,
    /// A PEM file with root certificates to trust instead of Mozilla's.
    pub certificates: Option<PathBuf>,
}

/// A model on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The model file; the first one of a split model.
    pub path: PathBuf,
    /// The folder with PowerInfer's activation counts, if the repository has one.
    pub activation: Option<PathBuf>,
    /// Bytes that were downloaded; 0 if all files were on disk.
    pub downloaded: u64,
}

/// A hub and its cache.
#[derive(Debug)]
pub struct Hub {
    options: Options,
    cache: Cache,
    client: Client,
}

impl Hub {
    /// A hub with these options. Nothing is read or sent yet.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub fn new(options: Options) -> Result<Self, Error> {
        let cache = Cache::new(options.cache.clone());
        let client = Client::new(&options)?;
        Ok(Self { options, cache, client })
    }

    /// The host of the hub, as error messages name it.
    pub fn host(&self) -> &str {
        client::host(&self.options.endpoint)
    }

    /// The cache folder.
    pub fn cache(&self) -> &std::path::Path {
        &self.options.cache
    }

    /// Whether only the cache is used.
    pub fn is_offline(&self) -> bool {
        self.options.offline
    }

    /// Looks for the model in the cache; `None` if one of its files is missing.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn find(&self, wanted: &Wanted) -> Result<Option<Found>, Error> {
        self.cache.find(wanted)
    }

    /// All models in the cache, sorted by repository. Partial downloads of a repository are one
    /// entry without a path.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn list(&self) -> Result<Vec<CachedModel>, Error> {
        self.cache.list()
    }

    /// Deletes models and their side files from the cache: one quantisation if `name` has one,
    /// otherwise all models and partial downloads of the repository. Files of other tools stay.
    /// `None` if the cache has no such model.
    ///
    /// # Errors
    /// The cache cannot be read, or a file cannot be deleted.
    pub fn remove(&self, name: &ModelName) -> Result<Option<Removed>, Error> {
        self.cache.remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_shown() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(token, Token("hf_secret".to_owned()));
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!([Token::new(" \n"), Token::new("a\r\nb: c")], [None, None]);
    }
}
