//! Lists devices and opens them.

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

/// The oldest supported version of HIP.
const NEEDED: c_int = 50_000_000;
/// Remark about a device that cannot load the embedded kernels.
pub(crate) const UNLOADED: &str =
    "its ROCm cannot load the embedded kernels, so they are compiled on first use";

/// All devices that ROCm lists, in the order of their PCI slots.
///
/// # Errors
/// [`Missing`] if no ROCm works or there is no device.
pub fn devices() -> Result<Vec<Found>, Missing> {
    let library = ready()?;
    let found: Result<Vec<Found>, Missing> =
        (0..library.count()?).map(|ordinal| look_at(&library, ordinal)).collect();
    let mut found = found?;
    if found.is_empty() {
        return Err(Missing::Device);
    }
    // Without the compiler a device is usable only if its kernels are embedded.
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

/// Opens a device. Compiled kernels are cached in `folder`.
///
/// # Errors
/// See [`open_with`].
pub fn open(found: &Found, folder: Option<&Path>) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    open_with(found, folder, Options::default())
}

/// Opens a device with fixed submission options, so that tests can cover all of them.
///
/// # Errors
/// [`hal::Error::Unsupported`] for a device without a compiler, [`hal::Error::Driver`].
pub fn open_with(
    found: &Found,
    folder: Option<&Path>,
    options: Options,
) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    open_from(found, folder, options, EMBEDDED)
}

/// [`open_with`] with these embedded kernels.
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
        // An old ROCm may be unable to load code of a newer compiler.
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
    // This query needs ROCm 5.4 or newer.
    let clock = library.attribute(Attribute::hipDeviceAttributeWallClockRate, device).ok();
    let clock = clock.filter(|khz| *khz > 0);
    let version = library.runtime()?;
    let vendor = Hip { library, device, arch, compiler, embedded, version, clock, folder };
    SimtBackend::open_with(Native::new(vendor, calls, facts), options)
}

/// Loads ROCm and checks its version.
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
    // The rest of the name are settings of the card.
    let arch = base(&arch);
    Ok(Found {
        name: String::new(),
        description: format!("{name}, {arch}, {memory}"),
        memory,
        // A missing slot does not make a device unusable.
        pci: library.slot(ordinal).map(|text| slot(&text)).unwrap_or_default(),
        refusal: None,
        ordinal,
    })
}

/// Number of compute units. On cards that pair them the usual attribute counts the pairs, so the
/// physical number is queried first; not every version supports that query.
fn n_units(ask: &dyn Fn(Attribute) -> Result<u32, Missing>) -> Result<u32, Missing> {
    let physical = ask(Attribute::hipDeviceAttributePhysicalMultiProcessorCount).unwrap_or(0);
    Ok(physical.max(ask(Attribute::hipDeviceAttributeMultiprocessorCount)?).max(1))
}

/// Whether kernels may use matrix instructions: the condition of `HAS_MMA` in
/// `kernels-hip/dialect.h`, if the compiler supports them.
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
        // gfx1250 has other matrix instructions than its predecessors.
        for arch in ["gfx906", "gfx1030", "gfx1250", ""] {
            assert!(!has_matrix_units(arch), "{arch}");
        }
    }
}
