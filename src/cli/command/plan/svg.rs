//! The plan as a picture: a row for each layer, attention and neurons as bars on their devices, and beside it the time
//! that each side needs.

use super::Report;
use crate::placement::CPU;
use std::fmt::Write;

/// Colours of the CPU and of the devices after it, in turn; told apart by people who do not see red or green.
const CPU_COLOR: &str = "#8aa1b8";
const COLORS: [&str; 4] = ["#d9822b", "#7a5fb0", "#2a9d8f", "#c2456b"];
const ROW: f64 = 14.0;
const GAP: f64 = 3.0;
const LEFT: f64 = 48.0;
/// Width of attention, of the neurons, and of the times.
const ATTENTION: f64 = 70.0;
const NEURONS: f64 = 420.0;
const TIMES: f64 = 200.0;
const SPACE: f64 = 14.0;

/// The whole picture.
pub(super) fn picture(report: &Report) -> String {
    let forecast = &report.forecast;
    let n_layer = forecast.layers.len();
    let (attention, neurons) = (LEFT, LEFT + ATTENTION + SPACE);
    let times = neurons + NEURONS + SPACE;
    let width = times + TIMES + SPACE;
    let top = 92.0 + 16.0 * report.devices.len() as f64;
    let height = top + n_layer as f64 * (ROW + GAP) + 40.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let title = format!(
        "{}: {:.1} tokens/s expected, context {}",
        short(report.model.file.name()),
        forecast.rate(),
        report.n_ctx
    );
    let _ = writeln!(out, "<text x=\"12\" y=\"24\" font-size=\"15\">{}</text>", escaped(&title));
    legend(report, &mut out);
    for (x, name) in [
        (attention, "attention"),
        (neurons, "neurons, most used first"),
        (times, "time: device, below it the CPU"),
    ] {
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{:.0}\" fill=\"#555\">{name}</text>", top - 8.0);
    }
    let slowest = forecast.layers.iter().map(|layer| layer.time.total()).fold(1e-12, f64::max);
    let n_ff = report.model.hyper.n_ff.max(1) as f64;
    for (i, (placed, layer)) in forecast.placement.layers.iter().zip(&forecast.layers).enumerate() {
        let y = top + i as f64 * (ROW + GAP);
        let home = color(placed.home);
        let _ = writeln!(
            out,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{i}</text>",
            LEFT - 8.0,
            y + ROW - 3.0
        );
        bar(&mut out, (attention, y, ATTENTION, ROW), home);
        let here = NEURONS * layer.n_home as f64 / n_ff;
        bar(&mut out, (neurons, y, here, ROW), home);
        bar(&mut out, (neurons + here, y, NEURONS - here, ROW), CPU_COLOR);
        if placed.is_split() {
            let share = format!("{:.0} % of the use", 100.0 * layer.off_cpu);
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\">{share}</text>",
                neurons + 4.0,
                y + ROW - 4.0
            );
        }
        let scale = |seconds: f64| TIMES * seconds / slowest;
        let (frame, time) = (scale(layer.time.frame), &layer.time);
        let upper = if placed.home == CPU { y + ROW / 2.0 } else { y };
        bar(&mut out, (times, upper, frame + scale(time.home), ROW / 2.0), home);
        bar(&mut out, (times + frame, y + ROW / 2.0, scale(time.cpu), ROW / 2.0), CPU_COLOR);
        let end = times + frame + scale(time.home.max(time.cpu));
        bar(&mut out, (end, y, scale(time.hand_off), ROW), "#333");
    }
    let _ = writeln!(
        out,
        "<text x=\"{times}\" y=\"{:.0}\" fill=\"#555\">full width: {:.3} ms</text>\n</svg>",
        height - 16.0,
        slowest * 1e3
    );
    out
}

fn legend(report: &Report, out: &mut String) {
    let bytes = report.devices.iter().zip(&report.forecast.devices);
    for (number, (device, bytes)) in bytes.enumerate() {
        let y = 40.0 + 16.0 * number as f64;
        bar(out, (12.0, y, 12.0, 10.0), color(number));
        let used = match (device.on_cpu, device.budget) {
            (Some(used), _) => format!("{used} of the model"),
            (None, Some(budget)) => format!("{} of {budget}", bytes.total() + device.reserve),
            (None, None) => (bytes.total() + device.reserve).to_string(),
        };
        let text = format!("{}: {used}, {:.1} GB/s", device.name, device.speed.dense / 1e9);
        let _ = writeln!(out, "<text x=\"30\" y=\"{:.0}\">{}</text>", y + 9.0, escaped(&text));
    }
}

fn color(device: usize) -> &'static str {
    match device {
        CPU => CPU_COLOR,
        other => COLORS[(other - 1) % COLORS.len()],
    }
}

fn bar(out: &mut String, (x, y, width, height): (f64, f64, f64, f64), color: &str) {
    if width > 0.0 {
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>"
        );
    }
}

/// The last part of a path.
fn short(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
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
        assert_eq!([short("/a/b.gguf"), short("b.gguf")], ["b.gguf"; 2]);
    }
}
