//! The results, as lines of Markdown and as JSON.

use hal::DeviceInfo;
use hal::format::Format;
use serde_json::{Value, json};

/// Prints the bytes per second of rows by prefetch distance, beside the memory bandwidth in GB/s.
pub(crate) fn print_prefetch(distances: &[usize], rates: &[f64], read: f64) {
    println!("| prefetch distance | GB/s | read | share |\n|---:|---:|---:|---:|");
    for (distance, rate) in distances.iter().zip(rates) {
        let (rate, share) = (rate / 1e9, rate / 1e7 / read);
        println!("| {distance} | {rate:.1} | {read:.1} | {share:.0}% |");
    }
    println!();
}

pub(crate) struct DecodeLine {
    pub(crate) op: &'static str,
    pub(crate) format: Format,
    pub(crate) density: Option<f64>,
    pub(crate) ms: f64,
    /// GB/s of weights.
    pub(crate) rate: f64,
    /// Memory bandwidth in GB/s.
    pub(crate) read: f64,
}

impl DecodeLine {
    pub(crate) fn print(&self) {
        let DecodeLine { op, format, ms, rate, read, .. } = self;
        let density = self.density.map_or_else(String::new, |d| format!("{:.1}%", 100.0 * d));
        let share = 100.0 * rate / read;
        println!("| {op} | {format} | {density} | {ms:.3} | {rate:.1} | {read:.1} | {share:.0}% |");
    }

    fn json(&self) -> Value {
        let DecodeLine { op, format, density, ms, rate, read } = self;
        let format = format.name();
        json!({ "op": op, "format": format, "density": density, "ms": ms, "gb_s": rate, "read_gb_s": read })
    }
}

pub(crate) struct PrefillLine {
    pub(crate) op: &'static str,
    pub(crate) format: Format,
    pub(crate) ms: f64,
    /// 10^9 products per second.
    pub(crate) rate: f64,
}

impl PrefillLine {
    pub(crate) fn print(&self) {
        let PrefillLine { op, format, ms, rate } = self;
        println!("| {op} | {format} | {ms:.1} | {rate:.0} |");
    }

    fn json(&self) -> Value {
        let PrefillLine { op, format, ms, rate } = self;
        json!({ "op": op, "format": format.name(), "ms": ms, "g_products_s": rate })
    }
}

/// All results as indented JSON.
pub(crate) fn json(
    device: &DeviceInfo,
    shape: Value,
    decode_lines: &[DecodeLine],
    prefill_lines: &[PrefillLine],
) -> String {
    let decode_lines: Vec<_> = decode_lines.iter().map(DecodeLine::json).collect();
    let prefill_lines: Vec<_> = prefill_lines.iter().map(PrefillLine::json).collect();
    let results = json!({
        "device": device.name,
        "description": device.description,
        "shape": shape,
        "one_token": decode_lines,
        "prompt": prefill_lines,
    });
    format!("{results:#}\n")
}
