//! The plan as a plot: a row for each layer, with bars for attention and neurons in the colours of
//! their devices, and bars for the times of the device and the CPU. Lengths are in SVG units.

use super::{Device, Report, shown_rate};
use crate::cli::svg::{
    CPU_COLOR, GRAY_TEXT, Picture, TEXT, TITLE, color, origin, shorten_to_width, width_of,
};
use crate::placement::CPU;
use hal::Bytes;

const ROW: f64 = 14.0;
const GAP: f64 = 3.0;
const LEFT: f64 = 48.0;
/// Widths of the columns for attention, neurons and times.
const ATTENTION: f64 = 70.0;
const NEURONS: f64 = 420.0;
const TIMES: f64 = 200.0;
const SPACE: f64 = 14.0;
/// Colour of the time of hand-offs.
const HAND_OFF: &str = "#333";
/// Colour of weights on disk.
const DISK: &str = "#b5a642";

/// The plot as SVG.
pub(super) fn picture(report: &Report) -> String {
    let forecast = &report.forecast;
    let n_layer = forecast.layers.len();
    let (attention, neurons) = (LEFT, LEFT + ATTENTION + SPACE);
    let times = neurons + NEURONS + SPACE;
    let width = times + TIMES + SPACE;
    let tiers = report.disk.tiers.map(|_| report.bytes_by_tier());
    let rows = report.devices.len() + 2 * usize::from(tiers.is_some());
    let top = 92.0 + 16.0 * rows as f64;
    let bottom = top + n_layer as f64 * (ROW + GAP);
    let height = bottom + 64.0;
    let mut out = Picture::new(width, height);
    let facts = format!(
        ": placement, {} tokens/s expected, context {}",
        shown_rate(forecast.rate(), 1),
        report.n_ctx
    );
    let left = width - 24.0 - width_of(&facts, TITLE);
    let title = shorten_to_width(&report.name, TITLE, left) + &facts;
    out.text((12.0, 24.0), &format!("font-size=\"{TITLE}\""), &title);
    legend(report, width, &mut out);
    if let Some(bytes) = tiers {
        tier_bar(report, bytes, width, &mut out);
    }
    for (x, name) in [
        (12.0, "layer"),
        (attention, "attention"),
        (neurons, "neurons, most used first"),
        (times, "time: device, below it the CPU"),
    ] {
        out.text((x, top - 8.0), GRAY_TEXT, name);
    }
    let slowest = forecast.layers.iter().map(|layer| layer.time.total()).fold(1e-12, f64::max);
    let n_ff = report.model.max_n_ff().max(1) as f64;
    for (i, (placed, layer)) in forecast.placement.layers.iter().zip(&forecast.layers).enumerate() {
        let y = top + i as f64 * (ROW + GAP);
        let home = color(placed.home);
        out.text((LEFT - 8.0, y + ROW - 3.0), "text-anchor=\"end\"", &i.to_string());
        out.bar((attention, y, ATTENTION, ROW), home);
        let here = NEURONS * layer.n_home as f64 / n_ff;
        out.bar((neurons, y, here, ROW), home);
        let absent = NEURONS * layer.n_ff as f64 / n_ff - here;
        out.bar((neurons + here, y, absent, ROW), CPU_COLOR);
        if placed.is_split() {
            let share = format!("{:.0} % of activations", 100.0 * layer.off_cpu);
            out.text((neurons + 4.0, y + ROW - 4.0), "font-size=\"9\"", &share);
        }
        let scale = |seconds: f64| TIMES * seconds / slowest;
        let (frame, time) = (scale(layer.time.frame), &layer.time);
        let upper = if placed.home == CPU { y + ROW / 2.0 } else { y };
        out.bar((times, upper, frame + scale(time.home), ROW / 2.0), home);
        out.bar((times + frame, y + ROW / 2.0, scale(time.cpu), ROW / 2.0), CPU_COLOR);
        let end = times + frame + scale(time.home.max(time.cpu));
        out.bar((end, y, scale(time.hand_off), ROW), HAND_OFF);
    }
    for (x, text) in [
        (attention, "not to scale".to_owned()),
        (neurons, format!("full width: {} neurons", report.model.max_n_ff())),
        (times, format!("full width: {:.3} ms per token", slowest * 1e3)),
    ] {
        out.text((x, bottom + 14.0), GRAY_TEXT, &text);
    }
    if forecast.layers.iter().any(|layer| layer.time.hand_off > 0.0) {
        out.bar((times, bottom + 21.0, 4.0, 10.0), HAND_OFF);
        out.text((times + 10.0, bottom + 30.0), GRAY_TEXT, "hand-off to the CPU and back");
    }
    let described = |device: &Device| format!("{}: {}", device.name, device.description);
    let machine: Vec<String> = report.devices.iter().map(described).collect();
    let origin = shorten_to_width(&origin(&machine.join("; ")), TEXT, width - 24.0);
    out.text((12.0, height - 10.0), GRAY_TEXT, &origin);
    out.finish()
}

fn legend(report: &Report, width: f64, out: &mut Picture) {
    for (number, device) in report.devices.iter().enumerate() {
        let y = 40.0 + 16.0 * number as f64;
        out.bar((12.0, y, 12.0, 10.0), color(number));
        let used = match (number, device.budget) {
            (CPU, _) => format!("{} of system memory", report.used(number)),
            (_, Some(budget)) => format!("{} of {budget}", report.used(number)),
            (_, None) => report.used(number).to_string(),
        };
        let facts = format!(": {used}, {:.1} GB/s", device.speed.dense / 1e9);
        let left = width - 42.0 - width_of(&facts, TEXT);
        out.text((30.0, y + 9.0), "", &(shorten_to_width(&device.name, TEXT, left) + &facts));
    }
}

/// A bar of the bytes on devices, in memory and on disk, and the disk's line of the legend.
fn tier_bar(report: &Report, bytes: [Bytes; 3], width: f64, out: &mut Picture) {
    let y = 40.0 + 16.0 * report.devices.len() as f64;
    out.bar((12.0, y, 12.0, 10.0), DISK);
    let speed =
        report.disk.bandwidth.map_or(String::new(), |rate| format!(", {:.1} GB/s", rate / 1e9));
    let read = report.disk.tiers.map_or(Bytes(0), |tiers| tiers.read_per_token);
    let text = format!("disk: {}{speed}, {read} read per token", bytes[2]);
    out.text((30.0, y + 9.0), "", &text);
    let total: f64 = bytes.iter().map(|bytes| bytes.0 as f64).sum::<f64>().max(1.0);
    let mut x = 12.0;
    for (bytes, color) in bytes.into_iter().zip([color(1), CPU_COLOR, DISK]) {
        let part = (width - 24.0) * bytes.0 as f64 / total;
        out.bar((x, y + 16.0, part, 10.0), color);
        x += part;
    }
}
