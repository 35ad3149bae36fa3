//! Separates reasoning from the answer in a text that arrives in pieces.

/// The section of a model's output that a piece of text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    /// The reasoning before the answer.
    Reasoning,
    /// The answer.
    Answer,
}

/// Opening and closing markers of reasoning in current models.
const MARKS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
];

/// gpt-oss writes these headers before an answer; they are not part of the answer.
const HEADERS: [&str; 3] =
    ["<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>"];

/// Separates reasoning from the answer. Markers are recognised only where an answer may begin, not
/// within an answer, so that an answer about `<think>` stays unchanged. Text that may be the
/// beginning of a marker is held back until the next piece decides.
#[derive(Clone, Debug)]
pub struct Reasoning {
    state: State,
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the answer: at most white space has arrived. The white space is dropped if `after` is
    /// set, that is, if reasoning or a header came before it.
    Start { after: bool },
    /// Within reasoning, up to the marker `close`. `begun` is set once non-space text has arrived.
    Thinking { close: &'static str, begun: bool },
    /// Within the answer.
    Answering,
}

/// Receives the separated text, piece by piece.
pub type ReplySink<'a> = dyn FnMut(ReplyPart, &str) + 'a;

impl Reasoning {
    /// A parser for the text after `prompt`. Some templates open the reasoning at the end of the
    /// prompt.
    #[must_use]
    pub fn after(prompt: &str) -> Reasoning {
        let prompt = prompt.trim_end();
        let open = MARKS.iter().find(|(open, _)| prompt.ends_with(open));
        let state = match open {
            Some((_, close)) => State::Thinking { close, begun: false },
            None => State::Start { after: false },
        };
        Reasoning { state, held: String::new() }
    }

    /// All markers that open or close reasoning.
    pub fn marks() -> impl Iterator<Item = &'static str> {
        MARKS.iter().flat_map(|(open, close)| [*open, *close])
    }

