//! What planning and lowering need to know of a device.

use hal::{Bytes, DeviceKind};

/// Facts of an open device that do not change.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `CUDA0`, `HIP1`, ...
    pub name: String,
    /// What the driver calls it, and its architecture.
    pub description: String,
    /// Discrete or integrated (or simulated: tests).
    pub kind: DeviceKind,
    /// Physical memory.
    pub total: Bytes,
    /// Threads that run in step: 32 or 64.
    pub wave: u32,
    /// Multiprocessors, or compute units.
    pub n_units: u32,
    /// Bytes of shared memory that every block may have.
    pub shared: u32,
    /// Whether kernels multiply small matrices of bytes in one instruction (`HAS_MMA` of its dialect).
    pub mma: bool,
    /// The same of floats (`HAS_MMA_FLOATS`), where three such products are faster than one without.
    pub mma_floats: bool,
    /// Whether the system ends kernels that run for seconds, because a display hangs on the device.
    pub watchdog: bool,
}

impl Facts {
    /// Blocks that keep every unit busy, for kernels that walk over their work in strides of the grid; no more than
    /// there is work for.
    #[must_use]
    pub fn persistent(&self, n_blocks: usize, per_unit: u32) -> u32 {
        (self.n_units * per_unit).min(n_blocks.min(u32::MAX as usize) as u32).max(1)
    }
}
