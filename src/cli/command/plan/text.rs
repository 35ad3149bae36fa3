//! The plan as text: the answer, then tables of devices and layers, then reasons and notes. No line
//! is wider than [`WIDTH`](crate::cli::wrap::WIDTH) characters.

use super::memory::LayerBytes;
use super::{Device, Report, shown_rate};
use crate::cli::terminal::printable;
use crate::cli::wrap::{shortened, wrapped};
use crate::model::{LayerWeights, Model};
use crate::placement::{CPU, DeviceBytes, LayerForecast, LayerPlacement};
use hal::Bytes;
use std::fmt::Write;

/// Maximum characters of a device's name in tables.
const NAME: usize = 12;
/// Devices beside each other in the table of devices.
const COLUMNS: usize = 5;

/// The whole report.
pub(super) fn report(report: &Report) -> String {
    let mut out = String::new();
    answer(report, &mut out);
    out.push('\n');
    devices(report, &mut out);
    layers(report, &mut out);
    let lines = super::prompts::lines(report).into_iter().map(|line| (String::new(), line));
    let why = report.limit_reasons().into_iter().map(|line| ("why: ".to_owned(), line));
    let notes = report.notes.iter().map(|line| ("note: ".to_owned(), line.clone()));
    for (label, line) in lines.chain(why).chain(notes) {
        out += &wrapped(&label, &printable(&line));
    }
    out
}

/// Whether the model fits, how fast it would be, and what would be where.
fn answer(report: &Report, out: &mut String) {
    let file = printable(&report.name);
    let forecast = &report.forecast;
    let rate = format!("about {} tokens/s", shown_rate(forecast.rate(), 1));
    let (needed, memory) = (report.needed, report.host_memory);
    *out += &wrapped(
        "",
        &match (&report.refused, memory.free, memory.total) {
            (Some(why), ..) => format!("{file} does not fit: {why}"),
            _ if report.disk.tiers.is_some() => match report.disk.bandwidth {
                Some(_) => {
                    format!(
                        "{file} is larger than the memory: {rate} expected, with weights on disk"
                    )
                }
                None => format!("{file} is larger than the memory, and weights stay on disk"),
            },
            (None, _, Some(total)) if needed > total => {
                format!("{file} is larger than the memory: less than {rate}, read from the file")
            }
            (None, Some(free), _) if needed > free => {
                format!("{file} needs more memory than is free: less than {rate}")
            }
            (None, ..) => format!("{file} fits: {rate} expected"),
        },
    );
    let mut line = |label: &str, text: &str| *out += &wrapped(&format!("  {label:<10} "), text);
    if let Some(rate) = forecast.prompt_rate().filter(|rate| rate.is_finite() && *rate > 0.0) {
        let n = forecast.n_prompt;
        line("prefill", &format!("about {} tokens/s for {n} tokens", shown_rate(rate, 0)));
    }
    let milliseconds = |seconds: f64| format!("{:.2}", seconds * 1e3);
    let parts = &forecast.parts;
    let disk = match report.disk.bandwidth {
        Some(_) => format!(", waiting for the disk {}", milliseconds(parts.disk)),
        None => String::new(),
    };
    // A model that does not fit has no speed.
    if forecast.seconds.is_finite() {
        line(
            "decode",
            &match report.devices.len() {
                1 => format!("{} ms per token{disk}", milliseconds(forecast.seconds)),
                _ => format!(
                    "{} ms per token: devices {}, CPU {}, hand-offs {}{}; {:.0} % of the neurons that a token activates are on devices",
                    milliseconds(forecast.seconds),
                    milliseconds(parts.devices),
                    milliseconds(parts.cpu),
                    milliseconds(parts.hand_offs),
                    disk,
                    100.0 * forecast.off_cpu
                ),
            },
        );
    }
    for (label, text) in report.tier_rows() {
        line(label, &text);
    }
    line(
        "context",
        &format!("{} tokens; the speed is for {} of them", report.n_ctx, report.n_past),
    );
    line("model", &sizes(&report.model));
    line("placement", &placement(report));
    line("memory", &memory_text(report));
}

