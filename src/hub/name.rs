//! Names of models: `USER/REPOSITORY[:QUANTISATION]`, and URLs on the hub.

use std::fmt;

/// Longest user or repository name that the hub allows, in bytes.
const MAX_NAME: usize = 96;

/// A repository on the hub, optionally with a quantisation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName {
    /// The user or organisation.
    pub user: String,
    /// The repository.
    pub repository: String,
    /// The quantisation, such as `Q4_K_M`.
    pub quantisation: Option<String>,
}

/// A model to find or download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The repository and the quantisation.
    pub name: ModelName,
    /// Branch, tag or commit.
    pub revision: String,
    /// One GGUF file of the repository, which overrides the quantisation.
    pub file: Option<String>,
}

impl ModelName {
    /// Parses `USER/REPOSITORY[:QUANTISATION]`, also after `hf.co/`, `hf://` and similar; `:latest`
    /// is ignored. `None` if the text has another form, such as the path of a GGUF file.
    pub fn parse(text: &str) -> Option<Self> {
        let hosts = [
            "https://huggingface.co/",
            "https://hf.co/",
            "huggingface.co/",
            "hf.co/",
            "hf://",
            "huggingface://",
        ];
        let text = hosts.iter().find_map(|host| text.strip_prefix(host)).unwrap_or(text);
        let (path, quantisation) = match text.split_once(':') {
            Some((path, "latest")) => (path, None),
            Some((path, tag)) => (path, Some(tag)),
            None => (text, None),
        };
        let (user, repository) = path.split_once('/')?;
        let is_file = repository.to_ascii_lowercase().ends_with(".gguf");
        let fits = is_component(user) && is_component(repository) && !is_file;
        if !fits || !quantisation.is_none_or(is_component) {
            return None;
        }
        Some(Self {
            user: user.to_owned(),
            repository: repository.to_owned(),
            quantisation: quantisation.map(str::to_owned),
        })
    }

    /// The name without a quantisation: `USER/REPOSITORY`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.user, self.repository)
    }

    /// The name of the repository alone.
    pub(crate) fn without_quantisation(&self) -> Self {
        Self { quantisation: None, ..self.clone() }
    }
}

/// Whether a name has 1 to 96 letters, digits, `.`, `_` and `-`, no `.` or `-` at the start, and no
/// `..`.
pub(crate) fn is_component(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty()
        && text.len() <= MAX_NAME
        && text.bytes().all(allowed)
        && !text.starts_with(['.', '-'])
        && !text.contains("..")
}

/// Whether a path of the hub stays inside its folder on every system: no component is empty, `.` or
/// `..`, or has `\`, `:` or a control character.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let is_safe = |component: &str| {
        !component.is_empty()
            && component != "."
            && component != ".."
            && !component.contains(['\\', ':'])
            && !component.chars().any(char::is_control)
    };
    path.split('/').all(is_safe)
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.user, self.repository)?;
        match &self.quantisation {
            Some(quantisation) => write!(f, ":{quantisation}"),
            None => Ok(()),
        }
    }
}

impl Wanted {
    /// The model of that name, from the main branch.
    pub fn new(name: ModelName) -> Self {
        Self { name, revision: "main".to_owned(), file: None }
    }

    /// The file that a URL `ENDPOINT/USER/REPOSITORY/resolve/REVISION/FILE` names (or `blob`
    /// instead of `resolve`), or `hf://USER/REPOSITORY/FILE`; `None` for any other URL.
    pub fn of_url(url: &str, endpoint: &str) -> Option<Self> {
        let short = ["hf://", "huggingface://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        if let Some(path) = short {
            let (name, file) = path.match_indices('/').nth(1).map(|(at, _)| path.split_at(at))?;
            let (name, file) = (ModelName::parse(name)?, &file[1..]);
            let file = is_safe_path(file).then(|| file.to_owned());
            return file.map(|file| Self { file: Some(file), ..Self::new(name) });
        }
        let url = url.split(['?', '#']).next()?;
        let hosts = [endpoint, crate::ENDPOINT, "https://hf.co"];
        let path = hosts.iter().find_map(|host| url.strip_prefix(host)?.strip_prefix('/'))?;
        let mut parts = path.splitn(5, '/');
        let (user, repository) = (parts.next()?, parts.next()?);
        let (kind, revision, file) = (parts.next()?, parts.next()?, parts.next()?);
        let name = ModelName::parse(&format!("{user}/{repository}"))?;
        let is_file = ["resolve", "blob"].contains(&kind);
        (is_file && is_component(revision) && is_safe_path(file)).then(|| Self {
            name,
            revision: revision.to_owned(),
            file: Some(file.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let shown = |text: &str| ModelName::parse(text).map(|name| name.to_string());
        for (text, expected) in [
            ("ggml-org/gemma-3-1b-it-GGUF", "ggml-org/gemma-3-1b-it-GGUF"),
            ("a/b:Q4_K_M", "a/b:Q4_K_M"),
            ("a/b:latest", "a/b"),
            ("hf.co/a/b:q8_0", "a/b:q8_0"),
            ("https://huggingface.co/a/b", "a/b"),
            ("hf://a/b:Q4_0", "a/b:Q4_0"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected), "{text}");
        }
        for wrong in [
            "a",
            "a/b/c",
            "/a",
            "a/",
            "./a",
            "../a",
            "~/a",
            "a/b.gguf",
            "a/B.GGUF",
            "a b/c",
            "C:/x",
            "a/b:",
            "a/b:c/d",
            "a/..b",
            "-a/b",
            "https://example.org/a",
            "a\\b",
        ] {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn urls_of_files_are_parsed() {
        let wanted_of = |url: &str| Wanted::of_url(url, "http://127.0.0.1:1");
        let wanted =
            wanted_of("https://huggingface.co/a/b/resolve/main/q/m.gguf?download=true").unwrap();
        assert_eq!((wanted.name.path(), wanted.revision.as_str()), ("a/b".into(), "main"));
        assert_eq!(wanted.file.as_deref(), Some("q/m.gguf"));
        let short = wanted_of("hf://a/b/q/m.gguf").unwrap();
        assert_eq!((short.name.path(), short.file.as_deref()), ("a/b".into(), Some("q/m.gguf")));
        assert_eq!(wanted_of("hf://a/b"), None);
        assert_eq!(wanted_of("http://127.0.0.1:1/a/b/blob/v1/m.gguf").unwrap().revision, "v1");
        for other in [
            "https://example.org/a/b/resolve/main/m.gguf",
            "https://huggingface.co/a/b/resolve/main/../../m.gguf",
            "https://huggingface.co/a/b/tree/main/x",
            "https://huggingface.co/a/b",
        ] {
            assert_eq!(wanted_of(other), None, "{other}");
        }
    }

    #[test]
    fn paths_stay_inside_their_folder() {
        assert!(is_safe_path("a.gguf") && is_safe_path("Q4/a b-00001-of-00002.gguf"));
        for wrong in ["", "/a", "a//b", "../a", "a/..", "a\\b", "c:/x", "a\nb"] {
            assert!(!is_safe_path(wrong), "{wrong}");
        }
    }
}
