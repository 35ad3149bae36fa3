//! Lists devices and opens them.

use std::path::PathBuf;
use std::sync::Arc;

use hal::{Bytes, DeviceInfo, DeviceKind, Error, Result};

use crate::avoided::PlantedFault;
use crate::backend::WgpuBackend;
use crate::error::{Health, driver, one_line};
use crate::facts::{Facts, IMMEDIATES, Tuning};
use crate::gpu::Gpu;
use crate::native::PipelineCacheFile;
use crate::probe;
use crate::work::MAX_WORK;

/// Graphics APIs in order of preference, with the prefix of device names.
const APIS: [(wgpu::Backend, &str); 3] = [
    (wgpu::Backend::Metal, "Metal"),
    (wgpu::Backend::Vulkan, "Vulkan"),
    (wgpu::Backend::Dx12, "D3D"),
];

/// First words of the names that Metal gives to GPUs, and their vendors' PCI ids. wgpu reports the
/// vendor 0 for every GPU of Metal.
const METAL_VENDORS: [(&str, u32); 3] = [("Apple", APPLE), ("AMD", 0x1002), ("Intel", 0x8086)];
const APPLE: u32 = 0x106b;

/// A device that could be opened.
#[derive(Clone, Debug)]
pub struct Adapter {
    adapter: wgpu::Adapter,
    name: String,
    info: wgpu::AdapterInfo,
}

/// Options for opening a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum number of bytes per binding, if below the device's limit.
    pub max_binding: Option<Bytes>,
    /// The folder for the cache of compiled shaders; `None` disables the cache. Only some drivers
    /// export compiled shaders.
    pub pipeline_cache: Option<PathBuf>,
    /// Computes sums in workgroup memory even if the device has subgroups.
    pub no_subgroups: bool,
    /// Maximum number of multiplications per submission with several tokens; `None` for the default
    /// of 2^34. Slow devices need a lower limit.
    pub max_work: Option<u64>,
    /// Tuning constants; `None` for those of the device's class.
    pub tuning: Option<Tuning>,
    /// A fault in the shaders, for tests.
    pub planted_fault: PlantedFault,
}

/// All Vulkan, Metal and DX12 devices. A GPU with several drivers is listed once; discrete GPUs
/// come before integrated GPUs, and software drivers come last.
#[must_use]
pub fn adapters() -> Vec<Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12,
        // No validation layers, and no checks of indirect dispatches: this crate does not use them.
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
    let mut found: Vec<(wgpu::Adapter, wgpu::AdapterInfo)> = found
        .into_iter()
        .map(|adapter| (adapter.get_info(), adapter))
        .map(|(i, a)| (a, i))
        .collect();
    let api = |info: &wgpu::AdapterInfo| APIS.iter().position(|(api, _)| *api == info.backend);
    found.sort_by_key(|(_, info)| (rank(info.device_type), api(info)));
    let mut distinct: Vec<(wgpu::Adapter, wgpu::AdapterInfo)> = Vec::new();
    for (adapter, info) in found {
        if !distinct.iter().any(|(_, other)| same_hardware(other, &info)) {
            distinct.push((adapter, info));
        }
    }
    let mut numbers = [0; APIS.len()];
    let named = distinct.into_iter().filter_map(|(adapter, info)| {
        let at = api(&info)?;
        let name = format!("{}{}", APIS[at].1, numbers[at]);
        numbers[at] += 1;
        Some(Adapter { adapter, name, info })
    });
    named.collect()
}

fn rank(kind: wgpu::DeviceType) -> u32 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

/// Whether two entries are the same card, listed by two drivers or by a driver that is installed
/// twice. Two DX12 entries are always different cards: for two cards of the same model, DX12
/// reports the PCI slot of the first card twice.
fn same_hardware(a: &wgpu::AdapterInfo, b: &wgpu::AdapterInfo) -> bool {
    let same_slot = !a.device_pci_bus_id.is_empty() && a.device_pci_bus_id == b.device_pci_bus_id;
    let same_model = (a.vendor, a.device) == (b.vendor, b.device);
    match (a.backend, b.backend) {
        (wgpu::Backend::Dx12, wgpu::Backend::Dx12) => false,
        (api, other_api) => same_slot || (same_model && api != other_api),
    }
}

