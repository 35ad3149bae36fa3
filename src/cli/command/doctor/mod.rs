//! `doctor`: lists devices, missing drivers and how to install them, and measures speeds. Ends with
//! checks of the machine's settings and a verdict.

mod checks;
mod report;
mod self_test;
mod verdict;

use super::devices::{memory_text, why_only_if_named};
use crate::bench;
use crate::cli::args::DoctorArgs;
use crate::cli::failure::Failure;
use crate::cli::folders::{cache_folder, this_program};
use crate::cli::output::{Output, write_file};
use crate::cli::progress;
use crate::cli::terminal::{Terminal, printable};
use crate::cli::wrap::wrapped;
use crate::devices::{self, CpuOptions, KernelCompilation};
use crate::placement::Speed;
use hal::format::Format;
use hal::{Backend, Bytes, DeviceKind, MemoryReport};
use report::Doctor;
use runtime::{
    DeviceSwitches, DiskSpeed, SilentObserver, known_disks, measure_prefetch, measure_speed,
};
use self_test::{SelfTest, Words};
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::sync::Arc;
use verdict::Verdict;

/// The format of the weights with which devices are measured; all backends support it.
const FORMAT: Format = Format::Q4_0;

struct DeviceReport {
    name: String,
    description: String,
    memory: MemoryReport,
    /// Read bandwidth of the CPU's threads, in GB/s.
    read: Option<f64>,
    speed: Result<Speed, String>,
    /// Whether commands use the device if the user names none.
    is_default: bool,
    /// Features of the device that its backend uses.
    features: Vec<String>,
    remarks: Vec<String>,
    /// `None` for the CPU, with which devices are compared, and for devices that are not tested.
    self_test: Option<SelfTest>,
}

/// Measures all devices and prints a report.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(args: &DoctorArgs, terminal: &Terminal) -> Result<(), Failure> {
    let threads = args.threads.map(NonZeroUsize::get);
    let options = CpuOptions { threads, ..CpuOptions::default() };
    let n_threads = options.n_threads();
    terminal.note("measuring takes up to a minute");
    let load = checks::other_programs();
    let mut reports = vec![cpu_report(options, n_threads, terminal)];
    let switches = args.switches.all();
    let compilation = KernelCompilation { program: this_program(), ..KernelCompilation::default() };
    let (found, missing) = devices::candidates_with(&compilation);
    for candidate in &found {
        reports.push(match candidate.open_with(&switches) {
            Ok(backend) => {
                let description = &backend.info().described();
                let mut report = device_report(&candidate.name, description, 0, &backend, terminal);
                if !candidate.software || args.report.is_some() {
                    report.self_test = test(&candidate.name, &switches, terminal);
                }
                report
            }
            Err(error) => DeviceReport {
                name: candidate.name.clone(),
                description: candidate.description.clone(),
                memory: MemoryReport::default(),
                read: None,
                speed: Err(format!("the device cannot be opened: {error}")),
                is_default: true,
                features: Vec::new(),
                remarks: Vec::new(),
                self_test: None,
            },
        });
        if let Some((last, why)) = reports.last_mut().zip(why_only_if_named(candidate)) {
            last.remarks.push(format!("{why} (--device {})", candidate.name));
            last.is_default = false;
        }
    }
    let disks = known_disks(cache_folder(None).map(|folder| folder.path).as_deref());
    let checks: Vec<_> = load.into_iter().chain(checks::checks()).collect();
    let verdict = Verdict::new(&reports, &checks);
    let whole = Doctor {
        n_threads,
        reports: &reports,
        missing: &missing,
        disks: &disks,
        checks: &checks,
        verdict: verdict.as_ref(),
    };
    if let Some(path) = &args.report {
        write_file(path, &format!("{:#}\n", whole.report(&switches)))?;
        terminal.note(&format!("the report is in '{}'", path.display()));
    }
    let mut out = Output::stdout();
    if args.json {
        out.line(&format!("{:#}", whole.json()))?;
        return out.flush();
    }
    for report in &reports {
        out.write(report.text())?;
    }
    for missing in &missing {
        out.line(missing.backend)?;
        out.write(wrapped("  missing: ", &printable(&missing.reason)))?;
        out.write(wrapped("  help: ", &printable(&missing.hint)))?;
    }
    for disk in &disks {
        out.write(disk_text(disk))?;
    }
    out.line("settings")?;
    for check in &checks {
        out.write(wrapped(check.label(), &printable(&check.text)))?;
    }
    out.line("")?;
    for (label, text) in verdict.iter().flat_map(Verdict::lines) {
        out.write(wrapped(label, &printable(&text)))?;
    }
    out.flush()
}

