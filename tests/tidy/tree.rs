//! The repository as text, and just enough Rust syntax to separate code from comments and literals.

use std::fs;
use std::path::Path;

/// The top-level folders that are checked. Other folders belong to the developer.
const TOP: &[&str] = &[
    ".ci",
    "assets",
    "backends",
    "benches",
    "docs",
    "examples",
    "fuzz",
    "kernels-cuda",
    "kernels-hip",
    "packaging",
    "scripts",
    "shaders",
    "src",
    "tests",
];

#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Path from the repository's root, with `/` as separator.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text of a Rust file with comments and the insides of literals blanked; line numbers stay
    /// the same.
    code: String,
}

/// The files that the rules check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) files: Vec<Source>,
    /// Every path, including binary files.
    pub(crate) paths: Vec<String>,
    /// Path of every file and its size in bytes.
    pub(crate) sizes: Vec<(String, u64)>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let code = if path.ends_with(".rs") { blank(text) } else { String::new() };
        Source { path: path.to_owned(), text: text.to_owned(), code }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the file contains only tests or benchmarks.
    pub(crate) fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        self.path.split('/').any(|part| part == "tests" || part == "benches")
            || name == "tests.rs"
            || name.ends_with("_tests.rs")
    }

    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Code without the tests at its end; empty for a test file.
    pub(crate) fn shipped(&self) -> &str {
        if self.is_test() {
            return "";
        }
        match self.code.find("#[cfg(test)]\nmod tests {") {
            Some(end) => &self.code[..end],
            None => &self.code,
        }
    }

    /// Paths named in shipped code, with their lines: `use a::{b, c::d}` gives `a::b` and `a::c::d`.
    pub(crate) fn names(&self) -> Vec<(usize, String)> {
        let code = self.shipped();
        let mut found = Vec::new();
        let mut at = 0;
        while at < code.len() {
            let start = at;
            if is_word(code, at) {
                let mut names = Vec::new();
                chain(code, &mut at, "", &mut names);
                let line = 1 + code[..start].matches('\n').count();
                found.extend(names.into_iter().map(|name| (line, name)));
            } else {
                at += 1;
            }
        }
        found
    }
}

fn is_word(code: &str, at: usize) -> bool {
    code.as_bytes().get(at).is_some_and(|&b| b.is_ascii_alphanumeric() || b == b'_' || b == b'*')
}

/// Appends the paths of `a::b::{c, d::e}` at `at` to `out`, and moves `at` behind them.
fn chain(code: &str, at: &mut usize, prefix: &str, out: &mut Vec<String>) {
    let mut path = prefix.to_owned();
    loop {
        let start = *at;
        while is_word(code, *at) {
            *at += 1;
        }
        path += &code[start..*at];
        if !code[*at..].starts_with("::") {
            out.push(path);
            return;
        }
        *at += 2;
        path += "::";
        if code[*at..].starts_with('{') {
            break;
        }
    }
    *at += 1;
    while *at < code.len() && !code[*at..].starts_with('}') {
        if is_word(code, *at) {
            chain(code, at, &path, out)
        } else {
            *at += code[*at..].chars().next().map_or(1, char::len_utf8)
        }
    }
    *at += 1;
}

/// Blanks comments and the contents of string and character literals.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        let end = match rest {
            [b'/', b'/', ..] => at + find(rest, b"\n", 0),
            [b'/', b'*', ..] => at + find(rest, b"*/", 2) + 2,
            [b'"', ..] => string_end(bytes, at),
            [b'r', b'"' | b'#', ..] if at == 0 || !is_word(text, at - 1) => {
                let n = rest[1..].iter().take_while(|&&b| b == b'#').count();
                match rest.get(n + 1) {
                    Some(b'"') => {
                        let close = [&b"\""[..], &b"#".repeat(n)].concat();
                        at + find(rest, &close, n + 2) + close.len()
                    }
                    _ => at,
                }
            }
            [b'\'', b'\\', ..] => at + find(rest, b"'", 3) + 1,
            [b'\'', _, b'\'', ..] => at + 3,
            _ => at,
        };
        for byte in &mut out[at.min(bytes.len())..end.min(bytes.len())] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // Inside literals, characters of several bytes are blanked as a whole; elsewhere a replacement
    // character does no harm.
    String::from_utf8_lossy(&out).into_owned()
}

fn find(bytes: &[u8], what: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.windows(what.len()).position(|w| w == what).unwrap_or(rest.len())
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

impl Tree {
    pub(crate) fn new(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.paths.push((*path).to_owned());
            tree.sizes.push(((*path).to_owned(), text.len() as u64));
            tree.files.push(Source::new(path, text));
        }
        tree
    }

    pub(crate) fn read(root: &Path) -> Tree {
        let mut tree = Tree::default();
        tree.walk(root, "");
        tree.paths.sort();
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree
    }

    fn walk(&mut self, root: &Path, folder: &str) {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                if !folder.is_empty() && name != "target" || TOP.contains(&name.as_str()) {
                    self.walk(root, &path);
                }
                continue;
            }
            if name == ".git" {
                continue; // a worktree's pointer
            }
            self.paths.push(path.clone());
            let bytes = fs::read(entry.path()).unwrap_or_default();
            self.sizes.push((path.clone(), bytes.len() as u64));
            if let Ok(text) = String::from_utf8(bytes) {
                self.files.push(Source::new(&path, &text));
            }
        }
    }

    /// The text of a file; empty if the file does not exist.
    pub(crate) fn text(&self, path: &str) -> &str {
        self.files.iter().find(|f| f.path == path).map_or("", |f| &f.text)
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|f| f.is_rust())
    }

    pub(crate) fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a Source> {
        self.files.iter().filter(move |f| f.path.starts_with(folder))
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        self.paths.iter().any(|p| p == path || p.starts_with(&folder))
    }
}
