//! Phrases that plain technical English does not need, in documents, comments and string literals.

use super::tree::{Source, Tree};

/// A denied phrase, longer phrases that contain it and are allowed, and what to write instead.
type DeniedPhrase = (&'static str, &'static [&'static str], &'static str);

/// Phrases in lower case. A space is any white space, line breaks of comments and literals included.
const DENIED: &[DeniedPhrase] = &[
    ("is no", IS_NO, "`is not a X` or `has no X`"),
    ("are no", ARE_NO, "`are not X` or `have no X`"),
    ("so many", &["so many that"], "the number, or `that many`"),
    ("nobody", &[], "who it is: `no caller`, `no device`"),
    ("anew", &[], "`again`"),
    ("shall", &[], "`must` or `should`"),
    ("told", &[], "`reported`, `measured` or `estimated`"),
    ("of those", &[], "the noun"),
    ("the one that", &[], "the noun"),
    ("the one of", &[], "the noun"),
    ("cannot be meant", &[], "`invalid`"),
    ("can be meant", &[], "`valid`"),
    ("meant when", &[], "`the default`"),
    ("stands for nothing", &[], "`no equivalent here`"),
    ("stand for nothing", &[], "`no equivalent here`"),
    ("stands once", &[], "`exists once`"),
    ("stand once", &[], "`exist once`"),
    ("comes apart", &[], "`unpacked` or `dequantised`"),
    ("come apart", &[], "`unpacked` or `dequantised`"),
    ("takes apart", &[], "`unpacks` or `splits`"),
    ("taken apart", &[], "`unpacked` or `split`"),
    ("take apart", &[], "`unpack` or `split`"),
    ("taking apart", &[], "`unpacking` or `splitting`"),
    ("at home", &[], "`on its home device` or `resident`"),
    ("learnt", &[], "`trained`, `profiled` or `measured`"),
    ("found out", &[], "`measured` or `determined`"),
    ("finds out", &[], "`measures` or `determines`"),
    ("few tokens", &["a few tokens"], "`decode`"),
    ("many tokens", MANY_TOKENS, "`prefill`"),
    ("by turns", &[], "`in turn`"),
    ("in vain", &[], "what happened: `timed out`, `was idle`"),
    ("is wanted", &[], "`is needed` or `is active`"),
    ("are wanted", &[], "`are needed` or `are active`"),
    ("for want of", &[], "`because there is no`"),
    ("rough edges", &[], "what does not work"),
    ("who waits", &[], "who it is: `a waiting thread`"),
    ("who comes", &[], "who it is: `a thread that arrives`"),
    ("who observes", &[], "who it is: `an observer`"),
    ("of its own accord", &[], "`by itself`"),
];

const IS_NO: &[&str] = &[
    "there is no",
    "is no longer",
    "is no larger",
    "is no smaller",
    "is no faster",
    "is no slower",
    "is no better",
    "is no worse",
    "is no more",
    "is no less",
    "is no-",
];

const ARE_NO: &[&str] = &[
    "there are no",
    "are no longer",
    "are no larger",
    "are no smaller",
    "are no faster",
    "are no slower",
    "are no more",
];

const MANY_TOKENS: &[&str] =
    &["how many tokens", "as many tokens", "too many tokens", "that many tokens", "so many tokens"];

/// Whether the rule applies to a file: documents, sources and scripts, but not licences, recorded
/// texts and data by other authors.
fn applies_to(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let kinds = [".md", ".rs", ".wgsl", ".cu", ".cuh", ".h", ".cpp", ".py", ".toml"];
    let script = (path.starts_with("scripts/") || path.starts_with(".ci/")) && !name.contains('.');
    let own = !path.starts_with("assets/train/")
        && path != "assets/NOTICES.md"
        && path != "tests/tidy.rs"
        && path != "tests/tidy/words.rs";
    own && (script || kinds.iter().any(|kind| name.ends_with(kind)))
}

/// The words of a file in lower case, white space and comment marks as single spaces, and the line
/// of each byte.
fn words(file: &Source) -> (String, Vec<usize>) {
    let (mut text, mut lines) = (String::new(), Vec::new());
    let (mut line, mut starts) = (1, true);
    let code = file.code().as_bytes();
    for (at, c) in file.text.char_indices() {
        // In a Rust file, comments and literals are blank in `code`, so every other character is
        // code.
        let is_code = file.is_rust() && !c.is_whitespace() && code.get(at) != Some(&b' ');
        let mark = starts && "/!#*".contains(c);
        starts = c == '\n' || starts && (c.is_whitespace() || mark);
        let c = match c {
            _ if is_code => '\u{1}',
            c if c.is_whitespace() || mark || c == '\\' => ' ',
            c => c.to_ascii_lowercase(),
        };
        if c != ' ' || !text.ends_with(' ') {
            text.push(c);
            lines.resize(text.len(), line);
        }
        line += usize::from(file.text[at..].starts_with('\n'));
    }
    (text, lines)
}

/// Offsets of `phrase` as whole words, except inside a longer phrase of `fine`.
fn places<'a>(
    text: &'a str,
    phrase: &'a str,
    fine: &'a [&'a str],
) -> impl Iterator<Item = usize> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase).map(|(at, _)| at).filter(move |&at| {
        let end = at + phrase.len();
        // `{told}` in a format string is code.
        let code = text[..at].ends_with('{');
        let whole = !code && !text[..at].ends_with(part) && !text[end..].starts_with(part);
        let excused = fine.iter().any(|longer| {
            let before = longer.find(phrase).unwrap_or(0);
            at >= before && text.get(at - before..).is_some_and(|rest| rest.starts_with(longer))
        });
        whole && !excused
    })
}

fn faults_of(file: &Source) -> Vec<String> {
    let (text, lines) = words(file);
    let mut faults = Vec::new();
    for (phrase, fine, instead) in DENIED {
        for at in places(&text, phrase, fine) {
            faults.push(format!("{}:{}: \"{phrase}\": write {instead}", file.path, lines[at]));
        }
    }
    faults
}

/// Reports denied phrases in all text that people read.
pub(crate) fn plain_words(tree: &Tree) -> Vec<String> {
    tree.files.iter().filter(|file| applies_to(&file.path)).flat_map(faults_of).collect()
}
