//! Stop strings in a text that arrives in pieces.

/// Watches generated text for any of several strings.
///
/// Text that may be the beginning of a stop string is held back until the next piece decides, so
/// that no part of a stop string is ever shown.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
}

/// Result of one piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedText {
    /// Text that is safe to show now.
    pub text: String,
    /// The stop string that was found, if any: the text ends before it.
    pub stopped_by: Option<String>,
}

impl StopStrings {
    /// A matcher for `stops`; empty strings among them never match.
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|s| !s.is_empty()).collect();
        let held = String::new();
        Self { stops, held }
    }

    /// Adds the next piece. The match that ends first wins; of matches that end together, the
    /// longest wins. So the result does not depend on how the text is split into pieces.
    pub fn push(&mut self, piece: &str) -> PushedText {
        self.held.push_str(piece);
        let matches = self.stops.iter().filter_map(|stop| {
            let at = self.held.find(stop.as_str())?;
            Some((at, stop))
        });
        let first = matches.min_by_key(|(at, stop)| (at + stop.len(), *at));
        if let Some((at, stop)) = first {
            let stopped_by = Some(stop.clone());
            self.held.truncate(at);
            let text = std::mem::take(&mut self.held);
            return PushedText { text, stopped_by };
        }
        let kept = self.held.split_off(self.held.len() - self.undecided_len());
        let text = std::mem::replace(&mut self.held, kept);
        PushedText { text, stopped_by: None }
    }

    /// Returns the text that is still held back, when the generation ends for another reason.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length in bytes of the longest suffix of the held text that is a prefix of a stop string.
    /// Always a character boundary: the first byte of a stop string begins a character.
    fn undecided_len(&self) -> usize {
        let held = self.held.as_bytes();
        let longest_of = |stop: &String| {
            let stop = stop.as_bytes();
            let longest = held.len().min(stop.len() - 1);
            (1..=longest).rev().find(|&n| held.ends_with(&stop[..n])).unwrap_or(0)
        };
        self.stops.iter().map(longest_of).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stops(words: &[&str]) -> StopStrings {
        StopStrings::new(words.iter().map(|w| (*w).to_owned()).collect())
    }

    fn shown(text: &str) -> PushedText {
        PushedText { text: text.into(), stopped_by: None }
    }

    #[test]
    fn a_stop_across_pieces_is_never_shown() {
        let mut s = stops(&["User:"]);
        assert_eq!(s.push("hello U"), shown("hello "));
        assert_eq!(s.push("se"), shown(""));
        let end = s.push("r: hi");
        assert_eq!((end.text.as_str(), end.stopped_by.as_deref()), ("", Some("User:")));
    }

    #[test]
    fn held_text_is_returned_if_no_stop_string_follows() {
        let mut s = stops(&["aab"]);
        assert_eq!(s.push("aa"), shown(""));
        assert_eq!(s.push("a"), shown("a"));
        assert_eq!(s.push("c"), shown("aac"));
        assert_eq!(s.push("a"), shown(""));
        assert_eq!(s.finish(), "a");
    }

    #[test]
    fn the_match_that_ends_first_wins() {
        let mut s = stops(&["c", "bc", ""]);
        let end = s.push("abc");
        assert_eq!((end.text.as_str(), end.stopped_by.as_deref()), ("a", Some("bc")));
    }

    #[test]
    fn stop_strings_may_be_multi_byte() {
        let mut s = stops(&["é!", "日本"]);
        assert_eq!(s.push("caf"), shown("caf"));
        assert_eq!(s.push("è日"), shown("è"));
        assert_eq!(s.push("é"), shown("日"));
        assert_eq!(s.push("!").stopped_by.as_deref(), Some("é!"));
    }

    proptest! {
        #[test]
        fn the_split_into_pieces_does_not_matter(
            text in "[abé日]{0,40}",
            words in prop::collection::vec("[abé日]{1,4}", 0..4),
            cuts in prop::collection::vec(0usize..8, 0..40),
        ) {
            let ends = words.iter().filter_map(|w| Some((text.find(w.as_str())? + w.len(), w.len())));
            let cut_at = ends.min_by_key(|(end, len)| (*end, end - len)).map(|(end, len)| end - len);
            let expected = &text[..cut_at.unwrap_or(text.len())];
            let mut s = StopStrings::new(words);
            let chars: Vec<char> = text.chars().collect();
            let (mut out, mut at, mut stopped) = (String::new(), 0usize, false);
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let end = at.saturating_add(cut).min(chars.len());
                let pushed = s.push(&chars[at..end].iter().collect::<String>());
                at = end;
                out.push_str(&pushed.text);
                if pushed.stopped_by.is_some() {
                    stopped = true;
                    break;
                }
            }
            if !stopped {
                out.push_str(&s.finish());
            }
            prop_assert_eq!(stopped, cut_at.is_some());
            prop_assert_eq!(out, expected);
        }
    }
}
