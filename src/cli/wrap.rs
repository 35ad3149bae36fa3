//! Wraps reports to the width of a terminal.

/// Maximum width of a report's line, in characters.
pub(crate) const WIDTH: usize = 80;

/// `label` and `text` as lines of at most [`WIDTH`] characters, each with a line break. Lines after
/// the first are indented as far as the text of the first.
pub(crate) fn wrapped(label: &str, text: &str) -> String {
    format!("{label}{}\n", wrapped_after(label.chars().count(), text, WIDTH))
}

/// `text` as lines of at most `width` characters: the first follows a label of `indent`
/// characters, the others are indented as far. A longer word has a line of its own.
pub(crate) fn wrapped_after(indent: usize, text: &str, width: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for (i, word) in text.split_whitespace().enumerate() {
        let n = word.chars().count();
        if i > 0 && column + 1 + n > width {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if i > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += n;
    }
    out
}

/// The text, shortened to `width` characters by an ellipsis at its end.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text.chars().take(width.saturating_sub(1)).chain(['\u{2026}']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_indented_and_no_longer_than_the_width() {
        let text = "word ".repeat(40);
        let lines = wrapped("note: ", &text);
        assert!(lines.lines().count() == 3 && lines.ends_with("word\n"), "{lines}");
        assert!(lines.lines().all(|line| line.chars().count() <= WIDTH));
        assert!(lines.lines().skip(1).all(|line| line.starts_with("      word")));
        assert_eq!(wrapped("a ", ""), "a \n");
        let long = "x".repeat(100);
        assert_eq!(wrapped("a ", &format!("b {long} c")), format!("a b\n  {long}\n  c\n"));
    }

    #[test]
    fn names_are_shortened() {
        assert_eq!(shortened("Vulkan0", 7), "Vulkan0");
        assert_eq!(shortened("Vulkan10", 7), "Vulkan\u{2026}");
    }
}
