//! Separates calls from content in a text that arrives in pieces.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::body::{Body, Event, Sink, Step};
use super::format::Mark;
use super::{CallFormat, Tool};

/// The next part of a message with calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallDelta {
    /// Text outside of calls.
    Content(String),
    /// A call begins.
    Begin {
        /// Number of the call in the message, from 0.
        index: usize,
        /// A random id: `call_` and 24 letters and digits, or 9 for Mistral.
        id: String,
        /// The tool.
        name: String,
    },
    /// The next part of a call's arguments, a JSON object in all.
    Arguments {
        /// Number of the call.
        index: usize,
        /// Text to append.
        fragment: String,
    },
    /// A call is complete.
    End {
        /// Number of the call.
        index: usize,
    },
}

/// When arguments are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delivery {
    /// When the call is complete and valid. Anything else is content, unchanged.
    #[default]
    Complete,
    /// As they arrive: for output that a constraint keeps valid. If the arguments are not JSON
    /// after all, the call ends there, and the rest is content.
    Incremental,
}

/// The longest text after a mark that is searched for another mark when it is not a call.
const LOOK_BACK: usize = 64;

/// Separates calls from content. Marks that may be incomplete are held back, so the pieces in
/// which the text arrives do not matter. White space next to a call belongs to the format.
#[derive(Debug)]
pub struct CallParser {
    format: CallFormat,
    tools: Vec<Tool>,
    delivery: Delivery,
    rng: ChaCha12Rng,
    marks: Vec<Mark>,
    /// Content that may be the beginning of a mark.
    held: String,
    /// Only white space, or a call, came before.
    leading: bool,
    /// Whether a call came last.
    after_call: bool,
    body: Option<Body>,
    /// The text of the current call, for the case that it is not one.
    raw: String,
    /// Bytes of `raw` up to the end of the mark.
    n_mark: usize,
    /// Deltas of the current call that are not passed on yet.
    pending: Vec<CallDelta>,
    /// Calls that have begun.
    n_calls: usize,
    /// The call whose beginning was passed on, and its end was not.
    open: Option<usize>,
    out: Vec<CallDelta>,
}

impl CallParser {
    /// A parser for calls of these tools; of any tool if there are none. `seed` determines the ids.
    #[must_use]
    pub fn new(format: CallFormat, tools: &[Tool], seed: u64) -> CallParser {
        CallParser {
            format,
            tools: tools.to_vec(),
            delivery: Delivery::default(),
            rng: ChaCha12Rng::seed_from_u64(seed),
            marks: format.content_marks(),
            held: String::new(),
            leading: true,
            after_call: false,
            body: None,
            raw: String::new(),
            n_mark: 0,
            pending: Vec::new(),
            n_calls: 0,
            open: None,
            out: Vec::new(),
        }
    }

    /// Sets when arguments are passed on.
    #[must_use]
    pub fn with_delivery(self, delivery: Delivery) -> CallParser {
        CallParser { delivery, ..self }
    }

    /// Number of calls so far.
    #[must_use]
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Adds the next piece and returns what is decided.
    pub fn push(&mut self, piece: &str) -> Vec<CallDelta> {
        for c in piece.chars() {
            self.character(c);
        }
        self.deltas()
    }

    /// Ends the text. A call without its end is content, unless its arguments are complete.
    pub fn finish(mut self) -> Vec<CallDelta> {
        if let Some(mut body) = self.body.take() {
            match body.finish() {
                Some(rest) => {
                    self.complete();
                    self.held = rest;
                }
                None => {
                    let rest = self.fail();
                    self.content(&rest);
                }
            }
        }
        let held = std::mem::take(&mut self.held);
        if !(self.after_call && held.trim().is_empty()) {
            self.content(&held);
        }
        self.deltas()
    }

    /// The decided deltas, with neighbours of a kind joined.
    fn deltas(&mut self) -> Vec<CallDelta> {
        let mut joined: Vec<CallDelta> = Vec::new();
        for delta in self.out.drain(..) {
            match (joined.last_mut(), delta) {
                (Some(CallDelta::Content(text)), CallDelta::Content(more)) => text.push_str(&more),
                (
                    Some(CallDelta::Arguments { index, fragment }),
                    CallDelta::Arguments { index: same, fragment: more },
                ) if *index == same => fragment.push_str(&more),
                (_, delta) => joined.push(delta),
            }
        }
        joined
    }

    fn content(&mut self, text: &str) {
        if !text.is_empty() {
            self.out.push(CallDelta::Content(text.to_owned()));
        }
    }

    fn character(&mut self, c: char) {
        // Text after a call is content, in which another call may begin.
        let mut todo = vec![c];
        while let Some(c) = todo.pop() {
            if self.body.is_some() {
                todo.extend(self.in_call(c));
            } else {
                self.in_content(c);
            }
        }
    }

