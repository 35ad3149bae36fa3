//! Which devices there are. The only file that names a backend.

use hal::{Bytes, Device, DeviceId};

use cpu::CpuBackend;
pub use cpu::{CpuOptions, Notice, Numa, Priority};

/// The CPU with `threads` workers (`None`: one per core that this process may use) as the first device of an
/// engine's list.
#[must_use]
pub fn cpu(threads: Option<usize>) -> Device {
    cpu_with(CpuOptions { threads, ..CpuOptions::default() })
}

/// The CPU, used as `options` say.
#[must_use]
pub fn cpu_with(options: CpuOptions) -> Device {
    Device::new(CpuBackend::new(options), DeviceId(0), Bytes::MAX)
}

/// How many workers [`cpu()`] takes.
#[must_use]
pub fn cpu_threads(threads: Option<usize>) -> usize {
    CpuOptions { threads, ..CpuOptions::default() }.n_threads()
}
