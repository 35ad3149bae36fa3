//! The comparison as a picture: a panel for each test, with a bar for each way to run; then the time to the first token,
//! who waited, and what is where.

use super::facts::Facts;
use super::row::Row;
use crate::cli::svg::{Picture, color};

const LEFT: f64 = 250.0;
const WIDE: f64 = 420.0;
const RIGHT: f64 = 230.0;
const ROW: f64 = 16.0;
const GAP: f64 = 5.0;
/// Around a panel.
const HEAD: f64 = 34.0;
const GRAY: &str = "#b8b8b8";

/// One bar, of several pieces beside one another.
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

/// What is drawn in the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Plot {
    tests: Vec<Panel>,
    first: Vec<Bar>,
    waits: Vec<Bar>,
    memory: Vec<Bar>,
}

fn bar(label: &str, pieces: Vec<(f64, &'static str)>, value: String) -> Bar {
    Bar { label: label.to_owned(), pieces, value }
}

impl Plot {
    /// Adds a test of the engine that is called `label`.
    pub(super) fn add(&mut self, label: &str, row: &Row<'_>) {
        let test = row.test.to_string();
        let title = format!("{test}: tokens a second");
        let at = self.tests.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            self.tests.push(Panel { title, bars: Vec::new() });
            self.tests.len() - 1
        });
        let (mean, deviation) = row.rate();
        let on_devices = usize::from(!row.facts.devices.names.is_empty());
        let value = format!("{mean:.2} ± {deviation:.2}");
        self.tests[at].bars.push(bar(label, vec![(mean, color(on_devices))], value));
        let named = format!("{label}, {test}");
        if let Some(ttft) = row.ttft() {
            let ms = ttft as f64 / 1e6;
            self.first.push(bar(&named, vec![(ms, color(on_devices))], format!("{ms:.1} ms")));
        }
        if let Some([cpu, devices]) = row.measured.neurons.waits.shares() {
            for (who, share, device) in [("the CPU", cpu, 0), ("devices", devices, 1)] {
                let value = format!("{who}: {:.0} %", 100.0 * share);
                let pieces = vec![(share, color(device)), (1.0 - share, "#eeeeee")];
                self.waits.push(bar(&named, pieces, value));
            }
        }
    }

    /// Adds what the engine that is called `label` takes.
    pub(super) fn engine(&mut self, label: &str, facts: &Facts, ram: hal::Bytes) {
        let bytes = facts.device_bytes(ram);
        let pieces = bytes.iter().enumerate();
        let pieces = pieces.map(|(i, (_, bytes))| (bytes.0 as f64, color(i))).collect();
        let texts: Vec<_> = bytes.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
        self.memory.push(bar(label, pieces, texts.join(", ")));
    }

    /// The whole picture.
    pub(super) fn picture(&self, title: &str) -> String {
        let panel =
            |title: &str, bars: &[Bar]| Panel { title: title.to_owned(), bars: bars.to_vec() };
        let mut panels = self.tests.clone();
        panels.push(panel("time to the first token", &self.first));
        panels.push(panel("waited for the other side, share of the time", &self.waits));
        panels.push(panel("memory by device", &self.memory));
        panels.retain(|panel| !panel.bars.is_empty());
        let high = |panel: &Panel| HEAD + panel.bars.len() as f64 * (ROW + GAP);
        let height = 48.0 + panels.iter().map(high).sum::<f64>() + 16.0;
        let mut out = Picture::new(LEFT + WIDE + RIGHT, height);
        out.text((12.0, 26.0), "font-size=\"15\"", title);
        let mut y = 48.0;
        for panel in &panels {
            draw(&mut out, panel, y);
            y += high(panel);
        }
        out.finish()
    }
}

fn draw(out: &mut Picture, panel: &Panel, top: f64) {
    out.text((LEFT, top + HEAD - 12.0), "font-size=\"13\"", &panel.title);
    let length = |bar: &Bar| bar.pieces.iter().map(|(length, _)| length).sum::<f64>();
    let most = panel.bars.iter().map(length).fold(f64::MIN_POSITIVE, f64::max);
    for (i, bar) in panel.bars.iter().enumerate() {
        let y = top + HEAD + i as f64 * (ROW + GAP);
        out.text((LEFT - 8.0, y + ROW - 4.0), "text-anchor=\"end\"", &bar.label);
        out.bar((LEFT, y, 1.0, ROW), GRAY);
        let mut x = LEFT;
        for (length, color) in &bar.pieces {
            let width = WIDE * length / most;
            out.bar((x, y, width, ROW), color);
            x += width;
        }
        out.text((x + 6.0, y + ROW - 4.0), "fill=\"#555\"", &bar.value);
    }
}
