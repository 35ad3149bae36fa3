//! API keys, compared in constant time.

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConstantTimeEq};

#[derive(Clone, Default)]
pub(crate) struct Keys(Vec<String>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl Keys {
    pub(crate) fn new(keys: Vec<String>) -> Keys {
        Keys(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    /// Whether no keys are set, so that every request is served.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request with these headers may be served. The time of the comparison depends on
    /// the lengths of the keys, not on their characters.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Some(given) = given_key(headers) else { return false };
        let equal = |key: &String| key.as_bytes().ct_eq(given);
        let is_known = self.0.iter().map(equal).fold(Choice::from(0), |found, same| found | same);
        is_known.into()
    }
}

/// The key in the headers: `Authorization: Bearer KEY` as sent by OpenAI's clients, or `x-api-key:
/// KEY` as sent by Anthropic's.
fn given_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(name: &'static str, value: &str) -> bool {
        let keys = Keys::new(vec!["sk-1".to_owned(), "sk-22".to_owned(), String::new()]);
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        keys.admit(&headers)
    }

    #[test]
    fn any_of_the_keys_is_accepted_in_either_header() {
        assert!(admits("authorization", "Bearer sk-1"));
        assert!(admits("authorization", "bearer  sk-22"));
        assert!(admits("x-api-key", "sk-22"));
        for wrong in ["Bearer sk-2", "Bearer sk-222", "Bearer ", "Basic sk-1", "sk-1", ""] {
            assert!(!admits("authorization", wrong), "{wrong}");
        }
        assert!(!Keys::new(vec!["k".to_owned()]).admit(&HeaderMap::new()));
        assert!(Keys::default().admit(&HeaderMap::new()));
    }
}