fn sizes(model: &Model) -> String {
    let n_layer = model.hyper.n_layer;
    match model.experts() {
        Some(experts) => format!("{n_layer} layers, {} experts per layer", experts.n),
        None => format!("{n_layer} layers of {} neurons", neurons(model)),
    }
}

/// The memory that is needed and there, on each device.
fn memory_text(report: &Report) -> String {
    let free = report.host_memory.free.map_or(String::new(), |free| format!(" of {free} free"));
    let mut parts = vec![format!("{}{free} on the CPU", report.needed)];
    for (number, device) in report.devices.iter().enumerate().skip(1) {
        let budget = device.budget.map_or(String::new(), |budget| format!(" of {budget}"));
        parts.push(format!("{}{budget} on {}", report.used(number), device.name));
    }
    parts.join("; ")
}

/// Where the layers and the two tables are.
fn placement(report: &Report) -> String {
    let layers = &report.forecast.placement.layers;
    let where_is = |layer: &LayerPlacement| match (layer.home, layer.is_split()) {
        (home, true) => format!("split between {} and CPU", report.device(home)),
        (home, false) => format!("on {}", report.device(home)),
    };
    let [head, embed] = [report.forecast.placement.head, report.forecast.placement.embed];
    if head == embed && layers.iter().all(|layer| layer.home == head && !layer.is_split()) {
        return format!("all on {}", report.device(head));
    }
    let (mut parts, mut first) = (Vec::new(), 0);
    for run in layers.chunk_by(|a, b| where_is(a) == where_is(b)) {
        parts.push(format!("{} {}", span(first, run.len()), where_is(&run[0])));
        first += run.len();
    }
    let name = |device| report.device(device);
    let layers = parts.join(", ");
    format!("layers: {layers}; embedding on {}, head on {}", name(embed), name(head))
}

/// `n` layers from `first` on.
fn span(first: usize, n: usize) -> String {
    if n == 1 { first.to_string() } else { format!("{first}-{}", first + n - 1) }
}