    /// All opening markers, each with the marker that closes it.
    pub fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
        MARKS.into_iter()
    }

    /// The opening marker for `close`; `None` if `close` is not a known marker.
    #[must_use]
    pub fn opening(close: &str) -> Option<&'static str> {
        MARKS.iter().find(|(_, known)| *known == close).map(|(open, _)| *open)
    }

    /// Adds the next piece, and passes all text whose section is certain to `take`.
    pub fn push(&mut self, piece: &str, take: &mut ReplySink<'_>) {
        self.held.push_str(piece);
        while self.step(take) {}
    }

    /// Passes the text that was held back to `take`, at the end of the output.
    pub fn finish(mut self, take: &mut ReplySink<'_>) {
        let (part, text) = match self.state {
            State::Thinking { begun, .. } => (ReplyPart::Reasoning, self.take_reasoning(begun)),
            State::Start { after: true } => (ReplyPart::Answer, self.held.trim_start().to_owned()),
            State::Start { after: false } | State::Answering => {
                (ReplyPart::Answer, std::mem::take(&mut self.held))
            }
        };
        if !text.is_empty() {
            take(part, &text);
        }
    }

    /// Processes the held text up to the next change of state. False if the next piece is needed.
    fn step(&mut self, take: &mut ReplySink<'_>) -> bool {
        match self.state {
            State::Answering => {
                if !self.held.is_empty() {
                    take(ReplyPart::Answer, &self.held);
                    self.held.clear();
                }
                false
            }
            State::Thinking { close, begun } => self.think(close, begun, take),
            State::Start { after } => self.start(after),
        }
    }

    fn start(&mut self, after: bool) -> bool {
        let text = self.held.trim_start();
        if let Some((open, close)) = MARKS.iter().find(|(open, _)| text.starts_with(open)) {
            self.held = text[open.len()..].to_owned();
            self.state = State::Thinking { close, begun: false };
            return true;
        }
        if let Some(header) = HEADERS.iter().find(|header| text.starts_with(**header)) {
            self.held = text[header.len()..].to_owned();
            self.state = State::Start { after: true };
            return true;
        }
        let mut marks = MARKS.iter().map(|(open, _)| open).chain(&HEADERS);
        if marks.any(|mark| mark.starts_with(text)) {
            return false;
        }
        if after {
            self.held = text.to_owned();
        }
        self.state = State::Answering;
        true
    }

    fn think(&mut self, close: &'static str, begun: bool, take: &mut ReplySink<'_>) -> bool {
        if let Some(at) = self.held.find(close) {
            let rest = self.held.split_off(at + close.len());
            self.held.truncate(at);
            let text = self.take_reasoning(begun);
            if !text.trim_end().is_empty() {
                take(ReplyPart::Reasoning, text.trim_end());
            }
            self.held = rest;
            self.state = State::Start { after: true };
            return true;
        }
        // Hold back trailing white space, which is dropped if the reasoning ends after it.
        let text = self.held.trim_end();
        let longest = text.len().min(close.len() - 1);
        let begins = |n: &usize| text.as_bytes().ends_with(&close.as_bytes()[..*n]);
        let undecided = (1..=longest).rev().find(begins).unwrap_or(0);
        let certain = text[..text.len() - undecided].trim_end().len();
        let rest = self.held.split_off(certain);
        let text = self.take_reasoning(begun);
        self.held = rest;
        if !text.is_empty() {
            take(ReplyPart::Reasoning, &text);
            self.state = State::Thinking { close, begun: true };
        } else if !begun {
            // Leading white space is dropped at once.
            self.held = self.held.trim_start().to_owned();
        }
        false
    }

    /// Takes the held reasoning, without white space before its first text.
    fn take_reasoning(&mut self, begun: bool) -> String {
        let text = std::mem::take(&mut self.held);
        if begun { text } else { text.trim_start().to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reasoning and answer of a text that arrives in pieces of `size` characters.
    fn separate(prompt: &str, text: &str, size: usize) -> (String, String) {
        let mut reasoning = Reasoning::after(prompt);
        let (mut thought, mut answer) = (String::new(), String::new());
        let mut take = |part: ReplyPart, text: &str| match part {
            ReplyPart::Reasoning => thought.push_str(text),
            ReplyPart::Answer => answer.push_str(text),
        };
        let chars: Vec<char> = text.chars().collect();
        for piece in chars.chunks(size) {
            reasoning.push(&piece.iter().collect::<String>(), &mut take);
        }
        reasoning.finish(&mut take);
        (thought, answer)
    }

    #[track_caller]
    fn check(prompt: &str, text: &str, thought: &str, answer: &str) {
        for size in 1..=text.chars().count().max(1) {
            let expected = (thought.to_owned(), answer.to_owned());
            assert_eq!(separate(prompt, text, size), expected, "{text:?} in pieces of {size}");
        }
    }

    #[test]
    fn tags_are_separated_from_the_answer() {
        check("", "<think>\nIs it? \n</think>\n\nYes.\n", "Is it?", "Yes.\n");
        check("", "\n<think></think>Yes", "", "Yes");
        check("", "<thinking>a < b</thinking> c", "a < b", "c");
        check("", "◁think▷é◁/think▷è", "é", "è");
        check("", "[THINK]a[/THINK]b", "a", "b");
    }

    #[test]
    fn the_prompt_may_open_the_reasoning() {
        check("<|Assistant|><think>\n", "So.\n</think>\n\nGo", "So.", "Go");
        check("<think>\n\n</think>\n\n", " Go", "", " Go");
        check("user", "So </think> Go", "", "So </think> Go");
    }

    #[test]
    fn gpt_oss_channels_are_separated() {
        check(
            "<|start|>assistant",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
            "Hm.",
            "Hi.",
        );
        check("", "<|channel|>final<|message|>Hi", "", "Hi");
    }

    #[test]
    fn an_answer_stays_whole() {
        check("", " The tag <think> opens </think> it", "", " The tag <think> opens </think> it");
        check("", "<thin air", "", "<thin air");
        check("", "<think>no end", "no end", "");
        check("", "<think>a</thin", "a</thin", "");
        check("", "<", "", "<");
        check("", "", "", "");
    }

    proptest! {
        #[test]
        fn the_split_into_pieces_does_not_matter(text in "(<think>|</think>|<|[a é\n]){0,12}", size in 1usize..9) {
            prop_assert_eq!(separate("", &text, size), separate("", &text, usize::MAX));
        }
    }
}