/// The PCI vendor id; for a GPU of Metal, that of the vendor in its name.
fn vendor(info: &wgpu::AdapterInfo) -> u32 {
    let named = METAL_VENDORS.iter().find(|(word, _)| info.name.starts_with(word));
    match named {
        Some((_, id)) if info.backend == wgpu::Backend::Metal => *id,
        Some(_) | None => info.vendor,
    }
}

/// Subgroup sizes to try, in this order. The smallest that the driver reports is one that all its
/// shaders have. For Metal, wgpu reports 4, the smallest of any device, but Apple's GPUs have 32.
fn subgroup_sizes(info: &wgpu::AdapterInfo) -> Vec<u32> {
    let of_apple = (vendor(info) == APPLE).then_some(32);
    of_apple.into_iter().chain([info.subgroup_min_size]).collect()
}

/// Limits a binding to 2 GiB: Metal passes the length of a binding to shaders as 32 bits, and
/// truncates larger lengths.
fn limit_bindings(mut limits: wgpu::Limits) -> wgpu::Limits {
    let limit = &mut limits.max_storage_buffer_binding_size;
    *limit = (*limit).min(i32::MAX as u64);
    limits
}

impl Adapter {
    /// `Vulkan0`, `Metal0`, `D3D0`, ...
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of the device and of its driver, and details of the driver.
    #[must_use]
    pub fn description(&self) -> String {
        let parts = [&self.info.name, &self.info.driver, &self.info.driver_info];
        let parts: Vec<&str> = parts.iter().map(|s| s.trim()).filter(|s| !s.is_empty()).collect();
        parts.join(", ")
    }

    /// The PCI slot, `0000:01:00.0`; empty if the driver does not report a slot.
    #[must_use]
    pub fn slot(&self) -> &str {
        &self.info.device_pci_bus_id
    }

    /// The PCI vendor id: 0x10de is NVIDIA, 0x1002 is AMD.
    #[must_use]
    pub fn vendor(&self) -> u32 {
        vendor(&self.info)
    }

    /// Whether this is a software driver, which is used only on request.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device lacks a required feature, [`Error::Driver`].
    pub fn open(&self, options: &Options) -> Result<Arc<WgpuBackend>> {
        let mut limits = limit_bindings(self.adapter.limits());
        let has = self.adapter.features();
        let (n_buffers, n_invocations) = (
            limits.max_storage_buffers_per_shader_stage,
            limits.max_compute_invocations_per_workgroup,
        );
        let reason = match () {
            () if !has.contains(wgpu::Features::IMMEDIATES) => {
                Some("no immediates (push constants)")
            }
            () if limits.max_immediate_size < IMMEDIATES => {
                Some("fewer than 128 bytes of immediates")
            }
            () if n_buffers < 16 => Some("fewer than 16 storage buffers per shader"),
            () if n_invocations < 256 => Some("fewer than 256 invocations per workgroup"),
            () => None,
        };
        if let Some(reason) = reason {
            let (device, reason) = (self.name.clone(), reason.to_owned());
            return Err(Error::Unsupported { op: "open", device, reason });
        }
        if let Some(Bytes(most)) = options.max_binding {
            let limit = &mut limits.max_storage_buffer_binding_size;
            *limit = most.min(*limit);
        }
        let mut features = wgpu::Features::IMMEDIATES;
        let use_cache =
            options.pipeline_cache.is_some() && has.contains(wgpu::Features::PIPELINE_CACHE);
        features.set(wgpu::Features::PIPELINE_CACHE, use_cache);
        let subgroups = has.contains(wgpu::Features::SUBGROUP) && !options.no_subgroups;
        features.set(wgpu::Features::SUBGROUP, subgroups);
        features |= has & wgpu::Features::TIMESTAMP_QUERY;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some(&self.name),
            required_features: features,
            required_limits: limits.clone(),
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = pollster::block_on(self.adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| driver("open", one_line(&error)))?;
        let health = Health::new(&self.name);
        health.watch(&device);
        let default_tuning = || Tuning::of(self.vendor(), self.is_software());
        let tuning = options.tuning.unwrap_or_else(default_tuning);
        let max_work = options.max_work.unwrap_or(MAX_WORK);
        let facts = Facts { limits, tuning, subgroup_size: None, max_work };
        let info = DeviceInfo {
            name: self.name.clone(),
            description: self.description(),
            remark: None,
            kind: self.kind(),
            max_binding: Bytes(facts.limits.max_buffer_size),
            hand_off: true,
        };
        let folder = options.pipeline_cache.as_ref().filter(|_| use_cache);
        let pipelines =
            folder.and_then(|folder| PipelineCacheFile::open(&device, &self.info, folder));
        let mut gpu = Gpu::new(device, queue, facts, health, pipelines)?;
        if subgroups {
            gpu.facts.subgroup_size = match probe::subgroup_size(&gpu, &subgroup_sizes(&self.info))
            {
                // If the driver rejects the probe, sums use workgroup memory.
                Err(Error::Driver { .. }) => None,
                answer => answer?,
            };
        }
        gpu.planted = options.planted_fault.clone();
        Ok(Arc::new(WgpuBackend::new(gpu, info)))
    }

