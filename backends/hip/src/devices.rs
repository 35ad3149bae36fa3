//! Lists devices and opens them.

use std::ffi::c_int;
use std::path::Path;
use std::sync::Arc;

use hal::{Bytes, DeviceKind};
use simt::native::Native;
use simt::{
    Facts, FoundDevice, LibraryError, Options, SimtBackend, normalise_pci_slot, sort_and_name,
};

use crate::abi::Attribute;
use crate::embedded::{EMBEDDED, EmbeddedUnit, has_arch, strip_target_features};
use crate::helper::Compilation;
use crate::library::Library;
use crate::vendor::Hip;

/// The oldest supported version of HIP: 5.0.
const MIN_VERSION: c_int = 50_000_000;
/// Remark about a device whose driver cannot load the embedded kernels.
pub(crate) const NOT_LOADED: &str =
    "its ROCm cannot load the embedded kernels, so they are compiled on first use";

/// All devices that ROCm lists, in the order of their PCI slots.
///
/// # Errors
/// [`LibraryError`] if ROCm is missing, does not work or lists no device.
pub fn devices() -> Result<Vec<FoundDevice>, LibraryError> {
    let library = open_library()?;
    let found: Result<Vec<FoundDevice>, LibraryError> =
        (0..library.count()?).map(|ordinal| describe(&library, ordinal)).collect();
    let mut found = found?;
    if found.is_empty() {
        return Err(LibraryError::Device);
    }
    // Without the compiler a device is usable only if its kernels are embedded.
    if let Err(missing) = library.compiler() {
        for device in &mut found {
            let ready = has_arch(EMBEDDED, &library.arch(device.ordinal)?);
            device.refusal = (!ready).then(|| missing.to_string());
        }
        if found.iter().all(|device| device.refusal.is_some()) {
            return Err(missing);
        }
    }
    Ok(sort_and_name("HIP", found))
}

/// Opens a device, with a cache of compiled kernels in `folder`.
///
/// # Errors
/// See [`open_with`].
pub fn open(
    found: &FoundDevice,
    folder: Option<&Path>,
) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    let folder = folder.map(Path::to_owned);
    open_with(found, &Compilation { folder, ..Compilation::default() }, Options::default())
}

/// Opens a device with fixed submission options, so that tests can cover all of them.
///
/// # Errors
/// [`hal::Error::Unsupported`] if the kernels can be neither loaded nor compiled,
/// [`hal::Error::Driver`].
pub fn open_with(
    found: &FoundDevice,
    compilation: &Compilation,
    options: Options,
) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    open_from(found, compilation, options, EMBEDDED)
}

/// [`open_with`], with `embedded` as the embedded kernels.
pub(crate) fn open_from(
    found: &FoundDevice,
    compilation: &Compilation,
    options: Options,
    embedded: &'static [EmbeddedUnit],
) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    if let Some(reason) = found.refusal.clone() {
        let device = found.name.clone();
        return Err(hal::Error::Unsupported { op: "open", device, reason });
    }
    let library = open_library()?;
    let (arch, can_compile) = (library.arch(found.ordinal)?, library.compiler().is_ok());
    match try_open(library, found, compilation, options, embedded) {
        // Old versions of ROCm may fail to load code from a newer compiler.
        Err(hal::Error::Driver { .. }) if can_compile && has_arch(embedded, &arch) => {
            let description = format!("{}; {NOT_LOADED}", found.description);
            let found = FoundDevice { description, ..found.clone() };
            try_open(open_library()?, &found, compilation, options, &[])
        }
        opened => opened,
    }
}

fn try_open(
    library: Library,
    found: &FoundDevice,
    compilation: &Compilation,
    options: Options,
    embedded: &'static [EmbeddedUnit],
) -> hal::Result<Arc<SimtBackend<Native<Hip>>>> {
    let compiler = library.compiler();
    let device = found.ordinal;
    let arch = library.arch(device)?;
    let facts = facts(&library, found, &arch)?;
    let (calls, compilation) = (library.calls.clone(), compilation.clone());
    // This query needs ROCm 5.4 or newer.
    let clock = library.attribute(Attribute::WallClockRate, device).ok();
    let clock = clock.filter(|khz| *khz > 0);
    let version = library.runtime_version()?;
    let vendor = Hip { library, device, arch, compiler, embedded, version, clock, compilation };
    SimtBackend::open_with(Native::new(vendor, calls, facts), options)
}

/// Loads ROCm and checks its version.
fn open_library() -> Result<Library, LibraryError> {
    let library = Library::open()?;
    match library.runtime_version()? {
        version if version < MIN_VERSION => Err(LibraryError::Version {
            found: format!("HIP {}.{}", version / 10_000_000, version / 100_000 % 100),
            needed: "ROCm 5.0",
        }),
        _ => Ok(library),
    }
}

fn describe(library: &Library, ordinal: c_int) -> Result<FoundDevice, LibraryError> {
    let memory = Bytes(library.total(ordinal)?);
    let (name, arch) = (library.name(ordinal)?, library.arch(ordinal)?);
    // The rest of the name lists target features.
    let arch = strip_target_features(&arch);
    Ok(FoundDevice {
        name: String::new(),
        description: format!("{name}, {arch}, {memory}"),
        memory,
        // A missing slot does not make a device unusable.
        pci: library.slot(ordinal).map(|text| normalise_pci_slot(&text)).unwrap_or_default(),
        refusal: None,
        ordinal,
    })
}

/// Number of compute units. On cards whose compute units form pairs, one attribute counts the pairs
/// and another, which not every version of HIP has, counts the units; the larger number is used.
fn n_units(query: &dyn Fn(Attribute) -> Result<u32, LibraryError>) -> Result<u32, LibraryError> {
    let physical = query(Attribute::PhysicalMultiProcessorCount).unwrap_or(0);
    Ok(physical.max(query(Attribute::MultiprocessorCount)?).max(1))
}

/// Whether kernels may use matrix instructions: the architectures for which `HAS_MMA` in
/// `kernels-hip/dialect.h` is 1, if the compiler supports the instructions.
fn has_matrix_units(arch: &str) -> bool {
    let arch = strip_target_features(arch);
    let cdna = ["gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"];
    arch.starts_with("gfx11") || ["gfx1200", "gfx1201"].contains(&arch) || cdna.contains(&arch)
}

fn facts(library: &Library, found: &FoundDevice, arch: &str) -> Result<Facts, LibraryError> {
    let query = |which| library.attribute(which, found.ordinal).map(|value| value.max(0) as u32);
    let integrated = query(Attribute::Integrated)? != 0;
    Ok(Facts {
        name: found.name.clone(),
        description: found.description.clone(),
        kind: if integrated { DeviceKind::Integrated } else { DeviceKind::Discrete },
        total: found.memory,
        wave: query(Attribute::WarpSize)?,
        n_units: n_units(&query)?,
        shared: query(Attribute::MaxSharedMemoryPerBlock)?,
        mma: has_matrix_units(arch),
        mma_floats: false,
        // No instruction before gfx12 reads into the L2 cache alone.
        prefetch: 0,
        watchdog: query(Attribute::KernelExecTimeout)? != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_supported_matrix_units_are_used() {
        for arch in ["gfx1100", "gfx1151", "gfx1201", "gfx90a:sramecc+:xnack-", "gfx942"] {
            assert!(has_matrix_units(arch), "{arch}");
        }
        // gfx1250 does not have the matrix instructions of its predecessors.
        for arch in ["gfx906", "gfx1030", "gfx1250", ""] {
            assert!(!has_matrix_units(arch), "{arch}");
        }
    }
}
