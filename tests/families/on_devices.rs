//! Checks that run on a graphics device and on the fakes of the vendors' drivers.

use std::sync::Arc;
use std::time::Duration;

use fakes::Vendor;
use hal::{Backend, Device, DeviceId};

use super::*;
use crate::placement_is_invisible::graphics::graphics;
use crate::placement_is_invisible::vendors::fake;

const LIMIT: Duration = Duration::from_secs(500);

/// Runs `check` on the graphics device, if there is one.
pub(super) fn on_graphics(check: impl FnOnce(&Arc<dyn Backend>) + Send + 'static) {
    let Some(backend) = graphics() else { return };
    within(LIMIT, move || check(&backend));
}

/// Runs `check` on the fake of CUDA, if it can be compiled.
pub(super) fn on_cuda(check: impl FnOnce(&Arc<dyn Backend>) + Send + 'static) {
    let Some((_, backends)) = fake(Vendor::Cuda, "cuda", 0..1) else { return };
    within(LIMIT, move || check(&backends[0]));
}

/// Runs `check` on the fake of ROCm, if it can be compiled.
pub(super) fn on_rocm(check: impl FnOnce(&Arc<dyn Backend>) + Send + 'static) {
    let Some((_, backends)) = fake(Vendor::Hip, "hip", 0..1) else { return };
    within(LIMIT, move || check(&backends[0]));
}

/// The devices and the placement with which all layers are on `backend`.
pub(super) fn all_on(backend: &Arc<dyn Backend>, n_layer: usize) -> (Vec<Device>, Placement) {
    let device = Device::new(Arc::clone(backend), DeviceId(1), Bytes::MAX);
    (vec![cpu_device(2), device], Placement::all_on(1, n_layer))
}
