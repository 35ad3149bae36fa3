//! Which devices there are, and how one is opened.

use std::ffi::c_int;
use std::path::Path;
use std::sync::Arc;

use hal::{Bytes, DeviceKind};
use hip_sys::hiprt::hipDeviceAttribute_t as Attribute;
use simt::native::Native;
use simt::{Facts, Found, Missing, Options, SimtBackend, in_order, slot};

use crate::embedded::{EMBEDDED, Embedded, base, has};
use crate::library::Library;
use crate::vendor::Hip;

/// The oldest version of HIP.
const NEEDED: c_int = 50_000_000;
/// What is said of a device that does not take the kernels of this program.
pub(crate) const UNLOADED: &str = "its ROCm does not load the kernels that are in this program, and compiles them when they are first used";

/// Every device that ROCm shows, in the order of their slots.
///
/// # Errors
/// [`Missing`], if there is no ROCm that works, or no device.
pub fn devices() -> Result<Vec<Found>, Missing> {
    let library = ready()?;
    let found: Result<Vec<Found>, Missing> =
        (0..library.count()?).map(|ordinal| look_at(&library, ordinal)).collect();
    let mut found = found?;
    if found.is_empty() {
        return Err(Missing::Device);
    }
    // Without it a device is of use only if this program has its kernels.
    if let Err(missing) = library.compiler() {
        for device in &mut found {
            let ready = has(EMBEDDED, &library.arch(device.ordinal)?);
            device.refusal = (!ready).then(|| missing.to_string());
        }
        if found.iter().all(|device| device.refusal.is_some()) {
            return Err(missing);
        }
    }
    Ok(in_order("HIP", found))
}

/// Opens a device. Compiled kernels are kept in `folder`.
///
/// # Errors
/// Those of [`open_with`].
pub fn open(found: &Found, folder: Option<&Path>) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    open_with(found, folder, Options::default())
}

/// Opens a device, given work in a way that is set: tests look at all of them.
///
/// # Errors
/// [`hal::Error::Unsupported`] for one without a compiler, [`hal::Error::Driver`].
pub fn open_with(
    found: &Found,
    folder: Option<&Path>,
    options: Options,
) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    open_from(found, folder, options, EMBEDDED)
}

/// [`open_with`], where the program has these kernels.
pub(crate) fn open_from(
    found: &Found,
    folder: Option<&Path>,
    options: Options,
    embedded: &'static [Embedded],
) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    if let Some(reason) = found.refusal.clone() {
        let device = found.name.clone();
        return Err(hal::Error::Unsupported { op: "open", device, reason });
    }
    let library = ready()?;
    let (arch, can_compile) = (library.arch(found.ordinal)?, library.compiler().is_ok());
    match open_one(library, found, folder, options, embedded) {
        // An old ROCm may not load what a new compiler has made.
        Err(hal::Error::Driver { .. }) if can_compile && has(embedded, &arch) => {
            let description = format!("{}; {UNLOADED}", found.description);
            let found = Found { description, ..found.clone() };
            open_one(ready()?, &found, folder, options, &[])
        }
        opened => opened,
    }
}

fn open_one(
    library: Library,
    found: &Found,
    folder: Option<&Path>,
    options: Options,
    embedded: &'static [Embedded],
) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    let compiler = library.compiler();
    let device = found.ordinal;
    let arch = library.arch(device)?;
    let facts = facts(&library, found, &arch)?;
    let (calls, folder) = (library.calls.clone(), folder.map(Path::to_owned));
    // ROCm before 5.4 does not know the question.
    let clock = library.attribute(Attribute::hipDeviceAttributeWallClockRate, device).ok();
    let clock = clock.filter(|khz| *khz > 0);
    let version = library.runtime()?;
    let vendor = Hip { library, device, arch, compiler, embedded, version, clock, folder };
    SimtBackend::open_with(Native::new(vendor, calls, facts), options)
}

/// A ROCm that can be used.
fn ready() -> Result<Library, Missing> {
    let library = Library::open()?;
    match library.runtime()? {
        version if version < NEEDED => Err(Missing::Version {
            found: format!("HIP {}.{}", version / 10_000_000, version / 100_000 % 100),
            needed: "ROCm 5.0",
        }),
        _ => Ok(library),
    }
}

fn look_at(library: &Library, ordinal: c_int) -> Result<Found, Missing> {
    let memory = Bytes(library.total(ordinal)?);
    let (name, arch) = (library.name(ordinal)?, library.arch(ordinal)?);
    // What follows are settings of the card.
    let arch = base(&arch);
    Ok(Found {
        name: String::new(),
        description: format!("{name}, {arch}, {memory}"),
        memory,
        // A device without a slot is one all the same.
        pci: library.slot(ordinal).map(|text| slot(&text)).unwrap_or_default(),
        refusal: None,
        ordinal,
    })
}

/// Compute units. On cards that pair them the usual answer counts the pairs, so the one about the hardware is asked first;
/// not every version knows that question.
fn n_units(ask: &dyn Fn(Attribute) -> Result<u32, Missing>) -> Result<u32, Missing> {
    let physical = ask(Attribute::hipDeviceAttributePhysicalMultiProcessorCount).unwrap_or(0);
    Ok(physical.max(ask(Attribute::hipDeviceAttributeMultiprocessorCount)?).max(1))
}

/// Whether kernels may multiply small matrices: what `HAS_MMA` is in `kernels-hip/dialect.h`, where the compiler knows how.
fn has_matrix_units(arch: &str) -> bool {
    let arch = base(arch);
    let cdna = ["gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"];
    arch.starts_with("gfx11") || ["gfx1200", "gfx1201"].contains(&arch) || cdna.contains(&arch)
}

fn facts(library: &Library, found: &Found, arch: &str) -> Result<Facts, Missing> {
    let ask = |which| library.attribute(which, found.ordinal).map(|value| value.max(0) as u32);
    let integrated = ask(Attribute::hipDeviceAttributeIntegrated)? != 0;
    Ok(Facts {
        name: found.name.clone(),
        description: found.description.clone(),
        kind: if integrated { DeviceKind::Integrated } else { DeviceKind::Discrete },
        total: found.memory,
        wave: ask(Attribute::hipDeviceAttributeWarpSize)?,
        n_units: n_units(&ask)?,
        shared: ask(Attribute::hipDeviceAttributeMaxSharedMemoryPerBlock)?,
        mma: has_matrix_units(arch),
        mma_floats: false,
        watchdog: ask(Attribute::hipDeviceAttributeKernelExecTimeout)? != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_units_are_those_that_kernels_know() {
        for arch in ["gfx1100", "gfx1151", "gfx1201", "gfx90a:sramecc+:xnack-", "gfx942"] {
            assert!(has_matrix_units(arch), "{arch}");
        }
        // The last has others than those before it.
        for arch in ["gfx906", "gfx1030", "gfx1250", ""] {
            assert!(!has_matrix_units(arch), "{arch}");
        }
    }
}
