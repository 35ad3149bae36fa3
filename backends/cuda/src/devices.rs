//! Lists devices and opens them.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use hal::{Bytes, DeviceKind, Error};
use simt::native::Native;
use simt::{Facts, Found, Missing, Options, Outcome, SimtBackend, in_order, slot};

use crate::library::Library;
use crate::vendor::Cuda;

/// The CUDA version that the kernels were compiled for.
const NEEDED: c_int = 12000;
/// The oldest architecture that the kernels run on.
const OLDEST: (c_int, c_int) = (7, 5);

/// All devices that the driver lists, in the order of their PCI slots, including unusable ones.
/// Starts the driver, which takes a while if the cards are in a sleep state.
///
/// # Errors
/// [`Missing`] if no driver works or there is no device.
pub fn devices() -> Result<Vec<Found>, Missing> {
    let library = ready()?;
    let found: Result<Vec<Found>, Missing> =
        (0..library.count()?).map(|ordinal| look_at(&library, ordinal)).collect();
    let found = found?;
    if found.is_empty() {
        return Err(Missing::Device);
    }
    Ok(in_order("CUDA", found))
}

/// Opens a device.
///
/// # Errors
/// See [`open_with`].
pub fn open(found: &Found) -> hal::Result<Arc<SimtBackend<Native<Cuda>>>> {
    open_with(found, Options::default())
}

/// Opens a device with fixed submission options, so that tests can cover all of them.
///
/// # Errors
/// [`Error::Unsupported`] for a device that is too old, [`Error::OutOfMemory`] if no context fits,
/// [`Error::MissingLibrary`] and [`Error::Driver`].
pub fn open_with(found: &Found, options: Options) -> hal::Result<Arc<SimtBackend<Native<Cuda>>>> {
    if let Some(reason) = found.refusal.clone() {
        let device = found.name.clone();
        return Err(Error::Unsupported { op: "open", device, reason });
    }
    let library = ready()?;
    let device = library.device(found.ordinal)?;
    let facts = facts(&library, device, found)?;
    let (major, minor) = capability(&library, device)?;
    let target = (10 * major + minor).max(0) as u32;
    let (call, code, context) = library.retain(device);
    match Outcome::of(code) {
        Outcome::Done => {}
        Outcome::OutOfMemory => {
            let (device, label) = (found.name.clone(), "a context".to_owned());
            return Err(Error::OutOfMemory { device, label, wanted: Bytes(0), free: Bytes(0) });
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
fn ready() -> Result<Library, Missing> {
    let library = Library::open()?;
    match library.version()? {
        version if version < NEEDED => Err(Missing::Version {
            found: format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
            needed: "CUDA 12.0 (driver 525 or newer)",
        }),
        _ => Ok(library),
    }
}

/// Compute capability, 7 and 5 for 7.5.
fn capability(library: &Library, device: c_int) -> Result<(c_int, c_int), Missing> {
    let major = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let minor = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
    Ok((library.attribute(major, device)?, library.attribute(minor, device)?))
}

/// Whether tensor cores multiply floats so fast that three of their products take less time than
/// one on the ordinary units: on server cards they are at least 7 times as fast, on other cards
/// equally fast or twice as fast. Source: NVIDIA's tables of peak rates, TF32 and FP32.
fn floats_gain(capability: (c_int, c_int)) -> bool {
    matches!(capability, (8, 0) | (9, _) | (10, _))
}

fn look_at(library: &Library, ordinal: c_int) -> Result<Found, Missing> {
    let device = library.device(ordinal)?;
    let memory = Bytes(library.total(device)?);
    let (major, minor) = capability(library, device)?;
    let name = library.name(device)?;
    let refusal = ((major, minor) < OLDEST).then(|| {
        let (needed, and) = OLDEST;
        format!("compute capability {major}.{minor} is too old: {needed}.{and} (Turing) or newer required")
    });
    Ok(Found {
        name: String::new(),
        description: format!("{name}, compute capability {major}.{minor}, {memory}"),
        memory,
        // A missing slot does not make a device unusable.
        pci: library.slot(device).map(|text| slot(&text)).unwrap_or_default(),
        refusal,
        ordinal,
    })
}

fn facts(library: &Library, device: c_int, found: &Found) -> Result<Facts, Missing> {
    let ask = |which| library.attribute(which, device).map(|value| value.max(0) as u32);
    let integrated = ask(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    Ok(Facts {
        name: found.name.clone(),
        description: found.description.clone(),
        kind: if integrated { DeviceKind::Integrated } else { DeviceKind::Discrete },
        total: found.memory,
        wave: ask(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        n_units: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
        shared: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        mma: true,
        mma_floats: floats_gain(capability(library, device)?),
        watchdog: ask(Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)? != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_gain_on_servers() {
        assert!([(8, 0), (9, 0), (10, 0), (10, 3)].into_iter().all(floats_gain));
        assert!(![(7, 5), (8, 6), (8, 9), (12, 0)].into_iter().any(floats_gain));
    }
}
