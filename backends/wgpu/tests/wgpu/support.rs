//! The device that all tests of this crate share, because compiling pipelines is slow on a
//! software driver.

use std::sync::{Arc, OnceLock};

use hal::format::Format;
use hal::op::Add;
use hal::{Bytes, Device, DeviceId, Program, Queue, Tensor, TensorDesc};
use thermocline_wgpu::{Adapter, Options, WgpuBackend, adapters};

pub(crate) const BUDGET: Bytes = Bytes(1 << 30);

/// The device; prints the reason and returns `None` if this machine has no device.
pub(crate) fn device() -> Option<Device> {
    static BACKEND: OnceLock<Option<Arc<WgpuBackend>>> = OnceLock::new();
    let backend = BACKEND.get_or_init(|| open(&Options::default())).clone()?;
    Some(Device::new(backend, DeviceId(0), BUDGET))
}

/// Opens the first device. A missing device fails the test if `THERMOCLINE_REQUIRE_GPU` is set.
#[allow(clippy::disallowed_methods, reason = "CI requests a failure through the environment")]
pub(crate) fn open(options: &Options) -> Option<Arc<WgpuBackend>> {
    let found = adapters();
    let adapter: Option<&Adapter> = found.first();
    let Some(adapter) = adapter else {
        let required = std::env::var_os("THERMOCLINE_REQUIRE_GPU").is_some();
        let none = "no Vulkan, Metal or DX12 device (Debian: apt-get install mesa-vulkan-drivers)";
        assert!(!required, "{none}");
        eprintln!("skipped: {none}");
        return None;
    };
    eprintln!("{}: {}", adapter.name(), adapter.description());
    Some(adapter.open(options).expect("the device opens"))
}

/// Copies a row of floats to the device.
pub(crate) fn row(device: &Device, queue: &mut Queue, values: &[f32]) -> Tensor {
    let desc = TensorDesc::new(1, values.len(), Format::F32);
    let tensor = device.alloc("row", desc).expect("a row fits");
    queue.write(&tensor, bytemuck::cast_slice(values)).expect("a write");
    tensor
}

pub(crate) fn read(queue: &mut Queue, tensor: &Tensor, n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    queue.read_f32(tensor, &mut values).expect("a read");
    values
}

/// A program that computes `x += a` `times` times.
pub(crate) fn add_repeatedly(device: &Device, a: &Tensor, x: &Tensor, times: usize) -> Program {
    let mut recorder = device.record("add");
    for _ in 0..times {
        recorder.push(Add { a: a.clone(), x: x.clone() }).expect("an op");
    }
    recorder.finish().expect("a program")
}
