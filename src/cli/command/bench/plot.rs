//! The plot of a comparison: one panel per test with a bar per configuration, then panels for the
//! time to the first token, the waiting times and the memory by device. Lengths are in SVG units.

use super::facts::Facts;
use super::row::Row;
use crate::cli::svg::{GRAY_TEXT, Picture, TEXT, TITLE, color, origin, shorten_to_width, width_of};

const BAR_WIDTH: f64 = 420.0;
/// Maximum width of labels and values beside the bars.
const TEXT_WIDTH: f64 = 480.0;
const SPACE: f64 = 8.0;
const ROW: f64 = 16.0;
const GAP: f64 = 5.0;
/// Height above the bars of a panel, for its title.
const PANEL_TOP: f64 = 34.0;
/// Height of the title and the legend.
const TOP: f64 = 56.0;
const GRAY: &str = "#b8b8b8";

/// One bar: its label, its segments (length, colour) and the value as text.
#[derive(Clone, Debug)]
struct Bar {
    label: String,
    pieces: Vec<(f64, &'static str)>,
    value: String,
}

#[derive(Clone, Debug)]
struct Panel {
    title: String,
    bars: Vec<Bar>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Plot {
    /// Names of the devices other than the CPU, in the order of their colours.
    devices: Vec<String>,
    tests: Vec<Panel>,
    first_token: Vec<Bar>,
    waits: Vec<Bar>,
    memory: Vec<Bar>,
    /// The descriptions of the CPU and of the other devices.
    machine: Vec<String>,
}

fn bar(label: &str, pieces: Vec<(f64, &'static str)>, value: String) -> Bar {
    Bar { label: label.to_owned(), pieces, value }
}

impl Plot {
    /// Index of a device's colour, the same in all bars; 0 is the CPU's. Adds unknown devices.
    fn color_index(&mut self, name: &str) -> usize {
        let at = self.devices.iter().position(|other| other == name).unwrap_or_else(|| {
            self.devices.push(name.to_owned());
            self.devices.len() - 1
        });
        at + 1
    }

    /// Adds the bars of a test with the configuration `label`.
    pub(super) fn add(&mut self, label: &str, row: &Row<'_>) {
        let test = row.test.to_string();
        let title = format!("{test}: tokens per second, mean and standard deviation");
        let at = self.tests.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            self.tests.push(Panel { title, bars: Vec::new() });
            self.tests.len() - 1
        });
        let descriptions = row.facts.devices.descriptions.iter();
        for description in [&row.facts.cpu_info].into_iter().chain(descriptions) {
            if !self.machine.contains(description) {
                self.machine.push(description.clone());
            }
        }
        let (mean, deviation) = row.rate();
        // A test on several devices has the colour of the first device.
        let device = row.facts.devices.names.first().map_or(0, |name| self.color_index(name));
        let value = format!("{mean:.2} ± {deviation:.2}");
        self.tests[at].bars.push(bar(label, vec![(mean, color(device))], value));
        let named = format!("{label}, {test}");
        if let Some(ttft) = row.ttft() {
            let ms = ttft as f64 / 1e6;
            self.first_token.push(bar(&named, vec![(ms, color(device))], format!("{ms:.1} ms")));
        }
        if let Some([cpu, devices]) = row.measured.neurons.waits.shares() {
            for (who, share, device) in [("the CPU", cpu, 0), ("devices", devices, device)] {
                let value = format!("{who}: {:.0} %", 100.0 * share);
                let pieces = vec![(share, color(device)), (1.0 - share, "#eeeeee")];
                self.waits.push(bar(&named, pieces, value));
            }
        }
    }

    /// Adds the memory of the configuration `label`.
    pub(super) fn add_memory(&mut self, label: &str, facts: &Facts, ram: hal::Bytes) {
        let bytes = facts.device_bytes(ram);
        let pieces = bytes.iter().enumerate().map(|(i, (name, bytes))| {
            let number = if i == 0 { 0 } else { self.color_index(name) };
            (bytes.0 as f64, color(number))
        });
        let pieces = pieces.collect();
        let texts: Vec<_> = bytes.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
        self.memory.push(bar(label, pieces, texts.join(", ")));
    }

    /// The plot as SVG.
    pub(super) fn picture(&self, title: &str) -> String {
        let panel =
            |title: &str, bars: &[Bar]| Panel { title: title.to_owned(), bars: bars.to_vec() };
        let mut panels = self.tests.clone();
        panels.push(panel("time to the first token, in ms", &self.first_token));
        panels
            .push(panel("share of the time that CPU and devices wait for each other", &self.waits));
        panels.push(panel("memory by device", &self.memory));
        panels.retain(|panel| !panel.bars.is_empty());
        let high = |panel: &Panel| PANEL_TOP + panel.bars.len() as f64 * (ROW + GAP);
        let height = TOP + panels.iter().map(high).sum::<f64>() + 36.0;
        let widest = |text: fn(&Bar) -> &str| {
            let bars = panels.iter().flat_map(|panel| &panel.bars);
            bars.map(|bar| width_of(text(bar), TEXT)).fold(0.0, f64::max).min(TEXT_WIDTH)
        };
        let left = widest(|bar| &bar.label) + 2.0 * SPACE;
        let width = left + BAR_WIDTH + widest(|bar| &bar.value) + 2.0 * SPACE;
        let mut out = Picture::new(width, height);
        let title = shorten_to_width(&format!("Speed of {title}"), TITLE, width - 24.0);
        out.text((12.0, 26.0), &format!("font-size=\"{TITLE}\""), &title);
        self.legend(&mut out);
        let mut y = TOP;
        for panel in &panels {
            draw(&mut out, panel, left, y);
            y += high(panel);
        }
        let origin = shorten_to_width(&origin(&self.machine.join("; ")), TEXT, width - 24.0);
        out.text((12.0, height - 10.0), GRAY_TEXT, &origin);
        out.finish()
    }

    fn legend(&self, out: &mut Picture) {
        if self.devices.is_empty() {
            return; // All bars are of the CPU.
        }
        let mut x = 12.0;
        let names = ["CPU"].into_iter().chain(self.devices.iter().map(String::as_str));
        for (number, name) in names.enumerate() {
            out.bar((x, 40.0, 12.0, 10.0), color(number));
            let name = shorten_to_width(name, TEXT, 160.0);
            out.text((x + 17.0, 49.0), "", &name);
            x += 17.0 + width_of(&name, TEXT) + 2.0 * SPACE;
        }
    }
}

fn draw(out: &mut Picture, panel: &Panel, left: f64, top: f64) {
    out.text((left, top + PANEL_TOP - 12.0), "font-size=\"13\"", &panel.title);
    let length = |bar: &Bar| bar.pieces.iter().map(|(length, _)| length).sum::<f64>();
    let most = panel.bars.iter().map(length).fold(f64::MIN_POSITIVE, f64::max);
    for (i, bar) in panel.bars.iter().enumerate() {
        let y = top + PANEL_TOP + i as f64 * (ROW + GAP);
        let label = shorten_to_width(&bar.label, TEXT, TEXT_WIDTH);
        out.text((left - SPACE, y + ROW - 4.0), "text-anchor=\"end\"", &label);
        out.bar((left, y, 1.0, ROW), GRAY);
        let mut x = left;
        for (length, color) in &bar.pieces {
            let width = BAR_WIDTH * length / most;
            out.bar((x, y, width, ROW), color);
            x += width;
        }
        let value = shorten_to_width(&bar.value, TEXT, TEXT_WIDTH);
        out.text((x + SPACE, y + ROW - 4.0), "fill=\"#555\"", &value);
    }
}