/// Number of neurons per layer, as a range if layers differ.
fn neurons(model: &Model) -> String {
    let least = model.layers.iter().map(LayerWeights::n_ff).min().unwrap_or(0);
    match (least, model.max_n_ff()) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// Prints rows of cells as aligned columns, without columns that are empty below the header. Only
/// the first column is left-aligned.
fn table(rows: &[Vec<String>], out: &mut String) {
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let is_used = |column: &usize| {
        rows.iter().skip(1).any(|row| row.get(*column).is_some_and(|cell| !cell.is_empty()))
    };
    let used: Vec<usize> = (0..n).filter(is_used).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<(usize, usize)> =
        used.into_iter().map(|column| (column, width(column))).collect();
    for row in rows {
        let cells = widths.iter().map(|&(column, width)| match (column, row.get(column)) {
            (0, cell) => format!("{:<width$}", cell.map_or("", String::as_str)),
            (_, cell) => format!("{:>width$}", cell.map_or("", String::as_str)),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}

/// A row for each fact, a column for each device.
fn devices(report: &Report, out: &mut String) {
    let all: Vec<usize> = (0..report.devices.len()).collect();
    for numbers in all.chunks(COLUMNS) {
        let row = |label: &str, cell: &dyn Fn(usize, &Device) -> String| {
            let cells = numbers.iter().map(|&number| cell(number, &report.devices[number]));
            [label.to_owned()].into_iter().chain(cells).collect::<Vec<String>>()
        };
        let beside = |number: usize, text: String| if number == CPU { String::new() } else { text };
        let bytes = |label: &str, of: fn(&DeviceBytes) -> Bytes| {
            row(label, &|number, _| of(&report.memory.devices[number]).to_string())
        };
        let rows = [
            row("device", &|_, device| shortened(&printable(&device.name), NAME)),
            row("bandwidth", &|_, device| format!("{:.1} GB/s", device.speed.dense / 1e9)),
            row("hand-off", &|n, device| {
                beside(n, format!("{:.0} us", device.speed.hand_off * 1e6))
            }),
            row("budget", &|n, device| {
                let budget = device.budget.map(|budget| budget.to_string());
                beside(n, budget.unwrap_or_else(|| "no limit".to_owned()))
            }),
            row("used", &|n, _| report.used(n).to_string()),
            bytes("  attention", |bytes| bytes.frames),
            bytes("  KV cache", |bytes| bytes.cache),
            bytes("  neurons", |bytes| bytes.neurons),
            row("  hand-offs", &|n, _| beside(n, report.memory.devices[n].hand_offs.to_string())),
            bytes("  embedding", |bytes| bytes.embed),
            bytes("  head", |bytes| bytes.embed_and_head - bytes.embed),
            bytes("  scratch", |bytes| bytes.scratch),
            row("  driver", &|n, device| beside(n, device.reserve.to_string())),
        ];
        let is_used = |row: &&Vec<String>| row.iter().skip(1).any(|cell| !cell.is_empty());
        table(&rows.iter().filter(is_used).cloned().collect::<Vec<_>>(), out);
    }
    for (number, device) in report.devices.iter().enumerate() {
        if let Some((left, why)) = report.unused_budget(number) {
            let name = printable(&device.name);
            *out += &wrapped("", &format!("{left} of the budget of {name} is unused: {why}"));
            out.push('\n');
        }
    }
}

/// A layer: its placement, forecast and memory.
type LayerRow<'a> = (&'a LayerPlacement, (&'a LayerForecast, &'a LayerBytes));

/// Consecutive layers with the same placement and memory share a row.
fn layers(report: &Report, out: &mut String) {
    let header =
        ["layers", "home", "resident", "active", "attn+KV", "neurons", "on the CPU", "time"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let forecast = &report.forecast;
    let facts = forecast.layers.iter().zip(&report.memory.layers);
    let placed: Vec<_> = forecast.placement.layers.iter().zip(facts).collect();
    let alike = |a: &LayerRow<'_>, b: &LayerRow<'_>| {
        let ((a_place, (a, a_bytes)), (b_place, (b, b_bytes))) = (a, b);
        (a_place.home, a.n_home, a_bytes) == (b_place.home, b.n_home, b_bytes)
            && (a.n_ff, a_place.is_split()) == (b.n_ff, b_place.is_split())
    };
    let mut first = 0;
    for run in placed.chunk_by(alike) {
        let (place, (layer, bytes)) = run[0];
        let n_ff = report.model.layers[first].n_ff();
        let share = |part: f64| format!("{:.0} %", 100.0 * part);
        rows.push(vec![
            span(first, run.len()),
            shortened(&printable(report.device(place.home)), NAME),
            match layer.n_home {
                0 if n_ff == 0 => "none".to_owned(),
                n if n == n_ff => "all".to_owned(),
                n => share(n as f64 / n_ff as f64),
            },
            if place.home == CPU { String::new() } else { share(layer.off_cpu) },
            compact(bytes.frame + bytes.cache),
            compact(bytes.neurons),
            if bytes.neurons_on_cpu == Bytes(0) {
                String::new()
            } else {
                compact(bytes.neurons_on_cpu)
            },
            format!("{:.2} ms", layer.time.total() * 1e3),
        ]);
        first += run.len();
    }
    table(&rows, out);
    if forecast.placement.layers.iter().any(|layer| layer.home != CPU) {
        *out += &wrapped(
            "",
            "resident: neurons on the layer's home device; active: their share of the neurons that a token activates; memory and time are of each layer",
        );
        out.push('\n');
    }
}

/// Bytes with three digits, such as `364 KiB`.
fn compact(bytes: Bytes) -> String {
    let (mut value, mut unit) = (bytes.0 as f64, 0);
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        let sizes = [0, 999, 1023, 1 << 20, 372_977, 109 << 20, 5 << 40];
        let shown = sizes.map(|bytes| compact(Bytes(bytes)));
        assert_eq!(
            shown,
            ["0 B", "999 B", "1.00 KiB", "1.00 MiB", "364 KiB", "109 MiB", "5.00 TiB"]
        );
    }
}
