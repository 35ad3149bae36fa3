//! Lists devices and opens them.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use hal::{Bytes, DeviceKind, Error};
use simt::native::Native;
use simt::{
    Facts, FoundDevice, LibraryError, Options, Outcome, SimtBackend, normalise_pci_slot,
    sort_and_name,
};

use crate::library::Library;
use crate::vendor::Cuda;

/// The oldest CUDA version whose driver can load the kernels: 12.0.
const MIN_VERSION: c_int = 12000;
/// The oldest compute capability that the kernels run on.
const MIN_CAPABILITY: (c_int, c_int) = (7, 5);

/// All devices that the driver lists, in the order of their PCI slots, including unusable devices.
/// Starts the driver, which can take seconds if the cards are in a sleep state.
///
/// # Errors
/// [`LibraryError`] if the driver is missing, does not work or lists no device.
pub fn devices() -> Result<Vec<FoundDevice>, LibraryError> {
    let library = open_library()?;
    let found: Result<Vec<FoundDevice>, LibraryError> =
        (0..library.count()?).map(|ordinal| describe(&library, ordinal)).collect();
    let found = found?;
    if found.is_empty() {
        return Err(LibraryError::Device);
    }
    Ok(sort_and_name("CUDA", found))
}

/// Opens a device.
///
/// # Errors
/// See [`open_with`].
pub fn open(found: &FoundDevice) -> hal::Result<Arc<SimtBackend<Native<Cuda>>>> {
    open_with(found, Options::default())
}

/// Opens a device with fixed submission options, so that tests can cover all of them.
///
/// # Errors
/// [`Error::Unsupported`] for a device that is too old, [`Error::OutOfMemory`] if no context fits,
/// [`Error::MissingLibrary`] and [`Error::Driver`].
pub fn open_with(
    found: &FoundDevice,
    options: Options,
) -> hal::Result<Arc<SimtBackend<Native<Cuda>>>> {
    if let Some(reason) = found.refusal.clone() {
        let device = found.name.clone();
        return Err(Error::Unsupported { op: "open", device, reason });
    }
    let library = open_library()?;
    let device = library.device(found.ordinal)?;
    let facts = facts(&library, device, found)?;
    let (major, minor) = capability(&library, device)?;
    let target = (10 * major + minor).max(0) as u32;
    let (call, code, context) = library.retain(device);
    match Outcome::of(code) {
        Outcome::Done => {}
        Outcome::OutOfMemory => {
            let (device, label) = (found.name.clone(), "a context".to_owned());
            return Err(Error::OutOfMemory { device, label, requested: Bytes(0), free: Bytes(0) });
        }
        Outcome::Pending | Outcome::Lost | Outcome::Refused => {
            let message = library.text(code);
            return Err(Error::Driver { call: call.to_owned(), code: i64::from(code), message });
        }
    }
    let calls = library.calls.clone();
    SimtBackend::open_with(
        Native::new(Cuda { library, device, context, target }, calls, facts),
        options,
    )
}

/// Loads the driver and checks that it can load the kernels.
fn open_library() -> Result<Library, LibraryError> {
    let library = Library::open()?;
    match library.version()? {
        version if version < MIN_VERSION => Err(LibraryError::Version {
            found: format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
            needed: "CUDA 12.0 (driver 525 or newer)",
        }),
        _ => Ok(library),
    }
}

/// Compute capability, 7 and 5 for 7.5.
fn capability(library: &Library, device: c_int) -> Result<(c_int, c_int), LibraryError> {
    let major = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let minor = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
    Ok((library.attribute(major, device)?, library.attribute(minor, device)?))
}

/// Whether three TF32 products on tensor cores take less time than one FP32 product on the ordinary
/// units. Tensor cores are at least 7 times as fast on server cards, and at most twice as fast on
/// other cards. Source: NVIDIA's tables of peak rates.
fn gains_from_float_mma(capability: (c_int, c_int)) -> bool {
    matches!(capability, (8, 0) | (9, _) | (10, _))
}

/// What memory with a clock in kHz and a bus of this many bits, at two transfers per cycle, transfers in
/// the time of a short launch, but at most a quarter of the L2 cache: two launches may prefetch one
/// weight.
fn prefetch_bytes(clock_khz: u32, bus_bits: u32, l2_bytes: u32) -> u64 {
    /// Microseconds of a launch in a graph with little work.
    const SHORT_LAUNCH: u64 = 3;
    let bytes_per_ms = u64::from(clock_khz) * 2 * u64::from(bus_bits) / 8;
    (bytes_per_ms * SHORT_LAUNCH / 1000).min(u64::from(l2_bytes) / 4)
}

fn describe(library: &Library, ordinal: c_int) -> Result<FoundDevice, LibraryError> {
    let device = library.device(ordinal)?;
    let memory = Bytes(library.total(device)?);
    let (major, minor) = capability(library, device)?;
    let name = library.name(device)?;
    let refusal = ((major, minor) < MIN_CAPABILITY).then(|| {
        let (min_major, min_minor) = MIN_CAPABILITY;
        format!("compute capability {major}.{minor} is too old; {min_major}.{min_minor} (Turing) or newer is required")
    });
    Ok(FoundDevice {
        name: String::new(),
        description: format!("{name}, compute capability {major}.{minor}, {memory}"),
        memory,
        // A missing slot does not make a device unusable.
        pci: library.slot(device).map(|text| normalise_pci_slot(&text)).unwrap_or_default(),
        refusal,
        ordinal,
    })
}

fn facts(library: &Library, device: c_int, found: &FoundDevice) -> Result<Facts, LibraryError> {
    let query = |which| library.attribute(which, device).map(|value| value.max(0) as u32);
    let integrated = query(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    Ok(Facts {
        name: found.name.clone(),
        description: found.description.clone(),
        kind: if integrated { DeviceKind::Integrated } else { DeviceKind::Discrete },
        total: found.memory,
        wave: query(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        n_units: query(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
        shared: query(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        mma: true,
        mma_floats: gains_from_float_mma(capability(library, device)?),
        prefetch: prefetch_bytes(
            query(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            query(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
            query(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        ),
        watchdog: query(Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)? != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetches_are_bounded_by_memory_and_by_the_cache() {
        // An RTX 4090: 10501 MHz, 384 bits, 72 MiB.
        assert_eq!(prefetch_bytes(10_501_000, 384, 72 << 20), 3_024_288);
        // An RTX 2060: 7001 MHz, 192 bits, 3 MiB.
        assert_eq!(prefetch_bytes(7_001_000, 192, 3 << 20), 3 << 18);
        assert_eq!(prefetch_bytes(0, 384, 72 << 20), 0);
    }

    #[test]
    fn server_cards_gain_from_float_mma() {
        assert!([(8, 0), (9, 0), (10, 0), (10, 3)].into_iter().all(gains_from_float_mma));
        assert!(![(7, 5), (8, 6), (8, 9), (12, 0)].into_iter().any(gains_from_float_mma));
    }
}
