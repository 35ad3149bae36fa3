//! Separates tool calls from content in streamed text.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::body::{Body, Event, Sink, Step};
use super::format::Mark;
use super::{CallFormat, Tool};

/// The next part of a message that may have tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallDelta {
    /// Text outside of calls.
    Content(String),
    /// A call begins.
    Begin {
        /// Index of the call in the message, from 0.
        index: usize,
        /// Random: `call_` and 24 letters or digits; for Mistral, 9 letters or digits.
        id: String,
        /// The tool.
        name: String,
    },
    /// The next part of a call's arguments, which together are a JSON object.
    Arguments {
        /// Index of the call.
        index: usize,
        /// Text to append.
        fragment: String,
    },
    /// A call is complete.
    End {
        /// Index of the call.
        index: usize,
    },
}

/// When the arguments of a call are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Delivery {
    /// Once the call is complete and valid. Any other text is passed on unchanged as content.
    #[default]
    Complete,
    /// As they arrive, for output that a constraint keeps valid. If the arguments turn out to be
    /// invalid JSON, the call ends there, and the rest is content.
    Incremental,
}

/// Text after a marker that is not a call is searched for another marker if it has at most this
/// many bytes.
const LOOK_BACK: usize = 64;

/// Separates calls from content. Text that may be the beginning of a marker is held back, so the
/// result does not depend on how the text is split into pieces. White space before a call, or from
/// a call to the end of the text, is not part of the content.
#[derive(Debug)]
pub struct CallParser {
    format: CallFormat,
    tools: Vec<Tool>,
    delivery: Delivery,
    rng: ChaCha12Rng,
    marks: Vec<Mark>,
    /// Text that may be the beginning of a marker.
    held: String,
    /// Whether the text so far, or since the last call, is only white space.
    leading: bool,
    /// Whether a call was parsed last.
    after_call: bool,
    body: Option<Body>,
    /// The text of the current call, which becomes content if it is not a valid call.
    raw: String,
    /// Length of the marker in `raw`, in bytes.
    n_mark: usize,
    /// Deltas of the current call that have not been passed on yet.
    pending: Vec<CallDelta>,
    /// Number of calls that have begun.
    n_calls: usize,
    /// The call whose beginning was delivered, but not its end.
    open: Option<usize>,
    out: Vec<CallDelta>,
}

impl CallParser {
    /// A parser for calls of these tools, or of any tool if the list is empty. `seed` determines
    /// the ids of calls.
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

    /// Adds the next piece and returns the deltas that are now certain.
    pub fn push(&mut self, piece: &str) -> Vec<CallDelta> {
        for c in piece.chars() {
            self.character(c);
        }
        self.deltas()
    }

    /// Ends the text. An unfinished call becomes content, unless its arguments are complete.
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

    /// The deltas that are certain, with adjacent deltas of the same kind merged.
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

    /// Parses a character of a call. Returns the characters that are not part of the call, in
    /// reverse order.
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

    fn complete(&mut self) {
        self.flush();
        (self.leading, self.after_call) = (true, true);
    }

    /// Turns the text since the last complete call into content. Returns the end of that text, in
    /// which another marker may begin.
    fn fail(&mut self) -> String {
        let is_begin = |delta: &CallDelta| matches!(delta, CallDelta::Begin { .. });
        self.n_calls -= self.pending.iter().filter(|delta| is_begin(delta)).count();
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
        let found = self.marks.iter().find(|mark| match mark {
            Mark::Call(text) | Mark::Header(text) => self.held.ends_with(text),
            Mark::Leading(text) => self.leading && self.lead() == *text,
        });
        let Some(mark) = found.copied() else { return self.pass_on() };
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

    /// The held text without leading white space and without the separator of calls.
    fn lead(&self) -> &str {
        let text = self.held.trim_start();
        match text.strip_prefix(';') {
            Some(rest) if self.after_call => rest.trim_start(),
            _ => text,
        }
    }

    /// Whether the text is Llama 3's separator between calls.
    fn is_separator(&self, text: &str) -> bool {
        self.after_call && text.trim() == ";"
    }

    /// Passes on held text that cannot be the beginning of a marker. White space before a possible
    /// marker stays held.
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