    fn kind(&self) -> DeviceKind {
        match self.info.device_type {
            wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
            wgpu::DeviceType::IntegratedGpu
            | wgpu::DeviceType::VirtualGpu
            | wgpu::DeviceType::Other => DeviceKind::Integrated,
            // In tests, a software driver stands in for a discrete GPU.
            wgpu::DeviceType::Cpu => DeviceKind::Simulated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(api: wgpu::Backend, device: u32, slot: &str, driver: &str) -> wgpu::AdapterInfo {
        wgpu::AdapterInfo {
            vendor: 0x10de,
            device,
            device_pci_bus_id: slot.to_owned(),
            driver: driver.to_owned(),
            ..wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, api)
        }
    }

    #[test]
    fn only_entries_of_the_same_card_are_the_same_hardware() {
        use wgpu::Backend::{Dx12, Vulkan};
        let same = |a: &wgpu::AdapterInfo, b: &wgpu::AdapterInfo| {
            assert_eq!(same_hardware(a, b), same_hardware(b, a));
            same_hardware(a, b)
        };
        let vulkan = card(Vulkan, 1, "0000:01:00.0", "RADV");
        assert!(!same(&vulkan, &card(Vulkan, 1, "0000:02:00.0", "RADV")));
        assert!(same(&vulkan, &card(Vulkan, 1, "0000:01:00.0", "AMDVLK")));
        assert!(same(&vulkan, &vulkan.clone()));
        assert!(same(&vulkan, &card(Dx12, 1, "", "31.0")));
        assert!(!same(&vulkan, &card(Dx12, 2, "", "31.0")));
        // DX12's entries for two equal cards.
        let first = card(Dx12, 1, "0000:01:00.0", "31.0");
        assert!(!same(&first, &first.clone()));
        assert!(same(&vulkan, &first));
    }

    #[test]
    fn gpus_of_metal_have_the_vendor_of_their_name() {
        let gpu = |name: &str, backend: wgpu::Backend, vendor: u32| wgpu::AdapterInfo {
            name: name.to_owned(),
            vendor,
            subgroup_min_size: 4,
            ..wgpu::AdapterInfo::new(wgpu::DeviceType::IntegratedGpu, backend)
        };
        let apple = gpu("Apple M3 Max", wgpu::Backend::Metal, 0);
        assert_eq!((vendor(&apple), subgroup_sizes(&apple)), (APPLE, vec![32, 4]));
        let amd = gpu("AMD Radeon Pro 5500M", wgpu::Backend::Metal, 0);
        assert_eq!((vendor(&amd), subgroup_sizes(&amd)), (0x1002, vec![4]));
        let other = gpu("Apple", wgpu::Backend::Vulkan, 0x10de);
        assert_eq!((vendor(&other), subgroup_sizes(&other)), (0x10de, vec![4]));
    }

    #[test]
    fn bindings_are_limited_to_31_bits() {
        let bound = |reported: u64| {
            let limits = wgpu::Limits::default();
            let limits = wgpu::Limits { max_storage_buffer_binding_size: reported, ..limits };
            limit_bindings(limits).max_storage_buffer_binding_size
        };
        assert_eq!(bound(128 << 20), 128 << 20);
        assert_eq!(bound(64 << 30), i32::MAX as u64);
    }
}
