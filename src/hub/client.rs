//! HTTP requests to a hub: redirects, authorization, errors by status.

use crate::error::{Error, io_error};
use crate::{ModelName, Options, Token};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::HeaderMap;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Longest wait for a connection, and for a response or the next bytes of its body.
const CONNECT: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(30);
/// Maximum number of redirects of a request.
const MAX_REDIRECTS: usize = 8;
/// Largest description of a repository, in bytes.
const MAX_DESCRIPTION: u64 = 64 << 20;

/// Largest file of certificates, in bytes.
const MAX_PEM: u64 = 16 << 20;

/// Sends requests to one hub, and to the servers that it redirects to.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<Token>,
}

/// A response with status 200 or 206, or 416 for a range beyond the end of the file.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Body,
    /// The headers of the last response.
    pub(crate) headers: HeaderMap,
    /// The headers of the hub's own response, which may be a redirect.
    pub(crate) first: HeaderMap,
}

/// Why a request failed. Another attempt may succeed unless the failure is final.
pub(crate) enum Failed {
    /// A network error.
    Network(String),
    /// A server error: a status from 500 to 599.
    Server {
        host: String,
        status: u16,
    },
    Final(Error),
}

impl Failed {
    /// The error to report if the request is not repeated.
    pub(crate) fn into_error(self, url: &str) -> Error {
        match self {
            Self::Network(reason) => Error::Unreachable { host: host(url).to_owned(), reason },
            Self::Server { host, status } => Error::Status { host, status },
            Self::Final(error) => error,
        }
    }
}

/// The host and port of a URL.
pub(crate) fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// Scheme, host and port of a URL.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |at| start + at);
    &url[..end]
}

/// The URL that a `Location` header names. Paths are relative to `url`.
fn target(url: &str, location: &str) -> String {
    if location.starts_with("http://") || location.starts_with("https://") {
        return location.to_owned();
    }
    if location.starts_with('/') {
        return format!("{}{location}", origin(url));
    }
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let folder = path.rfind('/').map_or(path, |at| &path[..at]);
    format!("{folder}/{location}")
}

/// A path as part of a URL: everything but unreserved characters and `/` is percent-encoded.
pub(crate) fn escaped(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// A header as text, without the quotes and the `W/` of an ETag.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let text = headers.get(name)?.to_str().ok()?.trim();
    Some(text.strip_prefix("W/").unwrap_or(text).trim_matches('"'))
}

impl Client {
    /// # Errors
    /// The file with certificates cannot be read or has none.
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let mut tls = TlsConfig::builder();
        if let Some(path) = &options.certificates {
            let action = "read certificates from";
            let mut pem = Vec::new();
            let file = std::fs::File::open(path);
            let read = file.and_then(|file| file.take(MAX_PEM).read_to_end(&mut pem));
            read.map_err(io_error(action, path))?;
            let certificate = |item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                Ok(_) | Err(_) => None,
            };
            let found: Vec<Certificate<'static>> =
                parse_pem(&pem).filter_map(certificate).collect();
            if found.is_empty() {
                let none = std::io::Error::new(std::io::ErrorKind::InvalidData, "it contains none");
                return Err(io_error(action, path)(none));
            }
            tls = tls.root_certs(RootCerts::Specific(Arc::new(found)));
        }
        // ureq reads the proxy from HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("thermocline/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        let (endpoint, token) = (options.endpoint.clone(), options.token.clone());
        Ok(Self { agent: config.new_agent(), endpoint, token })
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The description of a repository, as JSON.
    pub(crate) fn json(&self, url: &str, name: &ModelName) -> Result<serde_json::Value, Failed> {
        let mut answer = self.get(url, None, Some(name))?;
        let invalid =
            |reason: String| Failed::Final(Error::Answer { host: host(url).to_owned(), reason });
        let text = answer.body.with_config().limit(MAX_DESCRIPTION).read_to_vec();
        let text = text.map_err(|e| Failed::Network(e.to_string()))?;
        serde_json::from_slice(&text).map_err(|e| invalid(e.to_string()))
    }

    /// Requests `url`, from byte `from` on, and follows redirects. Only the hub gets the token.
    pub(crate) fn get(
        &self,
        url: &str,
        from: Option<u64>,
        name: Option<&ModelName>,
    ) -> Result<Answer, Failed> {
        let invalid = |url: &str, reason: &str| {
            let (host, reason) = (host(url).to_owned(), reason.to_owned());
            Failed::Final(Error::Answer { host, reason })
        };
        let (mut url, mut first) = (url.to_owned(), None);
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&url);
            if let Some(from) = from {
                request = request.header("Range", format!("bytes={from}-"));
            }
            if let Some(Token(token)) = &self.token
                && origin(&url) == origin(&self.endpoint)
            {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let answer = request.call().map_err(|e| Failed::Network(e.to_string()))?;
            let status = answer.status().as_u16();
            let (head, body) = answer.into_parts();
            let first = first.get_or_insert_with(|| head.headers.clone()).clone();
            if !(300..400).contains(&status) {
                self.check(status, &url, &head.headers, name)?;
                return Ok(Answer { status, body, headers: head.headers, first });
            }
            let location = head.headers.get("location").and_then(|text| text.to_str().ok());
            let Some(location) = location else {
                return Err(invalid(&url, "a redirect without a Location header"));
            };
            let next = target(&url, location);
            if url.starts_with("https://") && !next.starts_with("https://") {
                return Err(invalid(&url, "a redirect from https to an unencrypted URL"));
            }
            url = next;
        }
        Err(invalid(&url, &format!("more than {MAX_REDIRECTS} redirects")))
    }

    /// Returns an error unless the status is 200, 206 or 416.
    fn check(
        &self,
        status: u16,
        url: &str,
        headers: &HeaderMap,
        name: Option<&ModelName>,
    ) -> Result<(), Failed> {
        let (host, has_token) = (host(url).to_owned(), self.token.is_some());
        let code = header(headers, "x-error-code").unwrap_or_default();
        let error = match (status, code, name.map(ModelName::without_quantisation)) {
            (200 | 206 | 416, ..) => return Ok(()),
            (500..=599, ..) => return Err(Failed::Server { host, status }),
            (_, "GatedRepo", Some(name)) => Error::Gated { name, has_token },
            (_, "RepoNotFound", Some(name)) => Error::NotFound { name, host, has_token },
            (401 | 403, ..) => Error::Refused { host, status, has_token },
            (404, code, Some(name)) if code != "EntryNotFound" => {
                Error::NotFound { name, host, has_token }
            }
            _ => Error::Status { host, status },
        };
        Err(Failed::Final(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_redirect_targets_are_parsed() {
        assert_eq!(host("https://user:x@example.org:8443/a/b?c"), "example.org:8443");
        assert_eq!(origin("https://example.org/a"), "https://example.org");
        let url = "https://example.org/a/b?c=/d";
        for (location, expected) in [
            ("https://cdn.example.org/x", "https://cdn.example.org/x"),
            ("/x/y", "https://example.org/x/y"),
            ("y?z", "https://example.org/a/y?z"),
        ] {
            assert_eq!(target(url, location), expected);
        }
        assert_eq!(escaped("a b/ü#.gguf"), "a%20b/%C3%BC%23.gguf");
    }

    #[test]
    fn etags_lose_their_quotes() {
        let mut headers = HeaderMap::new();
        headers.insert("etag", "W/\"abc\"".parse().unwrap());
        assert_eq!(header(&headers, "etag"), Some("abc"));
    }
}
