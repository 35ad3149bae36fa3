//! Plots a profile: the power law of each layer, density by layer, a heat map. The result is plain
//! SVG without scripts, in the viewer's font.

use std::fmt::Write;

use super::{Counts, Profile};

/// Width, height and margin of a panel, in SVG units.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 78.0;
/// Number of points of a curve, and of columns of the heat map.
const POINTS: usize = 100;
/// The subtitle for models that skip nothing.
const NO_ZEROS: &str = "No neuron is exactly zero, so none is skipped. Counted: neurons that contribute at least the mean of a token's neurons.";

/// The plot of a profile of the model `name`. `origin` is its last line: machine, program, date.
#[must_use]
pub fn svg(profile: &Profile, counts: Counts, name: &str, origin: &str) -> String {
    let n_layer = profile.layers.len();
    let map_high = (n_layer as f64 * 14.0).clamp(120.0, 480.0);
    let (wide, high) = (3.0 * MARGIN + 2.0 * WIDTH, 3.0 * MARGIN + HEIGHT + map_high + 24.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" width=\"{wide}\" height=\"{high}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title =
        format!("Activation profile of {name}: {n_layer} layers, {} tokens", profile.n_tokens);
    text(&mut out, wide / 2.0, 28.0, "middle", 16, &title);
    if counts == Counts::AboveMean {
        text(&mut out, wide / 2.0, 46.0, "middle", 12, NO_ZEROS);
    }
    power_law(profile, counts, &mut out, MARGIN, MARGIN);
    density(profile, counts, &mut out, 2.0 * MARGIN + WIDTH, MARGIN);
    let (at, size) = ((MARGIN, 2.0 * MARGIN + HEIGHT), (2.0 * WIDTH + MARGIN, map_high));
    heat_map(profile, counts, &mut out, at, size);
    text(&mut out, 12.0, high - 10.0, "start", 11, origin);
    out += "</svg>\n";
    out
}

/// Escapes the special characters of SVG and removes control characters.
fn escaped(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}'));
    let plain = plain.collect::<String>();
    plain.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>"
    );
}

/// The title of a vertical axis, which does not need escaping.
fn vertical(out: &mut String, x: f64, y: f64, name: &str) {
    let _ = writeln!(
        out,
        "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\">{name}</text>"
    );
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), color: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// The frame of a panel with its title, and ticks in percent on the axes that have a maximum.
fn frame(out: &mut String, at: (f64, f64), size: (f64, f64), title: &str, most: (f64, f64)) {
    let ((x, y), (w, h)) = (at, size);
    text(out, x + w / 2.0, y - 10.0, "middle", 13, title);
    for i in 0..=5 {
        let part = f64::from(i) / 5.0;
        if most.0 > 0.0 {
            let at = x + w * part;
            line(out, (at, y), (at, y + h), "#e4e4e4");
            text(out, at, y + h + 16.0, "middle", 11, &percent(most.0 * part));
        }
        if most.1 > 0.0 {
            let at = y + h * (1.0 - part);
            line(out, (x, at), (x + w, at), "#e4e4e4");
            text(out, x - 6.0, at + 4.0, "end", 11, &percent(most.1 * part));
        }
    }
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" fill=\"none\" stroke=\"#444\"/>"
    );
}

fn percent(part: f64) -> String {
    let value = 100.0 * part;
    if value.fract().abs() < 0.05 || value >= 10.0 {
        format!("{value:.0} %")
    } else {
        format!("{value:.1} %")
    }
}

/// Points of the cumulative curve: fraction of the neurons, hottest first, and the fraction of all
/// activations that these neurons account for.
fn curve(mut fires: Vec<u64>) -> Vec<(f64, f64)> {
    fires.sort_unstable_by(|a, b| b.cmp(a));
    let total = fires.iter().map(|&n| n as f64).sum::<f64>().max(1.0);
    let (mut sum, mut next) = (0.0, 0);
    let mut points = Vec::new();
    for i in 0..=POINTS {
        let end = i * fires.len() / POINTS;
        sum += fires[next..end].iter().map(|&n| n as f64).sum::<f64>();
        next = end;
        points.push((end as f64 / fires.len().max(1) as f64, sum / total));
    }
    points
}

