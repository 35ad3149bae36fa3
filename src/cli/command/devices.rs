//! `devices` and `--list-devices`: list the devices that this build can use.

use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::cli::terminal::printable;
use crate::cli::wrap::wrapped;
use crate::devices::{self, Candidate};
use hal::{Bytes, MemoryReport};
use runtime::DeviceSwitches;
use serde_json::json;

/// Prints the name and description of each device, in llama.cpp's form.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn list() -> Result<(), Failure> {
    let threads = devices::cpu_threads(None);
    let mut out = Output::stdout();
    out.line("Available devices:")?;
    out.line(&format!("  CPU: {threads} threads"))?;
    for candidate in devices::candidates(None).0 {
        let only = why_only_if_named(&candidate).map(|why| format!(" ({why})")).unwrap_or_default();
        let text = format!("  {}: {}{only}", candidate.name, candidate.description);
        out.line(&printable(&text))?;
    }
    out.flush()
}

/// `devices`: prints the devices with their memory, and why other backends have no device.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(as_json: bool, switches: &DeviceSwitches) -> Result<(), Failure> {
    let (found, missing) = devices::candidates(None);
    let cpu = devices::cpu(None);
    let threads = devices::cpu_threads(None);
    let mut out = Output::stdout();
    let opened: Vec<_> =
        found.iter().map(|candidate| (candidate, candidate.open_with(switches))).collect();
    if as_json {
        let memory = |memory: MemoryReport| json!({ "total": memory.total.map(|b| b.0), "free": memory.free.map(|b| b.0) });
        let others = opened.iter().map(|(candidate, backend)| {
            json!({
                "name": candidate.name,
                "description": candidate.description,
                "backend": candidate.backend,
                "software": candidate.software,
                "same_as": candidate.same_as,
                "memory": backend.as_ref().ok().and_then(|b| b.memory().ok()).map(memory),
                "error": backend.as_ref().err().map(ToString::to_string),
            })
        });
        let report = json!({
            "cpu": {
                "description": cpu.info().description,
                "threads": threads,
                "memory": memory(cpu.memory().unwrap_or_default()),
            },
            "devices": others.collect::<Vec<_>>(),
            "missing": missing.iter().map(|m| json!({
                "backend": m.backend, "is_built": m.is_built, "reason": m.reason, "hint": m.hint,
            })).collect::<Vec<_>>(),
        });
        out.line(&format!("{report:#}"))?;
        return out.flush();
    }
    let memory = cpu.memory().unwrap_or_default();
    out.line(&printable(&format!("CPU: {}, {}", cpu.info().description, memory_text(memory))))?;
    for (candidate, backend) in &opened {
        let state = match backend {
            Ok(backend) => memory_text(backend.memory().unwrap_or_default()),
            Err(error) => format!("cannot be used: {error}"),
        };
        let only = why_only_if_named(candidate).map(|why| format!(", {why}")).unwrap_or_default();
        let text = format!("{}: {}{only}, {state}", candidate.name, candidate.description);
        out.line(&printable(&text))?;
    }
    for missing in &missing {
        let text = format!("{}; {}", missing.reason, missing.hint);
        out.write(wrapped(&format!("{}: ", missing.backend), &printable(&text)))?;
    }
    out.flush()
}

/// Why a device is used only if --device names it; `None` if it is used by default.
pub(super) fn why_only_if_named(candidate: &Candidate) -> Option<String> {
    match &candidate.same_as {
        _ if candidate.software => Some("a software driver, used only when named".to_owned()),
        Some(other) => Some(format!("the same card as {other}, used only when named")),
        None => None,
    }
}

/// Free and total memory as text, as far as the driver reports them.
pub(super) fn memory_text(memory: MemoryReport) -> String {
    let size = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.to_string());
    match (size(memory.free), size(memory.total)) {
        (Some(free), Some(total)) => format!("{free} of {total} free"),
        (Some(free), None) => format!("{free} free"),
        (None, Some(total)) => format!("{total}; the driver does not report free memory"),
        (None, None) => "the driver does not report memory".to_owned(),
    }
}
