//! Calls in which the name comes before the arguments: Mistral, gpt-oss, DeepSeek.

use super::body::{After, Event, Sink, Step, Tail, TailStep};
use super::format::{ARGS, CALL, CALL_BEGIN, CALL_END, CALL_ID, CALL_SEP, CALLS_END, MESSAGE};
use super::json::JsonScan;

/// Maximum length of the text before the arguments, in bytes.
const MAX_HEAD: usize = 512;

/// Parses a header with the name, then the arguments, then closing markers.
#[derive(Debug)]
pub(super) struct Named {
    layout: Layout,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Mistral,
    Harmony,
    DeepSeek,
}

#[derive(Debug)]
enum Stage {
    /// Within a required marker; holds the text of the marker so far.
    Opening(String),
    Head(String),
    Arguments(JsonScan),
    Tail(Tail),
}

impl Named {
    pub(super) fn mistral() -> Named {
        Named { layout: Layout::Mistral, stage: Stage::Head(String::new()) }
    }

    pub(super) fn harmony() -> Named {
        Named { layout: Layout::Harmony, stage: Stage::Head(String::new()) }
    }

    /// `outer` says whether the marker before all calls was found, so that the marker of the first
    /// call must follow.
    pub(super) fn deepseek(outer: bool) -> Named {
        let stage = if outer { Stage::Opening } else { Stage::Head };
        Named { layout: Layout::DeepSeek, stage: stage(String::new()) }
    }

    fn marks(&self) -> &'static [(&'static str, After)] {
        match self.layout {
            Layout::Mistral => &[],
            Layout::Harmony => &[(CALL, After::Content)],
            Layout::DeepSeek => &[
                ("```", After::Marks),
                (CALL_END, After::Marks),
                (CALL_BEGIN, After::Call),
                (CALLS_END, After::Content),
            ],
        }
    }

    pub(super) fn step(&mut self, c: char, sink: &mut Sink<'_>) -> Step {
        match &mut self.stage {
            Stage::Opening(text) => {
                text.push(c);
                let trimmed = text.trim_start();
                if trimmed == CALL_BEGIN {
                    self.stage = Stage::Head(String::new());
                } else if !CALL_BEGIN.starts_with(trimmed) {
                    return Step::Failed;
                }
                Step::More
            }
            Stage::Head(head) => {
                if head.len() > MAX_HEAD {
                    return Step::Failed;
                }
                if c == '{' && is_complete(self.layout, head) {
                    let Some(name) = name(self.layout, head).filter(|name| sink.knows(name)) else {
                        return Step::Failed;
                    };
                    sink.events.push(Event::Begin(name));
                    self.stage = Stage::Arguments(JsonScan::new());
                    return self.step(c, sink);
                }
                head.push(c);
                Step::More
            }
            Stage::Arguments(scan) => {
                if scan.step(c).is_err() {
                    return Step::Failed;
                }
                sink.events.push(Event::Arguments(c.into()));
                if !scan.is_done() {
                    return Step::More;
                }
                sink.events.push(Event::End);
                let marks = self.marks();
                if marks.is_empty() {
                    return Step::Done { rest: String::new() };
                }
                self.stage = Stage::Tail(Tail::new(marks));
                Step::More
            }
            Stage::Tail(tail) => match tail.step(c) {
                TailStep::More => Step::More,
                TailStep::NextCall { mark } => {
                    sink.events.push(Event::Next(mark));
                    self.stage = Stage::Head(String::new());
                    Step::More
                }
                TailStep::Done { rest } => Step::Done { rest },
            },
        }
    }

    pub(super) fn finish(&mut self) -> Option<String> {
        match &mut self.stage {
            Stage::Tail(tail) => Some(tail.rest()),
            Stage::Opening(_) | Stage::Head(_) | Stage::Arguments(_) => None,
        }
    }
}

/// Whether the header is complete, so that the arguments may begin.
fn is_complete(layout: Layout, head: &str) -> bool {
    match layout {
        Layout::Mistral => head.trim_end().ends_with(ARGS),
        Layout::Harmony => head.trim_end().ends_with(MESSAGE),
        Layout::DeepSeek => head.contains(CALL_SEP),
    }
}

/// The name of the tool in a header.
fn name(layout: Layout, head: &str) -> Option<String> {
    let name = match layout {
        Layout::Mistral => {
            let before = head.trim_end().strip_suffix(ARGS)?;
            before.split_once(CALL_ID).map_or(before, |(name, _)| name).trim()
        }
        Layout::Harmony => {
            let end = head.find(|c: char| c.is_whitespace() || c == '<')?;
            &head[..end]
        }
        // `function<sep>NAME` and a code fence, or `NAME<sep>`.
        Layout::DeepSeek => {
            let (left, right) = head.split_once(CALL_SEP)?;
            match right.trim().strip_suffix("```json") {
                Some(name) => name.trim(),
                None if right.trim().is_empty() => left.trim(),
                None => return None,
            }
        }
    };
    let is_word = |c: char| !c.is_whitespace() && !"<>[]{}".contains(c);
    (!name.is_empty() && name.chars().all(is_word)).then(|| name.to_owned())
}
