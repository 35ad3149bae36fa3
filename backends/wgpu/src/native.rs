//! Two features for which wgpu has no safe interface: a device's free memory, and a cache file of
//! compiled shaders.
#![allow(unsafe_code, reason = "wgpu has no safe interface for these features")]

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use hal::MemoryReport;

/// First bytes of a file of compiled shaders.
const MAGIC: &[u8; 8] = b"TCWGPU01";
/// Larger files are not read; drivers keep up to some MB for the shaders here.
const MAX_CACHE: u64 = 1 << 28;

/// Total and free memory of a device's largest device-local heap. Both are unknown without Vulkan;
/// free memory is also unknown without Vulkan 1.1 and the extension `VK_EXT_memory_budget`.
pub(crate) fn memory(device: &wgpu::Device) -> MemoryReport {
    vulkan_memory(device).unwrap_or_default()
}

#[cfg(any(target_os = "linux", target_os = "windows"))]
fn vulkan_memory(device: &wgpu::Device) -> Option<MemoryReport> {
    use ash::vk;
    use hal::Bytes;

    // SAFETY: the handle is not used to create or destroy anything, and the guard lives to the end
    // of this function.
    let raw = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = raw.shared_instance();
    let (instance, version) = (instance.raw_instance(), instance.instance_api_version());
    let physical = raw.raw_physical_device();
    // SAFETY: the physical device is one of this instance, which the device keeps alive.
    let properties = unsafe { instance.get_physical_device_memory_properties(physical) };
    let local = |heap: &vk::MemoryHeap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL);
    let heaps = properties.memory_heaps_as_slice().iter().enumerate();
    let (index, heap) = heaps.filter(|(_, heap)| local(heap)).max_by_key(|(_, heap)| heap.size)?;
    let has_budget = raw.enabled_device_extensions().contains(&ash::ext::memory_budget::NAME);
    // The call for extended properties exists from Vulkan 1.1 on.
    let free = (has_budget && version >= vk::API_VERSION_1_1).then(|| {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut query = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: as above, and both structures are fully initialised.
        unsafe { instance.get_physical_device_memory_properties2(physical, &mut query) };
        Bytes(budget.heap_budget[index].saturating_sub(budget.heap_usage[index]))
    });
    Some(MemoryReport { total: Some(Bytes(heap.size)), free })
}

#[cfg(not(any(target_os = "linux", target_os = "windows")))]
fn vulkan_memory(_device: &wgpu::Device) -> Option<MemoryReport> {
    None
}

/// A cache file of compiled shaders, one per device model, written when the device is closed
/// if its contents changed.
#[derive(Debug)]
pub(crate) struct PipelineCacheFile {
    cache: wgpu::PipelineCache,
    path: PathBuf,
    /// Contents of the file when it was read.
    saved: Option<Vec<u8>>,
}

impl PipelineCacheFile {
    /// The cache in `folder` for this device, or an empty one; `None` if the driver does not
    /// export compiled shaders.
    pub(crate) fn open(
        device: &wgpu::Device,
        info: &wgpu::AdapterInfo,
        folder: &Path,
    ) -> Option<PipelineCacheFile> {
        let path = folder.join(wgpu::util::pipeline_cache_key(info)?);
        let file = own_file::read_own(&path, MAX_CACHE).ok();
        let saved = file.and_then(|file| Some(cache_data(&file)?.to_vec()));
        let descriptor = wgpu::PipelineCacheDescriptor {
            label: Some("pipeline cache"),
            data: saved.as_deref(),
            fallback: true,
        };
        // SAFETY: the checksum shows that an earlier cache wrote the bytes; wgpu and the driver
        // check that they fit this device and driver, and use an empty cache otherwise.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(PipelineCacheFile { cache, path, saved })
    }

    pub(crate) fn cache(&self) -> &wgpu::PipelineCache {
        &self.cache
    }

    fn save(&self) -> std::io::Result<()> {
        let Some(data) = self.cache.get_data().filter(|data| self.saved.as_ref() != Some(data))
        else {
            return Ok(());
        };
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // A name that no other process or user takes.
        let random = RandomState::new().hash_one(0);
        let temporary = self.path.with_extension(format!("{random:016x}.tmp"));
        let file = [&MAGIC[..], &checksum(&data).to_le_bytes(), &data].concat();
        let mut out = fs::File::create_new(&temporary)?;
        let written = out.write_all(&file).and_then(|()| fs::rename(&temporary, &self.path));
        if written.is_err() {
            // An error here is ignored: the first error is returned.
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

impl Drop for PipelineCacheFile {
    fn drop(&mut self) {
        // Saving may fail: without the file, the next start compiles the shaders again.
        let _ = self.save();
    }
}

/// The cache's bytes in a file; `None` if [`MAGIC`] or the checksum does not match.
fn cache_data(file: &[u8]) -> Option<&[u8]> {
    let (magic, rest) = file.split_first_chunk::<8>()?;
    let (expected, data) = rest.split_first_chunk::<8>()?;
    (magic == MAGIC && u64::from_le_bytes(*expected) == checksum(data)).then_some(data)
}

/// 64-bit FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_cache_file_is_rejected() {
        let data = b"compiled";
        let file = [&MAGIC[..], &checksum(data).to_le_bytes(), data].concat();
        assert_eq!(cache_data(&file), Some(&data[..]));
        for i in 0..file.len() {
            let mut damaged = file.clone();
            damaged[i] ^= 1;
            assert_eq!(cache_data(&damaged), None, "byte {i}");
            assert_eq!(cache_data(&file[..i]), None, "{i} bytes");
        }
    }
}
