//! Splits text into words in linear time. The `regex` crate runs the patterns; this module
//! implements their look-ahead (`\s+(?!\S)`, groups of digits counted from the right).

use std::ops::Range;

use regex::{Match, Regex};

use super::Pre;

/// One step of splitting text into words.
#[derive(Debug)]
pub(super) enum Cut {
    /// Splits into matches of the pattern and the text between matches.
    Plain(&'static str),
    /// As `Plain`, with `|\s+(?!\S)|\s+` after the pattern: a run of other white space is one word,
    /// but its last character is left to the next word, if any.
    Words(&'static str),
    /// As `Plain`, with `|\s{512}(?!\S)|\s{256}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s`.
    Runs(&'static str),
    /// Groups runs of `\p{N}` in threes from the right. Text before a run joins its first group.
    Threes,
    /// Splits before each three ASCII digits counted from the right: `(?=(\d{3})+(?!\d))`.
    Thousands,
}

/// A compiled pre-tokenizer.
#[derive(Debug)]
pub(in crate::tokenizer) struct Splitter {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    cut: &'static Cut,
    regex: Regex,
    /// Whether the pattern matches white space up to a line end as a word.
    matches_lines: bool,
}

impl Splitter {
    pub(in crate::tokenizer) fn new(pre: &Pre) -> Splitter {
        Splitter { steps: pre.cuts.iter().map(Step::new).collect() }
    }

    /// The words of `text`: non-empty byte ranges that cover the text without overlap.
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
    fn new(cut: &'static Cut) -> Step {
        let pattern = match cut {
            Cut::Plain(pattern) => (*pattern).to_owned(),
            Cut::Words(pattern) | Cut::Runs(pattern) => format!(r"{pattern}|\s+"),
            Cut::Threes => r"\p{N}+".into(),
            Cut::Thousands => "[0-9]{3,}".into(),
        };
        let regex = Regex::new(&pattern).expect("a test compiles every pattern");
        Step { cut, regex, matches_lines: pattern.contains(r"\s*[\r\n]") }
    }

    /// Calls `word` with consecutive ranges that cover `text`; some are empty.
    fn split(&self, text: &str, mut word: impl FnMut(Range<usize>)) {
        let mut at = 0;
        match self.cut {
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
                    let stop = if !self.is_appended_match(found.as_str()) {
                        found.end()
                    } else if matches!(self.cut, Cut::Runs(_)) {
                        at = split_run(text, found, &mut word);
                        at
                    } else {
                        white_space_end(text, found)
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

    /// Whether a match is white space that only the appended `\s+` matched. If the pattern contains
    /// `\s*[\r\n]+`, that alternative matches white space up to a line end first.
    fn is_appended_match(&self, found: &str) -> bool {
        found.chars().all(char::is_whitespace)
            && !(self.matches_lines && found.ends_with(['\r', '\n']))
    }
}

/// End of the match of `\s+(?!\S)|\s+`, which starts at `run`, the longest run of white space.
fn white_space_end(text: &str, run: Match<'_>) -> usize {
    let last = run.as_str().chars().next_back().map_or(0, char::len_utf8);
    if run.end() == text.len() || run.len() == last { run.end() } else { run.end() - last }
}

/// Splits a run of white space into words whose lengths are powers of two, as the alternatives of
/// `Cut::Runs` do, and returns the end of the last word.
fn split_run(text: &str, run: Match<'_>, word: &mut impl FnMut(Range<usize>)) -> usize {
    let mut at = run.start();
    let mut left = run.as_str().chars().count();
    let n_reserved = usize::from(run.end() < text.len());
    if left == 1 {
        word(run.range());
        return run.end();
    }
    let mut chars = run.as_str().chars();
    while left > n_reserved {
        let longest = left - n_reserved;
        let sizes = [512, 256, 128, 64, 32, 16, 8, 4, 2];
        let n = sizes.into_iter().find(|&size| size <= longest).unwrap_or(1);
        let len: usize = chars.by_ref().take(n).map(char::len_utf8).sum();
        word(at..at + len);
        at += len;
        left -= n;
    }
    at
}
