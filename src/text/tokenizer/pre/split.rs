//! Splits text into words in linear time: the `regex` crate runs the patterns, and code here
//! replaces their look-ahead (`\s+(?!\S)`, groups of digits counted from the right).

use std::ops::Range;

use regex::{Match, Regex};

use super::Pre;

/// A step of the splitting.
#[derive(Debug)]
pub(super) enum Cut {
    /// Into matches and the text between them.
    Plain(&'static str),
    /// The same with `|\s+(?!\S)|\s+` after the pattern: white space without another match is one
    /// word, except that its last character is left to the following word, if there is one.
    Words(&'static str),
    /// The same with `|\s{512}(?!\S)|\s{256}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s`.
    Runs(&'static str),
    /// Runs of `\p{N}` into threes from the right; text before a run goes with its first group.
    Threes,
    /// Before each three ASCII digits counted from the right: `(?=(\d{3})+(?!\d))`.
    Thousands,
}

/// A pre-tokenizer, compiled.
#[derive(Debug)]
pub(in crate::tokenizer) struct Splitter {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    how: &'static Cut,
    regex: Regex,
    /// Whether white space up to a line's end is a match of its own.
    lines: bool,
}

impl Splitter {
    pub(in crate::tokenizer) fn new(pre: &Pre) -> Splitter {
        Splitter { steps: pre.cuts.iter().map(Step::new).collect() }
    }

    /// Words of `text`: ranges of bytes that cover it without overlap, none empty.
    pub(in crate::tokenizer) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let whole = 0..text.len();
        let mut words = vec![whole];
        for step in &self.steps {
            let mut cut = Vec::with_capacity(words.len());
            for word in words {
                let start = word.start;
                step.split(&text[word], |w| {
                    if !w.is_empty() {
                        cut.push(start + w.start..start + w.end);
                    }
                });
            }
            words = cut;
        }
        words
    }
}

impl Step {
    fn new(how: &'static Cut) -> Step {
        let pattern = match how {
            Cut::Plain(pattern) => (*pattern).to_owned(),
            Cut::Words(pattern) | Cut::Runs(pattern) => format!(r"{pattern}|\s+"),
            Cut::Threes => r"\p{N}+".into(),
            Cut::Thousands => "[0-9]{3,}".into(),
        };
        let regex = Regex::new(&pattern).expect("a test compiles the table");
        Step { how, regex, lines: pattern.contains(r"\s*[\r\n]") }
    }

    /// Calls `word` with consecutive ranges that cover `text`; some are empty.
    fn split(&self, text: &str, mut word: impl FnMut(Range<usize>)) {
        let mut at = 0;
        match self.how {
            Cut::Plain(_) => {
                for found in self.regex.find_iter(text) {
                    word(at..found.start());
                    word(found.range());
                    at = found.end();
                }
            }
            Cut::Words(_) | Cut::Runs(_) => {
                while let Some(found) = self.regex.find_at(text, at) {
                    word(at..found.start());
                    at = found.start();
                    let stop = if !self.is_spare(found.as_str()) {
                        found.end()
                    } else if matches!(self.how, Cut::Runs(_)) {
                        at = in_pieces(text, found, &mut word);
                        at
                    } else {
                        all_but_the_last(text, found)
                    };
                    word(at..stop);
                    at = stop;
                }
            }
            Cut::Threes => {
                for found in self.regex.find_iter(text) {
                    let mut left = found.as_str().chars().count();
                    for (i, c) in found.as_str().char_indices() {
                        left -= 1;
                        if left % 3 == 0 {
                            let end = found.start() + i + c.len_utf8();
                            word(at..end);
                            at = end;
                        }
                    }
                }
            }
            Cut::Thousands => {
                for found in self.regex.find_iter(text) {
                    let first = found.start() + found.len() % 3;
                    for start in (first..found.end()).step_by(3) {
                        word(at..start);
                        at = start;
                    }
                }
            }
        }
        word(at..text.len());
    }

    /// Whether a match is white space that only the end of the pattern matched: `\s*[\r\n]+`, if
    /// present in the pattern, goes first and ends a line.
    fn is_spare(&self, found: &str) -> bool {
        found.chars().all(char::is_whitespace) && !(self.lines && found.ends_with(['\r', '\n']))
    }
}

/// End of the match of `\s+(?!\S)|\s+`, which starts at `run`, the longest run of white space.
fn all_but_the_last(text: &str, run: Match<'_>) -> usize {
    let last = run.as_str().chars().next_back().map_or(0, char::len_utf8);
    if run.end() == text.len() || run.len() == last { run.end() } else { run.end() - last }
}

/// Splits a run of white space into powers of two, as `Cut::Runs` does without the pattern before
/// it, and returns the end of the last one.
fn in_pieces(text: &str, run: Match<'_>, word: &mut impl FnMut(Range<usize>)) -> usize {
    let mut at = run.start();
    let mut left = run.as_str().chars().count();
    let follows = usize::from(run.end() < text.len());
    if left == 1 {
        word(run.range());
        return run.end();
    }
    let mut chars = run.as_str().chars();
    while left > follows {
        let most = left - follows;
        let sizes = [512, 256, 128, 64, 32, 16, 8, 4, 2];
        let n = sizes.into_iter().find(|&size| size <= most).unwrap_or(1);
        let len: usize = chars.by_ref().take(n).map(char::len_utf8).sum();
        word(at..at + len);
        at += len;
        left -= n;
    }
    at
}
