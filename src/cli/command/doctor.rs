//! `doctor`: lists devices, missing drivers and how to install them, and measures speeds.

use super::devices::{memory_text, why_only_if_named};
use crate::bench::{self, Shape};
use crate::cli::args::DoctorArgs;
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::cli::terminal::{Terminal, printable};
use crate::devices::{self, CpuOptions};
use crate::placement::Speed;
use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId, DeviceKind, MemoryReport};
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// The format of the weights with which devices are measured; all backends support it.
const FORMAT: Format = Format::Q4_0;

struct DeviceReport {
    name: String,
    description: String,
    memory: MemoryReport,
    /// Read bandwidth of the CPU's threads, in GB/s.
    read: Option<f64>,
    speed: Result<Speed, String>,
    /// Features of the device that its backend uses.
    features: Vec<String>,
    remarks: Vec<String>,
}

/// Measures all devices and prints a report.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(args: &DoctorArgs, terminal: &Terminal) -> Result<(), Failure> {
    let threads = args.threads.map(NonZeroUsize::get);
    let options = CpuOptions { threads, ..CpuOptions::default() };
    let n_threads = options.n_threads();
    terminal.note("measuring takes a few seconds");
    let mut reports = vec![cpu(options, n_threads)];
    let (found, missing) = devices::candidates(None);
    for candidate in &found {
        reports.push(match candidate.open() {
            Ok(backend) => device(&candidate.name, &backend.info().description, &backend),
            Err(error) => DeviceReport {
                name: candidate.name.clone(),
                description: candidate.description.clone(),
                memory: MemoryReport::default(),
                read: None,
                speed: Err(format!("the device cannot be opened: {error}")),
                features: Vec::new(),
                remarks: Vec::new(),
            },
        });
        if let Some((last, why)) = reports.last_mut().zip(why_only_if_named(candidate)) {
            last.remarks.push(format!("{why} (--device {})", candidate.name));
        }
    }
    let mut out = Output::stdout();
    if args.json {
        let missing = missing.iter().map(|missing| {
            json!({
                "backend": missing.backend,
                "is_built": missing.is_built,
                "reason": missing.reason,
                "hint": missing.hint,
            })
        });
        let report = json!({
            "threads": n_threads,
            "format": FORMAT.name(),
            "devices": reports.iter().map(DeviceReport::json).collect::<Vec<_>>(),
            "missing": missing.collect::<Vec<_>>(),
        });
        out.line(&format!("{report:#}"))?;
        return out.flush();
    }
    for report in &reports {
        out.write(report.text())?;
    }
    for missing in &missing {
        out.line(&format!(
            "{}\n  missing: {}\n  help: {}",
            missing.backend, missing.reason, missing.hint
        ))?;
    }
    out.flush()
}

fn cpu(options: CpuOptions, n_threads: usize) -> DeviceReport {
    let backend = devices::cpu_backend(options);
    let mut report = device("CPU", &backend.info().description, &backend);
    report.read = bench::read_bandwidth(n_threads, bench::probe_size(report.memory.free));
    if let (Some(read), Ok(speed)) = (report.read, &report.speed)
        && speed.dense < 0.5 * read * 1e9
    {
        report.remarks.push(
            "matrix-vector products reach less than half of the memory bandwidth: if the machine has more cores, use more threads (-t)"
                .to_owned(),
        );
    }
    if report.memory.free.is_some_and(|free| free < Bytes(1 << 30)) {
        report.remarks.push("less than 1 GiB of memory is free: close other programs".to_owned());
    }
    report
}

fn device(name: &str, description: &str, backend: &Arc<dyn Backend>) -> DeviceReport {
    let memory = backend.memory().unwrap_or_default();
    let account = Device::new(Arc::clone(backend), DeviceId(0), Bytes::MAX);
    let speed = bench::speed(&account, &Shape::of_7b_model(FORMAT), memory.free);
    let speed = speed.map_err(|error| error.to_string());
    let mut remarks = Vec::new();
    if backend.info().kind == DeviceKind::Integrated {
        remarks.push("unified memory: layers are placed whole, not split with the CPU".to_owned());
    }
    if memory.free.is_none() {
        remarks.push(
            "the driver does not report free memory: set a limit with --vram-budget".to_owned(),
        );
    }
    let (name, description) = (name.to_owned(), description.to_owned());
    DeviceReport {
        name,
        description,
        memory,
        read: None,
        speed,
        features: backend.feature_notes(),
        remarks,
    }
}

impl DeviceReport {
    fn text(&self) -> String {
        let mut lines = vec![
            format!("{}: {}", self.name, self.description),
            format!("  memory: {}", memory_text(self.memory)),
        ];
        if let Some(read) = self.read {
            lines.push(format!("  read bandwidth: {read:.1} GB/s"));
        }
        match &self.speed {
            Ok(speed) => {
                let (dense, sparse) = (speed.dense / 1e9, speed.sparse / 1e9);
                lines.push(format!(
                    "  {} matrix-vector products: {dense:.1} GB/s, with skipped rows {sparse:.1} GB/s; {:.1} us per op",
                    FORMAT.name(),
                    speed.op * 1e6
                ));
                if speed.hand_off > 0.0 {
                    lines.push(format!("  hand-off: {:.0} us", speed.hand_off * 1e6));
                }
                if speed.prompt > 0.0 {
                    lines.push(format!(
                        "  prefill: {:.1} GB/s (bytes of weights x tokens)",
                        speed.prompt / 1e9
                    ));
                }
                if speed.upload > 0.0 {
                    lines.push(format!(
                        "  upload of neurons: {:.2} GB/s, {:.1} us per row",
                        speed.upload / 1e9,
                        speed.refill * 1e6
                    ));
                }
            }
            Err(why) => lines.push(format!("  not measured: {why}")),
        }
        lines.extend(self.features.iter().chain(&self.remarks).map(|line| format!("  {line}")));
        lines.iter().map(|line| printable(line) + "\n").collect()
    }

    fn json(&self) -> Value {
        let speed = self.speed.as_ref().ok();
        json!({
            "name": self.name,
            "description": self.description,
            "memory_total": self.memory.total.map(|bytes| bytes.0),
            "memory_free": self.memory.free.map(|bytes| bytes.0),
            "read_gb_s": self.read,
            "bytes_per_second": speed.map(|speed| speed.dense),
            "row_bytes_per_second": speed.map(|speed| speed.sparse),
            "hand_off_seconds": speed.map(|speed| speed.hand_off),
            "op_seconds": speed.map(|speed| speed.op),
            "refill_seconds": speed.map(|speed| speed.refill),
            "prompt_bytes_per_second": speed.map(|speed| speed.prompt),
            "upload_bytes_per_second": speed.map(|speed| speed.upload),
            "ways": self.features,
            "error": self.speed.as_ref().err(),
            "remarks": self.remarks,
        })
    }
}
