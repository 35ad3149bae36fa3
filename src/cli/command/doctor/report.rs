//! The result of all measurements and checks as JSON, for programs and for bug reports.

use super::checks::Check;
use super::verdict::Verdict;
use super::{DeviceReport, FORMAT, disk_value};
use crate::cli::version::{LONG_VERSION, VERSION};
use crate::devices::MissingBackend;
use runtime::{DeviceSwitches, DiskSpeed};
use serde_json::{Value, json};

/// What `doctor` found.
pub(super) struct Doctor<'a> {
    pub(super) n_threads: usize,
    pub(super) reports: &'a [DeviceReport],
    pub(super) missing: &'a [MissingBackend],
    pub(super) disks: &'a [(String, DiskSpeed)],
    pub(super) checks: &'a [Check],
    pub(super) verdict: Option<&'a Verdict>,
}

impl Doctor<'_> {
    /// The object that `doctor --json` prints.
    pub(super) fn json(&self) -> Value {
        let missing = self.missing.iter().map(|missing| {
            json!({
                "backend": missing.backend,
                "is_built": missing.is_built,
                "reason": missing.reason,
                "hint": missing.hint,
            })
        });
        json!({
            "threads": self.n_threads,
            "format": FORMAT.name(),
            "devices": self.reports.iter().map(DeviceReport::json).collect::<Vec<_>>(),
            "missing": missing.collect::<Vec<_>>(),
            "disks": self.disks.iter().map(disk_value).collect::<Vec<_>>(),
            "checks": self.checks.iter().map(Check::json).collect::<Vec<_>>(),
            "verdict": self.verdict.map(Verdict::json),
        })
    }

    /// The object of `doctor --report`: the same, with the program and the system. It has no names
    /// of users, files or models.
    pub(super) fn report(&self, switches: &DeviceSwitches) -> Value {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        let mut report = self.json();
        report["program"] = json!({ "version": *VERSION, "build": *LONG_VERSION });
        report["system"] = json!({
            "os": std::env::consts::OS,
            "arch": std::env::consts::ARCH,
            "kernel": kernel.as_deref().map(str::trim),
        });
        report["device_options"] = json!(switches.to_string());
        report
    }
}
