//! The Markdown table: llama-bench's columns, a column for each parameter that differs from its
//! default, and Thermocline's own columns.

use super::row::Row;
use crate::cli::args::{BenchSetup, policy_name};
use crate::cli::parse::values;
use crate::placement::PlacementPolicy;
use hal::format::Format;
use runtime::{Budget, DeviceOptions, Sparsity};
use std::num::NonZeroU32;

/// Bytes per token that a processor's caches may hold.
const MAX_CACHED: f64 = 64e6;

/// A column: title, width in characters, alignment and cell text.
#[derive(Clone, Copy, Debug)]
struct Column {
    title: &'static str,
    width: usize,
    align_left: bool,
    value: fn(&Row<'_>) -> String,
}

#[derive(Clone, Debug)]
pub(super) struct Columns(Vec<Column>);

const fn left(title: &'static str, width: usize, value: fn(&Row<'_>) -> String) -> Column {
    Column { title, width, align_left: true, value }
}

const fn right(title: &'static str, width: usize, value: fn(&Row<'_>) -> String) -> Column {
    Column { title, width, align_left: false, value }
}

impl Columns {
    /// A parameter gets a column if it differs from its default or takes several values.
    pub(super) fn new(setup: &BenchSetup<'_>) -> Columns {
        let args = setup.args;
        fn is_default<T: PartialEq>(values: &[T], default: &T) -> bool {
            values.iter().all(|value| value == default)
        }
        let size = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        let devices = |options: &DeviceOptions| {
            options.named.is_some()
                || !options.budgets.is_empty()
                || options.ram_budget != Budget::Auto
        };
        let devices = setup.device_options.len() > 1 || setup.device_options.iter().any(devices);
        let mut columns = vec![
            left("model", 30, |row| row.facts.model_type.clone()),
            right("size", 10, |row| {
                let size = row.facts.model_size as f64 / f64::from(1 << 20);
                if size < 1024.0 { format!("{size:.2} MiB") } else { gibibytes(size) }
            }),
            right("params", 10, |row| {
                let n = row.facts.model_n_params as f64;
                if n < 1e9 { format!("{:.2} M", n / 1e6) } else { format!("{:.2} B", n / 1e9) }
            }),
            left("backend", if devices { 16 } else { 10 }, |row| row.facts.backends()),
            right("threads", 7, |row| row.facts.n_threads.to_string()),
        ];
        let optional = [
            (
                is_default(&values(&args.batch_size), &size(2048)),
                right("n_batch", 7, |row| row.facts.n_batch.to_string()),
            ),
            (
                is_default(&values(&args.ubatch_size), &size(512)),
                right("n_ubatch", 8, |row| row.facts.n_ubatch.to_string()),
            ),
            (
                is_default(&args.cache_type_k, &Format::F16),
                right("type_k", 6, |row| row.facts.type_k.to_owned()),
            ),
            (
                is_default(&args.cache_type_v, &Format::F16),
                right("type_v", 6, |row| row.facts.type_v.to_owned()),
            ),
            (
                setup.computations.iter().all(|c| c.mmap),
                right("mmap", 4, |row| u8::from(row.facts.mmap).to_string()),
            ),
            (
                setup.computations[0].sparsity == Sparsity::Predicted,
                right("sparsity", 8, |row| row.facts.sparsity.clone()),
            ),
            (
                is_default(&args.placement.devices.placement, &PlacementPolicy::Fastest),
                right("placement", 9, |row| policy_name(row.facts.devices.policy).to_owned()),
            ),
        ];
        columns.extend(optional.into_iter().filter(|(hide, _)| !hide).map(|(_, column)| column));
        if devices {
            columns.extend(device_columns(args.check));
        }
        columns.extend([
            right("test", 15, |row| row.test.to_string()),
            right("t/s", 20, |row| {
                let (mean, deviation) = row.rate();
                format!("{mean:.2} ± {deviation:.2}")
            }),
        ]);
        if values(&args.parallel).iter().any(|n| n.get() > 1) {
            columns.extend([
                right("t/s each", 9, |row| format!("{:.2}", row.rate_each())),
                right("union", 7, |row| percent(row.union().active())),
                right("all rows", 8, |row| percent(row.union().dense())),
            ]);
        }
        columns.extend([
            right("density", 8, |row| percent(row.measured.density())),
            right("MB/token", 9, |row| {
                row.bytes_per_token().map_or_else(String::new, |b| format!("{:.1}", b / 1e6))
            }),
            right("bandwidth", 9, bandwidth),
        ]);
        Columns(columns)
    }

    /// The title row and the rule below it.
    pub(super) fn header(&self) -> String {
        let titles = line(self.0.iter().map(|c| pad_cell(c, c.title)));
        let rule = |c: &Column| {
            let dashes = "-".repeat(c.width - usize::from(!c.align_left));
            if c.align_left { dashes } else { dashes + ":" }
        };
        titles + &line(self.0.iter().map(rule))
    }

    pub(super) fn row(&self, row: &Row<'_>) -> String {
        line(self.0.iter().map(|c| pad_cell(c, &(c.value)(row))))
    }
}

/// Share of the memory bandwidth; `cache` for weights that the processor's caches hold.
fn bandwidth(row: &Row<'_>) -> String {
    match row.bandwidth_share() {
        Some(share) if share > 1.0 && row.bytes_per_token() < Some(MAX_CACHED) => {
            "cache".to_owned()
        }
        share => percent(share),
    }
}

/// Columns that compare backends and budgets.
fn device_columns(check: bool) -> Vec<Column> {
    let mut columns = vec![
        right("budget", 12, |row| row.facts.devices.budgets.clone().unwrap_or_default()),
        left("memory by device", 34, |row| {
            let bytes = row.facts.device_bytes(row.ram_used).into_iter();
            bytes.map(|(name, bytes)| format!("{name} {bytes}")).collect::<Vec<_>>().join(", ")
        }),
        right("hot", 6, |row| percent(row.off_cpu())),
        right("CPU waited", 10, |row| {
            percent(row.measured.neurons.waits.shares().map(|[cpu, _]| cpu))
        }),
        right("devices waited", 14, |row| {
            percent(row.measured.neurons.waits.shares().map(|[_, devices]| devices))
        }),
        right("first token", 11, |row| {
            row.ttft().map_or_else(String::new, |ns| format!("{:.1} ms", ns as f64 / 1e6))
        }),
    ];
    if check {
        columns.push(right("logits differ", 13, |row| {
            row.facts.difference.map_or_else(String::new, |x| format!("{x:.1e}"))
        }));
    }
    columns
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let mut line = String::from("|");
    for cell in cells {
        line += &format!(" {cell} |");
    }
    line + "\n"
}

fn pad_cell(column: &Column, text: &str) -> String {
    let width = column.width;
    if column.align_left { format!("{text:<width$}") } else { format!("{text:>width$}") }
}

fn gibibytes(mebibytes: f64) -> String {
    format!("{:.2} GiB", mebibytes / 1024.0)
}

fn percent(share: Option<f64>) -> String {
    share.filter(|x| x.is_finite()).map_or_else(String::new, |x| format!("{:.1}%", 100.0 * x))
}
