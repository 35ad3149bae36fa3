//! Pieces of pictures: plain SVG, no script, no font but the viewer's.

use std::fmt::Write;

/// Colours of the CPU and of the devices after it, in turn; told apart by people who do not see red or green.
pub(crate) const CPU_COLOR: &str = "#8aa1b8";
const COLORS: [&str; 4] = ["#d9822b", "#7a5fb0", "#2a9d8f", "#c2456b"];

/// The colour of a device.
pub(crate) fn color(device: usize) -> &'static str {
    match device {
        0 => CPU_COLOR,
        other => COLORS[(other - 1) % COLORS.len()],
    }
}

/// A picture under way.
#[derive(Debug)]
pub(crate) struct Picture(String);

impl Picture {
    /// An empty one.
    pub(crate) fn new(width: f64, height: f64) -> Picture {
        Picture(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n\
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

    /// Words at a place, with further attributes.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), attributes: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>");
    }

    /// The whole text.
    pub(crate) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

/// Text that may come from a file or a flag, for XML.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // What XML has no place for.
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
    fn names_from_outside_stay_text() {
        assert_eq!(escaped("a<b>&\"c\"\u{1b}"), "a&lt;b&gt;&amp;&quot;c&quot;?");
    }
}
