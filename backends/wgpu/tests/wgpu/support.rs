//! The device that all tests of this crate share: a pipeline's first use is slow on a software driver.

use std::sync::{Arc, OnceLock};

use hal::{Bytes, Device, DeviceId};
use thermocline_wgpu::{Adapter, Options, WgpuBackend, adapters};

/// What a test may book.
pub(crate) const BUDGET: Bytes = Bytes(1 << 30);

/// The device; `None`, with the reason printed, where there is none. `THERMOCLINE_REQUIRE_GPU=1` makes that a failure.
pub(crate) fn device() -> Option<Device> {
    static BACKEND: OnceLock<Option<Arc<WgpuBackend>>> = OnceLock::new();
    let backend = BACKEND.get_or_init(|| open(Options::default())).clone()?;
    Some(Device::new(backend, DeviceId(0), BUDGET))
}

/// Opens the first device.
pub(crate) fn open(options: Options) -> Option<Arc<WgpuBackend>> {
    let found = adapters();
    let adapter: Option<&Adapter> = found.first();
    let Some(adapter) = adapter else {
        let required = std::env::var_os("THERMOCLINE_REQUIRE_GPU").is_some();
        assert!(
            !required,
            "no Vulkan, Metal or DX12 device; Debian: apt-get install mesa-vulkan-drivers"
        );
        eprintln!("skipped: no Vulkan, Metal or DX12 device here");
        return None;
    };
    eprintln!("{}: {}", adapter.name(), adapter.description());
    Some(adapter.open(options).expect("the device opens"))
}
