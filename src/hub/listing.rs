//! The files of a repository.

use crate::client::{Answer, Client, Failed, escaped, header, host};
use crate::error::Error;
use crate::name::{is_component, is_safe_path};
use crate::verify::Checksum;
use crate::{ModelName, Wanted};
use serde_json::Value;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    /// Bytes.
    pub(crate) size: Option<u64>,
    pub(crate) checksum: Option<Checksum>,
}

/// A repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

/// Number of attempts to get a description from the hub.
const ATTEMPTS: usize = 3;

/// Requests the list of a repository's files from the hub.
///
/// # Errors
/// The hub cannot be reached or refuses, or its answer is invalid.
pub(crate) fn fetch(client: &Client, wanted: &Wanted) -> Result<Listing, Error> {
    let (endpoint, path) = (client.endpoint(), wanted.name.path());
    let url = format!("{endpoint}/api/models/{path}/revision/{}?blobs=true", wanted.revision);
    let mut attempt = 1;
    let json = loop {
        match client.json(&url, &wanted.name) {
            Ok(json) => break json,
            // A server error is often short; a missing network rarely is.
            Err(Failed::Server { .. }) if attempt < ATTEMPTS => {
                attempt += 1;
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
            Err(failed) => return Err(failed.into_error(&url)),
        }
    };
    parse(&json).ok_or_else(|| Error::Answer {
        host: host(&url).to_owned(),
        reason: "it does not describe a repository".to_owned(),
    })
}

/// Parses the hub's description of a repository. Files with unsafe paths are left out.
fn parse(json: &Value) -> Option<Listing> {
    let commit = json.get("sha")?.as_str().filter(|commit| is_component(commit))?.to_owned();
    let file = |entry: &Value| {
        let path = entry.get("rfilename")?.as_str().filter(|path| is_safe_path(path))?.to_owned();
        let lfs = entry.get("lfs").filter(|lfs| lfs.is_object());
        let size = lfs.and_then(|lfs| lfs.get("size")).or(entry.get("size"));
        let id = match lfs {
            Some(lfs) => lfs.get("sha256"),
            None => entry.get("blobId"),
        };
        let checksum = id.and_then(Value::as_str).and_then(Checksum::parse);
        Some(RemoteFile { path, size: size.and_then(Value::as_u64), checksum })
    };
    let files = json.get("siblings")?.as_array()?.iter().filter_map(file).collect();
    Some(Listing { commit, files })
}

/// The URL of a file.
pub(crate) fn address(client: &Client, name: &ModelName, commit: &str, file: &str) -> String {
    format!("{}/{}/resolve/{commit}/{}", client.endpoint(), name.path(), escaped(file))
}

/// Adds the size and checksum that the description lacks, from the headers of the file's response.
///
/// # Errors
/// The hub cannot be reached or refuses.
pub(crate) fn complete(
    client: &Client,
    name: &ModelName,
    url: &str,
    file: &mut RemoteFile,
) -> Result<(), Error> {
    if file.size.is_some() && file.checksum.is_some() {
        return Ok(());
    }
    let answer = client.get(url, Some(0), Some(name)).map_err(|failed| failed.into_error(url))?;
    file.size = file.size.or(total_size(&answer));
    let etag = header(&answer.first, "x-linked-etag").or(header(&answer.first, "etag"));
    let found = etag.and_then(Checksum::parse);
    file.checksum = file.checksum.take().or(found);
    Ok(())
}

/// The size of the whole file in bytes, from a response that may carry a part of it.
pub(crate) fn total_size(answer: &Answer) -> Option<u64> {
    let range = header(&answer.headers, "content-range");
    let total = match (answer.status, range) {
        (200, _) => header(&answer.headers, "content-length"),
        (_, range) => range.and_then(|range| range.rsplit_once('/')).map(|(_, total)| total),
    };
    total?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn descriptions_are_parsed() {
        let (sha, git) = ("a".repeat(64), "b".repeat(40));
        let json = json!({ "sha": git, "siblings": [
            { "rfilename": "m.gguf", "size": 134, "blobId": git, "lfs": { "sha256": sha, "size": 7 } },
            { "rfilename": "README.md", "size": 9, "blobId": git },
            { "rfilename": "old.gguf" },
            { "rfilename": "../../.profile", "size": 9 },
        ]});
        let listing = parse(&json).unwrap();
        assert_eq!(listing.commit, git);
        let facts = |at: usize| (listing.files[at].size, listing.files[at].checksum.clone());
        assert_eq!(facts(0), (Some(7), Some(Checksum::Sha256(sha))));
        assert_eq!(facts(1), (Some(9), Some(Checksum::Git(git))));
        assert_eq!(facts(2), (None, None));
        assert_eq!(listing.files.len(), 3);
        for wrong in [json!({}), json!({ "sha": "../x", "siblings": [] }), json!([])] {
            assert_eq!(parse(&wrong), None);
        }
    }
}