fn power_law(profile: &Profile, counts: Counts, out: &mut String, x: f64, y: f64) {
    let title = match counts {
        Counts::Active => "Power law: cumulative share of activations",
        Counts::AboveMean => "Cumulative share of contributions above the mean",
    };
    frame(out, (x, y), (WIDTH, HEIGHT), title, (1.0, 1.0));
    text(out, x + WIDTH / 2.0, y + HEIGHT + 34.0, "middle", 12, "share of neurons, hottest first");
    vertical(out, x - 52.0, y + HEIGHT / 2.0, &format!("share of {}", counts.events()));
    let n_layer = profile.layers.len();
    let mut draw = |points: Vec<(f64, f64)>, color: &str, width: f64| {
        let points = points
            .iter()
            .map(|(a, b)| format!("{:.1},{:.1}", x + WIDTH * a, y + HEIGHT * (1.0 - b)));
        let points: Vec<String> = points.collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"/>",
            points.join(" ")
        );
    };
    for (i, layer) in profile.layers.iter().enumerate() {
        draw(curve(layer.fires.clone()), &by_depth(i, n_layer), 1.2);
    }
    let all = profile.layers.iter().flat_map(|layer| layer.fires.clone()).collect();
    draw(curve(all), "black", 2.2);
    for (row, (color, what)) in [
        ("black".to_owned(), "all layers"),
        (by_depth(0, n_layer), "first layer"),
        (by_depth(n_layer.saturating_sub(1), n_layer), "last layer"),
    ]
    .into_iter()
    .enumerate()
    {
        let at = (x + WIDTH - 120.0, y + HEIGHT - 52.0 + 17.0 * row as f64);
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"24\" height=\"4\" fill=\"{color}\"/>",
            at.0,
            at.1 - 2.0
        );
        text(out, at.0 + 30.0, at.1 + 4.0, "start", 12, what);
    }
}

/// Blue for the first layer, red for the last.
fn by_depth(layer: usize, n_layer: usize) -> String {
    let part = layer as f64 / n_layer.saturating_sub(1).max(1) as f64;
    gradient_color(&[[38.0, 102.0, 204.0], [128.0, 64.0, 160.0], [204.0, 51.0, 51.0]], part)
}

