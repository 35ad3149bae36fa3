//! Facts about a device for planning and lowering.

use hal::{Bytes, DeviceKind};

/// Constant facts about an open device.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `CUDA0`, `HIP1`, ...
    pub name: String,
    /// The name that the driver reports, and the architecture.
    pub description: String,
    /// Discrete, integrated, or (in tests) simulated.
    pub kind: DeviceKind,
    /// Physical memory.
    pub total: Bytes,
    /// Warp or wavefront size: 32 or 64 threads.
    pub wave: u32,
    /// Multiprocessors, or compute units.
    pub n_units: u32,
    /// Bytes of shared memory available to every block.
    pub shared: u32,
    /// Whether the device has matrix instructions for int8 (`HAS_MMA` of its dialect).
    pub mma: bool,
    /// Whether the device has matrix instructions for floats (`HAS_MMA_FLOATS`), and three products
    /// with them take less time than one product without.
    pub mma_floats: bool,
    /// Bytes of the next weight that a short launch brings into the L2 cache: what memory transfers in
    /// that time, and a small part of the cache. 0 if the device has no such instruction.
    pub prefetch: u64,
    /// Whether the system kills kernels that run for seconds, because a display is attached to the
    /// device.
    pub watchdog: bool,
}

impl Facts {
    /// Number of blocks of a grid-stride kernel: `per_unit` for each multiprocessor, but at most
    /// `n_blocks` and at least 1.
    #[must_use]
    pub fn persistent(&self, n_blocks: usize, per_unit: u32) -> u32 {
        (self.n_units * per_unit).min(n_blocks.min(u32::MAX as usize) as u32).max(1)
    }
}
