//! The plan as text.

use super::memory::LayerBytes;
use super::{Report, shown_rate};
use crate::cli::terminal::printable;
use crate::model::{LayerWeights, Model};
use crate::placement::{CPU, LayerForecast, LayerPlacement};
use hal::Bytes;
use std::fmt::Write;

/// The whole report: devices, layers, speed, reasons and notes.
pub(super) fn report(report: &Report) -> String {
    let mut out = String::new();
    let model = &report.model;
    let _ = writeln!(
        out,
        "{}: {} layers of {} neurons, context of {} tokens\n",
        printable(model.file.name()),
        model.hyper.n_layer,
        neurons(model),
        report.n_ctx
    );
    devices(report, &mut out);
    layers(report, &mut out);
    let forecast = &report.forecast;
    let milliseconds = |seconds: f64| seconds * 1e3;
    let _ = writeln!(
        out,
        "expected: {} tokens/s with {} tokens in the context ({:.2} ms per token: devices {:.2}, CPU {:.2}, hand-offs {:.2})",
        shown_rate(forecast.rate(), 1),
        report.n_past,
        milliseconds(forecast.seconds),
        milliseconds(forecast.parts.devices),
        milliseconds(forecast.parts.cpu),
        milliseconds(forecast.parts.hand_offs),
    );
    if report.devices.len() > 1 {
        let share = 100.0 * forecast.off_cpu;
        let _ = writeln!(out, "{share:.0} % of the neurons that a token activates are on devices");
    }
    for line in super::prompts::lines(report) {
        let _ = writeln!(out, "{}", printable(&line));
    }
    for reason in report.limit_reasons() {
        let _ = writeln!(out, "why: {reason}");
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// Number of neurons per layer, as a range if layers differ.
fn neurons(model: &Model) -> String {
    let least = model.layers.iter().map(LayerWeights::n_ff).min().unwrap_or(0);
    match (least, model.max_n_ff()) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least} to {most}"),
    }
}

/// Prints rows of cells as aligned columns. Only the first column is left-aligned.
fn table(rows: &[Vec<String>], out: &mut String) {
    let n = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..n).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &width))| match i {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}

fn cells<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

fn devices(report: &Report, out: &mut String) {
    let mut rows = vec![cells([
        "device",
        "bandwidth",
        "hand-off",
        "budget",
        "used",
        "attention",
        "KV cache",
        "neurons",
        "hand-offs",
        "embedding",
        "head",
        "scratch",
        "driver",
    ])];
    for (number, device) in report.devices.iter().enumerate() {
        let bytes = &report.memory.devices[number];
        let beside = |text: String| if number == CPU { String::new() } else { text };
        let budget = device.budget.map_or_else(|| "no limit".to_owned(), |b| b.to_string());
        rows.push(vec![
            printable(&device.name),
            format!("{:.1} GB/s", device.speed.dense / 1e9),
            beside(format!("{:.0} us", device.speed.hand_off * 1e6)),
            beside(budget),
            report.used(number).to_string(),
            bytes.frames.to_string(),
            bytes.cache.to_string(),
            bytes.neurons.to_string(),
            beside(bytes.hand_offs.to_string()),
            bytes.embed.to_string(),
            (bytes.ends - bytes.embed).to_string(),
            bytes.scratch.to_string(),
            beside(device.reserve.to_string()),
        ]);
    }
    table(&rows, out);
    for (number, device) in report.devices.iter().enumerate() {
        if let Some((left, why)) = report.unused_budget(number) {
            let name = printable(&device.name);
            let _ = writeln!(out, "{left} of the budget of {name} is unused: {why}\n");
        }
    }
}

/// A layer: its placement, forecast and memory.
type LayerRow<'a> = (&'a LayerPlacement, (&'a LayerForecast, &'a LayerBytes));

/// Consecutive layers with the same placement and memory share a row.
fn layers(report: &Report, out: &mut String) {
    let mut rows = vec![cells([
        "layers",
        "attention on",
        "home neurons",
        "active share",
        "attention",
        "KV cache",
        "neurons",
        "on the CPU",
        "time",
    ])];
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
        let last = first + run.len() - 1;
        let number = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let time = format!("{:.2} ms", layer.time.total() * 1e3);
        let n_ff = report.model.layers[first].n_ff();
        let mut row = vec![number, printable(report.device(place.home))];
        row.push(match layer.n_home {
            0 if n_ff == 0 => "none".to_owned(),
            n if n == n_ff => "all".to_owned(),
            n => format!("{n} ({:.0} %)", 100.0 * n as f64 / n_ff as f64),
        });
        row.push(match place.home {
            CPU => String::new(),
            _ => format!("{:.0} %", 100.0 * layer.off_cpu),
        });
        row.extend([bytes.frame, bytes.cache, bytes.neurons].map(|bytes| bytes.to_string()));
        row.push(match bytes.neurons_on_cpu {
            Bytes(0) => String::new(),
            bytes => bytes.to_string(),
        });
        row.push(time);
        rows.push(row);
        first = last + 1;
    }
    table(&rows, out);
    let head = report.device(forecast.placement.head);
    let embed = report.device(forecast.placement.embed);
    let _ = writeln!(out, "embedding on {embed}, head on {head}\n");
}
