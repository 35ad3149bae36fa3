//! Which devices there are. The only file that names a backend.

use hal::{Bytes, Device, DeviceId};

use cpu::{CpuBackend, CpuOptions, default_threads};

/// The CPU with `threads` workers (`None`: one per core that this process may use) as the first device of an
/// engine's list.
#[must_use]
pub fn cpu(threads: Option<usize>) -> Device {
    let backend = CpuBackend::new(CpuOptions { threads });
    Device::new(backend, DeviceId(0), Bytes::MAX)
}

/// How many workers [`cpu()`] takes.
#[must_use]
pub fn cpu_threads(threads: Option<usize>) -> usize {
    threads.unwrap_or_else(default_threads).max(1)
}
