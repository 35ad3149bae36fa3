//! Draws plots as plain SVG without scripts, in the viewer's sans-serif font.

use super::date::today;
use std::fmt::Write;

/// Colour of the CPU. It and [`COLORS`] are distinguishable with red-green colour blindness.
pub(crate) const CPU_COLOR: &str = "#8aa1b8";
const COLORS: [&str; 4] = ["#d9822b", "#7a5fb0", "#2a9d8f", "#c2456b"];

/// The colour of a device; 0 is the CPU. Colours repeat after four devices.
pub(crate) fn color(device: usize) -> &'static str {
    match device {
        0 => CPU_COLOR,
        other => COLORS[(other - 1) % COLORS.len()],
    }
}

/// Font sizes of labels and of the title, in SVG units.
pub(crate) const TEXT: f64 = 11.0;
pub(crate) const TITLE: f64 = 15.0;

/// Attributes of text that explains.
pub(crate) const GRAY_TEXT: &str = "fill=\"#555\"";

/// The last line of a plot: the machine, the program with its version, the date.
pub(crate) fn origin(machine: &str) -> String {
    let [name, version] = [env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")];
    format!("{machine} | {name} {version} | {}", today())
}

/// A plot being drawn.
#[derive(Debug)]
pub(crate) struct Picture(String);

impl Picture {
    pub(crate) fn new(width: f64, height: f64) -> Picture {
        Picture(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"{TEXT}\" fill=\"#222\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
        ))
    }

    /// A filled box: x, y, width, height.
    pub(crate) fn bar(&mut self, (x, y, width, height): (f64, f64, f64, f64), color: &str) {
        if width > 0.0 {
            let _ = writeln!(
                self.0,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>"
            );
        }
    }

    /// A text at a position, with further SVG attributes.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), attributes: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>");
    }

    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

/// Upper estimate of a text's width in SVG units; the viewer's font is not known.
pub(crate) fn width_of(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | ' ' | '.' | ',' | ':' | ';' | '|' | '/' | '(' | ')' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' => 0.95,
        c if c.is_ascii_uppercase() => 0.72,
        c if c.is_ascii() => 0.62,
        _ => 1.0,
    };
    size * text.chars().map(em).sum::<f64>()
}

/// The text, shortened to fit into `width` SVG units by an ellipsis in its middle.
pub(crate) fn shorten_to_width(text: &str, size: f64, width: f64) -> String {
    let chars: Vec<char> = text.chars().collect();
    let without = |n: usize| -> String {
        let kept = chars.len() - n;
        let (first, last) = (&chars[..kept.div_ceil(2)], &chars[chars.len() - kept / 2..]);
        first.iter().chain(&['\u{2026}']).chain(last).collect()
    };
    if width_of(text, size) <= width {
        return text.to_owned();
    }
    let all = (1..=chars.len()).map(without);
    all.into_iter().find(|text| width_of(text, size) <= width).unwrap_or_default()
}

/// Escapes untrusted text for XML.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // Characters that XML does not allow.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_lose_their_middle() {
        assert_eq!(shorten_to_width("model.gguf", 10.0, 100.0), "model.gguf");
        let long = shorten_to_width(&"0123456789".repeat(20), 10.0, 100.0);
        assert!(long.starts_with("0123") && long.ends_with("6789") && long.contains('\u{2026}'));
        assert!(width_of(&long, 10.0) <= 100.0 && width_of(&long, 10.0) > 85.0, "{long}");
        assert_eq!(shorten_to_width("model", 10.0, 1.0), "");
    }

    #[test]
    fn the_origin_names_machine_version_and_date() {
        let line = origin("a CPU");
        assert!(line.starts_with("a CPU | ") && line.contains(env!("CARGO_PKG_VERSION")), "{line}");
        assert!(line.ends_with(&today()), "{line}");
    }

    #[test]
    fn untrusted_names_are_escaped() {
        assert_eq!(escaped("a<b>&\"c\"\u{1b}"), "a&lt;b&gt;&amp;&quot;c&quot;?");
    }
}