    /// Takes a character of a call. Returns the characters that belong to what follows, last first.
    fn in_call(&mut self, c: char) -> Vec<char> {
        let Some(mut body) = self.body.take() else { return vec![c] };
        let mut sink = Sink::new(&self.tools);
        let step = body.step(c, &mut sink);
        let events = std::mem::take(&mut sink.events);
        if step != Step::Failed {
            self.raw.push(c);
        }
        for event in events {
            self.event(event);
        }
        match step {
            Step::More => {
                self.body = Some(body);
                Vec::new()
            }
            Step::Done { rest } => {
                self.complete();
                rest.chars().rev().collect()
            }
            Step::Failed => {
                let rest = self.fail();
                std::iter::once(c).chain(rest.chars().rev()).collect()
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Begin(name) => {
                let id = self.id();
                self.pending.push(CallDelta::Begin { index: self.n_calls, id, name });
                self.n_calls += 1;
            }
            Event::Arguments(fragment) => {
                let index = self.n_calls.saturating_sub(1);
                self.pending.push(CallDelta::Arguments { index, fragment });
            }
            Event::End => {
                self.pending.push(CallDelta::End { index: self.n_calls.saturating_sub(1) });
            }
            Event::Next(mark) => {
                self.flush();
                self.raw = mark.to_owned();
                self.n_mark = mark.len();
                return;
            }
        }
        if self.delivery == Delivery::Incremental {
            self.flush();
        }
    }

    fn flush(&mut self) {
        for delta in self.pending.drain(..) {
            match delta {
                CallDelta::Begin { index, .. } => self.open = Some(index),
                CallDelta::End { .. } => self.open = None,
                CallDelta::Content(_) | CallDelta::Arguments { .. } => {}
            }
            self.out.push(delta);
        }
        self.raw.clear();
        self.n_mark = 0;
    }

    /// The body is complete.
    fn complete(&mut self) {
        self.flush();
        (self.leading, self.after_call) = (true, true);
    }

    /// The text since the last complete call is content after all. Returns the end of it in which
    /// another mark may begin.
    fn fail(&mut self) -> String {
        let begun = |delta: &CallDelta| matches!(delta, CallDelta::Begin { .. });
        self.n_calls -= self.pending.iter().filter(|delta| begun(delta)).count();
        self.pending.clear();
        if let Some(index) = self.open.take() {
            self.out.push(CallDelta::End { index });
        }
        let mut raw = std::mem::take(&mut self.raw);
        let n_mark = std::mem::take(&mut self.n_mark);
        let rest =
            if raw.len() - n_mark <= LOOK_BACK { raw.split_off(n_mark) } else { String::new() };
        self.leading &= raw.trim().is_empty();
        self.after_call &= raw.trim().is_empty();
        self.content(&raw);
        rest
    }

    fn in_content(&mut self, c: char) {
        self.held.push(c);
        let ended = self.marks.iter().find(|mark| match mark {
            Mark::Call(text) | Mark::Header(text) => self.held.ends_with(text),
            Mark::Leading(text) => self.leading && self.lead() == *text,
        });
        let Some(mark) = ended.copied() else { return self.pass_on() };
        let before = self.held.len() - mark.text().len();
        let kept = self.held[..before].trim_end().len();
        let text: String = self.held.drain(..kept).collect();
        if !self.is_separator(&text) {
            self.content(&text);
        }
        let held = std::mem::take(&mut self.held);
        match mark {
            Mark::Header(_) => self.leading = true,
            Mark::Call(_) | Mark::Leading(_) => {
                self.n_mark = held.len();
                self.raw = held;
                self.body = Some(Body::after(mark.text()));
            }
        }
    }

    /// The held text without the white space, or the separator of calls, before it.
    fn lead(&self) -> &str {
        let text = self.held.trim_start();
        match text.strip_prefix(';') {
            Some(rest) if self.after_call => rest.trim_start(),
            _ => text,
        }
    }

    /// Whether this is what Llama 3 writes between calls.
    fn is_separator(&self, text: &str) -> bool {
        self.after_call && text.trim() == ";"
    }

    /// Passes on what cannot be the beginning of a mark. White space before a possible mark stays.
    fn pass_on(&mut self) {
        let begins = |at: usize| {
            let rest = &self.held[at..];
            self.marks.iter().any(|mark| match mark {
                Mark::Call(text) | Mark::Header(text) => text.starts_with(rest),
                Mark::Leading(_) => false,
            })
        };
        let lead = self.lead();
        let may_lead = self.leading
            && self
                .marks
                .iter()
                .any(|mark| matches!(mark, Mark::Leading(t) if t.starts_with(lead)));
        if may_lead {
            return;
        }
        let longest = self.marks.iter().map(|mark| mark.text().len()).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let starts = self.held.char_indices().map(|(at, _)| at).filter(|at| *at >= from);
        let start = starts.into_iter().find(|at| begins(*at)).unwrap_or(self.held.len());
        let certain = self.held[..start].trim_end().len();
        if certain == 0 {
            return;
        }
        let text: String = self.held.drain(..certain).collect();
        (self.leading, self.after_call) = (false, false);
        self.content(&text);
    }

    fn id(&mut self) -> String {
        const ALPHABET: &[u8; 62] =
            b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        let mut letters = |n: usize| -> String {
            let letter = |_| char::from(ALPHABET[(self.rng.next_u32() % 62) as usize]);
            (0..n).map(letter).collect()
        };
        if self.format.has_short_ids() { letters(9) } else { format!("call_{}", letters(24)) }
    }
}