/// A disk by name, with its speed as a run of a model larger than memory measured it.
type Disk = (String, DiskSpeed);

fn disk_value((name, speed): &Disk) -> Value {
    json!({
        "name": name,
        "bytes_per_second": speed.bandwidth,
        "latency_seconds": speed.latency,
        "small_reads_per_second": speed.small_reads,
        "threads": speed.depth,
    })
}

fn disk_text((name, speed): &Disk) -> String {
    let DiskSpeed { bandwidth, latency, small_reads, depth } = *speed;
    let reads = format!(
        "reads: {:.2} GB/s with {depth} threads, {small_reads:.0} reads of 16 KiB a second, {:.0} us for a page",
        bandwidth / 1e9,
        latency * 1e6
    );
    format!("disk: {}\n{}", printable(name), wrapped("  ", &reads))
}

fn cpu_report(options: CpuOptions, n_threads: usize, terminal: &Terminal) -> DeviceReport {
    let prefetch = options.prefetch.clone();
    let backend = devices::cpu_backend(options);
    let folder = cache_folder(None).map(|folder| folder.path);
    let measured = measure_prefetch(&backend, n_threads, folder.as_deref(), &SilentObserver);
    if let Some(bytes) = measured {
        prefetch.set(bytes);
    }
    let mut report =
        device_report("CPU", &backend.info().description, n_threads, &backend, terminal);
    let bar = progress::timer(terminal, "measuring the memory bandwidth");
    let usual = bench::usual_probe_size(devices::last_level_cache().map(Bytes));
    let size = bench::probe_size(usual, report.memory.free);
    report.read = bench::read_bandwidth(n_threads, size);
    if size < usual {
        report.remarks.push(format!(
            "the memory bandwidth was measured with {size}, a quarter of the free memory, in place of {usual}: the processor's caches may make it too high"
        ));
    }
    bar.finish_and_clear();
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

/// Compares the words of a device with the CPU's.
fn test(name: &str, switches: &DeviceSwitches, terminal: &Terminal) -> Option<SelfTest> {
    let bar = progress::timer(terminal, &format!("testing {name}"));
    let cpu = Words::of(None, switches);
    let result = cpu.ok().map(|cpu| SelfTest::run(&cpu, name, switches));
    bar.finish_and_clear();
    result
}

/// Measures a device, and caches its speed for `info` and `plan`. `threads` is 0 for a device
/// without threads.
fn device_report(
    name: &str,
    description: &str,
    threads: usize,
    backend: &Arc<dyn Backend>,
    terminal: &Terminal,
) -> DeviceReport {
    let memory = backend.memory().unwrap_or_default();
    let folder = cache_folder(None).map(|folder| folder.path);
    let bar = progress::timer(terminal, &format!("measuring {name}"));
    let speed = measure_speed(backend, threads, folder.as_deref(), &SilentObserver);
    bar.finish_and_clear();
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
        is_default: true,
        features: backend.feature_notes(),
        remarks,
        self_test: None,
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
        lines.extend(self.self_test.iter().map(|test| format!("  {}", test.line())));
        let kernels = self.self_test.as_ref().and_then(SelfTest::kernels);
        lines.extend(kernels.map(|kernels| format!("  {kernels}")));
        lines.extend(self.features.iter().chain(&self.remarks).map(|line| format!("  {line}")));
        let wrapped = lines.iter().map(|line| match line.strip_prefix("  ") {
            Some(line) => wrapped("  ", &printable(line)),
            None => printable(line) + "\n",
        });
        wrapped.collect()
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
            "self_test": self.self_test.as_ref().map(SelfTest::json),
        })
    }
}