/// The colour at `part` of a gradient with evenly spaced stops, in a notation that every viewer
/// supports.
fn gradient_color(colors: &[[f64; 3]], part: f64) -> String {
    let at = part.clamp(0.0, 1.0) * (colors.len() - 1) as f64;
    let first = (at as usize).min(colors.len().saturating_sub(2));
    let (from, to) = (colors[first], colors[first + 1]);
    let [r, g, b] = [0, 1, 2].map(|i| (from[i] + (to[i] - from[i]) * (at - first as f64)) as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn density(profile: &Profile, counts: Counts, out: &mut String, x: f64, y: f64) {
    let summary = profile.summary();
    let highest = summary.density_by_layer.iter().copied().fold(0.0, f64::max);
    // The axis ends at the next round number.
    let steps = [0.05, 0.1, 0.2, 0.5, 1.0];
    let most = steps.into_iter().find(|&step| highest <= step).unwrap_or(1.0);
    let share = counts.for_a_token(&percent(summary.density));
    let (title, axis) = match counts {
        Counts::Active => (format!("Density: {share}"), "active neurons of a token"),
        Counts::AboveMean => (share, "neurons of a token above the mean"),
    };
    frame(out, (x, y), (WIDTH, HEIGHT), &title, (0.0, most));
    let n = summary.density_by_layer.len().max(1);
    let step = WIDTH / n as f64;
    for (i, &density) in summary.density_by_layer.iter().enumerate() {
        let high = HEIGHT * (density / most).min(1.0);
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{high:.1}\" fill=\"{}\"><title>layer {i}: {}</title></rect>",
            x + step * (i as f64 + 0.1),
            y + HEIGHT - high,
            step * 0.8,
            by_depth(i, n),
            percent(density),
        );
        if i % n.div_ceil(16) == 0 {
            text(out, x + step * (i as f64 + 0.5), y + HEIGHT + 16.0, "middle", 11, &i.to_string());
        }
    }
    text(out, x + WIDTH / 2.0, y + HEIGHT + 34.0, "middle", 12, "layer");
    vertical(out, x - 46.0, y + HEIGHT / 2.0, axis);
}

/// A row per layer, a column for neurons of similar heat, hottest first.
fn heat_map(profile: &Profile, counts: Counts, out: &mut String, at: (f64, f64), size: (f64, f64)) {
    let ((x, y), (w, h)) = (at, size);
    let (title, verb) = match counts {
        Counts::Active => ("Heat map: how often neurons fire", "fires"),
        Counts::AboveMean => ("Heat map: how often neurons contribute at least the mean", "counts"),
    };
    frame(out, at, size, title, (1.0, 0.0));
    let n = profile.layers.len().max(1);
    let row = h / n as f64;
    // Columns and layers are the units of these coordinates, which makes the file a sixth smaller.
    let _ = writeln!(
        out,
        "<g transform=\"translate({x:.1} {y:.1}) scale({:.4} {row:.4})\" shape-rendering=\"crispEdges\">",
        w / POINTS as f64
    );
    for (i, mut heat) in profile.probabilities().into_iter().enumerate() {
        heat.sort_unstable_by(|a, b| b.total_cmp(a));
        for column in 0..POINTS {
            let from = column * heat.len() / POINTS;
            let to = ((column + 1) * heat.len() / POINTS).max(from + 1).min(heat.len());
            let Some(part) = heat.get(from..to).filter(|part| !part.is_empty()) else { continue };
            let mean = f64::from(part.iter().sum::<f32>()) / part.len() as f64;
            let color = by_heat(mean);
            let _ = writeln!(
                out,
                "<rect x=\"{column}\" y=\"{i}\" width=\"1\" height=\"1\" fill=\"{color}\"/>"
            );
        }
    }
    let _ = writeln!(out, "</g>");
    for i in (0..profile.layers.len()).step_by(n.div_ceil(24)) {
        text(out, x - 6.0, y + row * (i as f64 + 0.5) + 4.0, "end", 11, &i.to_string());
    }
    text(out, x + w / 2.0, y + h + 34.0, "middle", 12, "share of neurons, hottest first");
    text(out, x - 40.0, y + h / 2.0, "middle", 12, "layer");
    scale(out, verb, x + w - 220.0, y + h + 26.0);
}

/// The colours of the heat map: for how many tokens a neuron counts.
fn scale(out: &mut String, verb: &str, x: f64, y: f64) {
    const STEPS: u32 = 40;
    let width = 160.0 / f64::from(STEPS);
    for step in 0..STEPS {
        let color = by_heat(f64::from(step) / f64::from(STEPS - 1));
        let _ = writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"10\" fill=\"{color}\"/>",
            x + width * f64::from(step),
            width + 0.2
        );
    }
    text(out, x - 6.0, y + 9.0, "end", 11, &format!("{verb} for 0 %"));
    text(out, x + 166.0, y + 9.0, "start", 11, "100 % of tokens");
}

/// White through orange to dark red. The square root makes rarely active neurons visible.
fn by_heat(probability: f64) -> String {
    const COLORS: [[f64; 3]; 4] =
        [[255.0, 255.0, 255.0], [253.0, 190.0, 110.0], [205.0, 45.0, 40.0], [70.0, 0.0, 20.0]];
    gradient_color(&COLORS, probability.clamp(0.0, 1.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::LayerProfile;

    #[test]
    fn curves_end_at_1_and_names_are_escaped() {
        let points = curve(vec![1, 0, 7, 2]);
        assert_eq!(points.len(), POINTS + 1);
        assert_eq!((points[0], points[POINTS]), ((0.0, 0.0), (1.0, 1.0)));
        assert!((points[25].1 - 0.7).abs() < 1e-12);
        let heat = [0.0, 0.25, 1.0, 7.0].map(by_heat);
        assert_eq!(heat, ["#ffffff", "#e5754b", "#460014", "#460014"]);
        assert_eq!((by_depth(0, 1), by_depth(4, 5)), ("#2666cc".into(), "#cc3333".into()));
        for n in [0usize, 1, 3, 200] {
            let layer = LayerProfile { fires: vec![1; n], ..LayerProfile::default() };
            let (source, layers) = (String::new(), vec![layer; n.min(2)]);
            let profile = Profile { source, n_tokens: 2, n_wanted: 2, stride: 0, layers };
            let picture = svg(&profile, Counts::Active, "a<b>&\u{1b}", "here | today");
            assert!(picture.contains("a&lt;b&gt;&amp;:") && picture.contains(">here | today<"));
            assert!(picture.contains("100 % of tokens"));
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{n}");
            let dense = svg(&profile, Counts::AboveMean, "a", "here | today");
            assert!(picture.contains("Power law") && picture.contains("fires"));
            assert!(!dense.contains("Power law") && !dense.contains("fires"));
            assert!(dense.contains("No neuron is exactly zero"));
        }
    }
}
