//! Cross-origin requests from browsers.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Method, header};

use crate::config::Cors;

/// The origin to allow for a request with these headers, if any.
pub(crate) fn allowed(cors: &Cors, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let text = origin.to_str().ok()?;
    let allows = match cors {
        Cors::Off => false,
        Cors::Any => true,
        Cors::Localhost => is_local(text),
        Cors::Origins(origins) => origins.iter().any(|known| known == text),
    };
    allows.then(|| origin.clone())
}

/// Whether a server without API keys serves a request with these headers. Browsers send the origin
/// of the page. The server's own page must come from `localhost` or an IP address, because any
/// other name could belong to a malicious page and resolve to this machine (DNS rebinding).
pub(crate) fn trusts(cors: &Cors, headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    if allowed(cors, headers).is_some() {
        return true;
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let own = origin.map(|(_, host)| host).filter(|own| host == Some(own));
    own.is_some_and(|own| {
        let name = own.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        let name = name.map_or(own, |(name, _)| name);
        let name = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || name.parse::<IpAddr>().is_ok()
    })
}

/// Whether the host of `origin` is `localhost`, `127.0.0.1` or `[::1]`.
fn is_local(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(|host| {
        ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| {
            let port = host.strip_prefix(local).map(|rest| rest.strip_prefix(':').unwrap_or(rest));
            port.is_some_and(|port| port.chars().all(|c| c.is_ascii_digit()))
        })
    })
}

pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Adds the headers that allow pages of `origin` to read the response.
pub(crate) fn allow(origin: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    let exposed = HeaderValue::from_static("x-request-id, retry-after");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
}

/// Adds the response headers of a preflight request. With credentials, browsers do not accept `*`
/// for the `authorization` header, so the requested header names are echoed.
pub(crate) fn answer_preflight(request: &HeaderMap, headers: &mut HeaderMap) {
    // DELETE as in llama-server; the router answers it with 405.
    let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    if let Some(names) = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(cors: &Cors, origin: &'static str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
        allowed(cors, &headers).is_some()
    }

    #[test]
    fn localhost_is_this_machine_on_any_port() {
        for origin in ["http://localhost", "http://localhost:8080", "https://[::1]:3000"] {
            assert!(allows(&Cors::Localhost, origin), "{origin}");
        }
        for origin in ["http://notlocalhost", "http://localhost.evil.com", "http://localhost:1.e"] {
            assert!(!allows(&Cors::Localhost, origin), "{origin}");
        }
    }

    #[test]
    fn foreign_pages_are_not_trusted() {
        let trusts = |origin: Option<&'static str>, host: &'static str, cors: &Cors| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            headers.extend(origin.map(|o| (header::ORIGIN, HeaderValue::from_static(o))));
            super::trusts(cors, &headers)
        };
        assert!(trusts(None, "evil.com:8080", &Cors::Off), "not a browser");
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "192.168.0.5", "[::1]"] {
            let origin = format!("http://{host}").leak();
            assert!(trusts(Some(origin), host, &Cors::Off), "{host}");
        }
        assert!(!trusts(Some("http://evil.com"), "localhost:8080", &Cors::Off));
        assert!(!trusts(Some("http://localhost:3000"), "localhost:8080", &Cors::Off));
        assert!(!trusts(Some("http://evil.com:8080"), "evil.com:8080", &Cors::Off), "rebinding");
        assert!(!trusts(Some("null"), "localhost", &Cors::Off));
        assert!(trusts(Some("http://localhost:3000"), "localhost:8080", &Cors::Localhost));
    }

    #[test]
    fn off_allows_nothing_and_a_list_is_exact() {
        assert!(!allows(&Cors::Off, "http://localhost"));
        assert!(allows(&Cors::Any, "http://evil.com"));
        let list = Cors::Origins(vec!["https://a.org".to_owned()]);
        assert!(allows(&list, "https://a.org") && !allows(&list, "https://a.org.evil.com"));
    }
}
