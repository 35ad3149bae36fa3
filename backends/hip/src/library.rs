//! The functions of HIP's library that this backend calls.

#![allow(unsafe_code, reason = "functions of a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint};

use libloading::Library as File;
use simt::native::{Calls, Function, GraphCalls};
use simt::{LibraryError, Outcome};

use crate::abi::{ARCH, ARCH_BEFORE_6, Attribute, INVALID_DEVICE, NO_DEVICE};
use crate::compiler::Compiler;

/// Reads text about a device: destination, its size, device.
type GetText = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
/// Returns the name or the description of an error code.
type GetErrorString = unsafe extern "C" fn(c_int) -> *const c_char;
/// Reads the properties of a device.
type GetProperties = unsafe extern "C" fn(*mut Properties, c_int) -> c_int;

/// Folders to search for libraries: the system's search path, then the folder to which ROCm's own
/// installer writes.
const FOLDERS: [&str; 2] = ["", "/opt/rocm/lib/"];

/// Version suffixes of the libraries' names, newest first.
const VERSIONS: [&str; 4] = [".7", ".6", ".5", ""];

/// Buffer for a device's properties, which grow slightly with each version.
#[repr(C, align(16))]
struct Properties([u8; 8 << 10]);

/// The architecture's name is in the buffer.
const _: () = assert!(
    ARCH_BEFORE_6 + 256 <= size_of::<Properties>() && ARCH + 256 <= size_of::<Properties>()
);

/// The initialised HIP library.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    file: &'static File,
    /// Version suffix of the library's name.
    suffix: &'static str,
    count: Function<unsafe extern "C" fn(*mut c_int) -> c_int>,
    runtime_version: Function<unsafe extern "C" fn(*mut c_int) -> c_int>,
    name: Function<GetText>,
    slot: Function<GetText>,
    attribute: Function<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>,
    total: Function<unsafe extern "C" fn(*mut usize, c_int) -> c_int>,
    properties: (Function<GetProperties>, usize),
    pub(crate) set_device: Function<unsafe extern "C" fn(c_int) -> c_int>,
    error_name: Function<GetErrorString>,
    error_text: Function<GetErrorString>,
    pub(crate) calls: Calls,
}

/// Loads the newest version in the first folder that has one; returns it with the version's suffix.
fn open(name: &str, versions: &[&'static str]) -> Option<(&'static File, &'static str)> {
    let candidates = FOLDERS.iter().flat_map(|folder| versions.iter().map(move |v| (folder, v)));
    candidates.into_iter().find_map(|(folder, version)| {
        // SAFETY: loading a library runs its code; the library of this name in these folders is
        // ROCm's.
        let file = unsafe { File::new(format!("{folder}{name}.so{version}")) }.ok()?;
        // Never unloaded, because the library's threads may still run its code.
        Some((&*Box::leak(Box::new(file)), *version))
    })
}

/// The compiler of the ROCm whose libraries have this suffix, without HIP.
///
/// # Errors
/// As [`Library::compiler`].
pub(crate) fn compiler_of(suffix: &str) -> Result<Compiler, LibraryError> {
    let suffix = VERSIONS.into_iter().find(|version| *version == suffix).unwrap_or_default();
    let hip = open("libamdhip64", &[suffix]);
    compiler_in(hip.map(|(file, _)| file), suffix)
}

fn compiler_in(hip: Option<&'static File>, suffix: &'static str) -> Result<Compiler, LibraryError> {
    let matching = open("libhiprtc", &[suffix]);
    let matching = matching.map(|(file, _)| Compiler::find(file));
    if let Some(Ok(compiler)) = matching {
        return Ok(compiler);
    }
    if let Some(Ok(compiler)) = hip.map(Compiler::find) {
        return Ok(compiler);
    }
    let (file, _) = open("libhiprtc", &VERSIONS)
        .ok_or(LibraryError::Library { name: "libhiprtc.so", package: "ROCm" })?;
    Compiler::find(file)
}

impl Library {
    /// Loads and initialises HIP.
    ///
    /// # Errors
    /// [`LibraryError`] with the cause.
    pub(crate) fn open() -> Result<Library, LibraryError> {
        let missing = LibraryError::Library { name: "libamdhip64.so", package: "ROCm" };
        let (file, suffix) = open("libamdhip64", &VERSIONS).ok_or(missing)?;
        let init: Function<unsafe extern "C" fn(c_uint) -> c_int> = find(file, "hipInit")?;
        let properties = match find(file, "hipGetDevicePropertiesR0600") {
            Ok(query) => (query, ARCH),
            Err(_) => (find(file, "hipGetDeviceProperties")?, ARCH_BEFORE_6),
        };
        let library = Library {
            file,
            suffix,
            count: find(file, "hipGetDeviceCount")?,
            runtime_version: find(file, "hipRuntimeGetVersion")?,
            name: find(file, "hipDeviceGetName")?,
            slot: find(file, "hipDeviceGetPCIBusId")?,
            attribute: find(file, "hipDeviceGetAttribute")?,
            total: find(file, "hipDeviceTotalMem")?,
            properties,
            set_device: find(file, "hipSetDevice")?,
            error_name: find(file, "hipGetErrorName")?,
            error_text: find(file, "hipGetErrorString")?,
            calls: calls(file)?,
        };
        // SAFETY: the flags must be 0.
        let code = unsafe { (init.call)(0) };
        library.check_devices(&init, code)?;
        Ok(library)
    }

    /// The compiler of the same ROCm (a separate library, or in old versions part of this one), or
    /// else the newest one found.
    ///
    /// # Errors
    /// [`LibraryError::Library`], [`LibraryError::Function`].
    pub(crate) fn compiler(&self) -> Result<Compiler, LibraryError> {
        compiler_in(Some(self.file), self.suffix)
    }

    /// Version suffix of the library's name.
    pub(crate) fn suffix(&self) -> &'static str {
        self.suffix
    }

    /// The version of HIP, 50221153 for 5.2.
    pub(crate) fn runtime_version(&self) -> Result<c_int, LibraryError> {
        let mut version = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.runtime_version.call)(&raw mut version) };
        self.check(&self.runtime_version, code).map(|()| version)
    }

    pub(crate) fn count(&self) -> Result<c_int, LibraryError> {
        let mut count = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.count.call)(&raw mut count) };
        self.check_devices(&self.count, code).map(|()| count)
    }

    pub(crate) fn name(&self, device: c_int) -> Result<String, LibraryError> {
        self.device_text(&self.name, device)
    }

    pub(crate) fn slot(&self, device: c_int) -> Result<String, LibraryError> {
        self.device_text(&self.slot, device)
    }

    fn device_text(&self, call: &Function<GetText>, device: c_int) -> Result<String, LibraryError> {
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: the call writes less than the given size, and only before it returns.
        let code = unsafe { (call.call)(text.as_mut_ptr(), 255, device) };
        self.check(call, code)?;
        // SAFETY: the last byte is zero whatever the call has written before it.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().trim().to_owned())
    }

    /// The compiler's target for a device: `gfx90a:sramecc+:xnack-`.
    pub(crate) fn arch(&self, device: c_int) -> Result<String, LibraryError> {
        let (query, at) = &self.properties;
        let mut properties = Box::new(Properties([0; 8 << 10]));
        // SAFETY: the buffer is several times as large as any version's structure.
        let code = unsafe { (query.call)(&raw mut *properties, device) };
        self.check(query, code)?;
        find_arch(&properties.0, *at).ok_or_else(|| LibraryError::Driver {
            call: query.name,
            code: 0,
            text: "the properties contain no architecture (gfx...)".to_owned(),
        })
    }

    pub(crate) fn attribute(&self, which: Attribute, device: c_int) -> Result<c_int, LibraryError> {
        let mut value = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.attribute.call)(&raw mut value, which as c_int, device) };
        self.check(&self.attribute, code).map(|()| value)
    }

    /// Physical memory of a device, in bytes.
    pub(crate) fn total(&self, device: c_int) -> Result<u64, LibraryError> {
        let mut bytes = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.total.call)(&raw mut bytes, device) };
        self.check(&self.total, code).map(|()| bytes as u64)
    }

    /// Name and description of an error code.
    pub(crate) fn text(&self, code: c_int) -> String {
        let parts: Vec<String> = [&self.error_name, &self.error_text]
            .into_iter()
            .filter_map(|about| {
                // SAFETY: the call returns null or a string that is never freed.
                let text = unsafe { (about.call)(code) };
                // SAFETY: as above; the string ends in NUL.
                (!text.is_null())
                    .then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
            })
            .collect();
        if parts.is_empty() { format!("unknown code {code}") } else { parts.join(", ") }
    }

    fn check<F>(&self, call: &Function<F>, code: c_int) -> Result<(), LibraryError> {
        if Outcome::of(code) == Outcome::Done {
            return Ok(());
        }
        Err(LibraryError::Driver { call: call.name, code, text: self.text(code) })
    }

    /// [`Library::check`] for calls that fail if the machine has no device.
    fn check_devices<F>(&self, call: &Function<F>, code: c_int) -> Result<(), LibraryError> {
        match code {
            NO_DEVICE | INVALID_DEVICE => Err(LibraryError::Device),
            code => self.check(call, code),
        }
    }
}

/// The name of the architecture in a device's properties: at `expected`, or else the first text
/// that looks like one.
fn find_arch(properties: &[u8], expected: usize) -> Option<String> {
    const MARK: &[u8] = b"gfx";
    let text_at = |at: usize| {
        let name = properties.get(at..)?.split(|byte| *byte == 0).next()?;
        let digits = name.strip_prefix(MARK)?.split(|byte| *byte == b':').next()?;
        let is_arch = (3..=5).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        is_arch.then(|| String::from_utf8_lossy(name).trim().to_owned())
    };
    let starts = properties.windows(MARK.len()).enumerate().filter(|(_, bytes)| *bytes == MARK);
    text_at(expected).or_else(|| starts.map(|(at, _)| at).find_map(text_at))
}

fn find<F: Copy>(file: &'static File, name: &'static str) -> Result<Function<F>, LibraryError> {
    // SAFETY: the library is never unloaded; `F` is the type in HIP's headers of versions 5 to 7,
    // with handles as pointers and enums as integers, which have the same ABI.
    unsafe { Function::find(file, name) }
}

/// The functions that CUDA has too, under other names.
fn calls(file: &'static File) -> Result<Calls, LibraryError> {
    Ok(Calls {
        memory: find(file, "hipMemGetInfo")?,
        alloc: find(file, "hipMalloc")?,
        free: find(file, "hipFree")?,
        alloc_host: find(file, "hipHostMalloc")?,
        device_pointer: find(file, "hipHostGetDevicePointer")?,
        free_host: find(file, "hipHostFree")?,
        stream: find(file, "hipStreamCreateWithFlags")?,
        destroy_stream: find(file, "hipStreamDestroy")?,
        finish: find(file, "hipStreamSynchronize")?,
        event: find(file, "hipEventCreateWithFlags")?,
        destroy_event: find(file, "hipEventDestroy")?,
        record: find(file, "hipEventRecord")?,
        query: find(file, "hipEventQuery")?,
        wait: find(file, "hipEventSynchronize")?,
        elapsed: find(file, "hipEventElapsedTime")?,
        copy_in: find(file, "hipMemcpyHtoDAsync")?,
        copy_out: find(file, "hipMemcpyDtoHAsync")?,
        copy: find(file, "hipMemcpyDtoDAsync")?,
        fill: find(file, "hipMemsetD32Async")?,
        load: find(file, "hipModuleLoadDataEx")?,
        unload: find(file, "hipModuleUnload")?,
        function: find(file, "hipModuleGetFunction")?,
        launch: find(file, "hipModuleLaunchKernel")?,
        graphs: graphs(file).ok(),
    })
}

/// The graph API, which is incomplete in the first versions of ROCm 5; kernels are then launched
/// separately.
fn graphs(file: &'static File) -> Result<GraphCalls, LibraryError> {
    Ok(GraphCalls {
        begin_capture: find(file, "hipStreamBeginCapture")?,
        end_capture: find(file, "hipStreamEndCapture")?,
        instantiate: find(file, "hipGraphInstantiateWithFlags")?,
        destroy_graph: find(file, "hipGraphDestroy")?,
        destroy_instance: find(file, "hipGraphExecDestroy")?,
        launch_graph: find(file, "hipGraphLaunch")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_found_wherever_the_properties_have_it() {
        let mut properties = vec![0xff_u8; 2000];
        assert_eq!(find_arch(&properties, 1160), None);
        properties[700..708].copy_from_slice(b"Xgfx9\0\0\0");
        assert_eq!(find_arch(&properties, 1160), None, "too short for a name");
        properties[1500..1523].copy_from_slice(b"gfx90a:sramecc+:xnack-\0");
        assert_eq!(find_arch(&properties, 1160).as_deref(), Some("gfx90a:sramecc+:xnack-"));
        properties[1160..1168].copy_from_slice(b"gfx1100\0");
        assert_eq!(find_arch(&properties, 1160).as_deref(), Some("gfx1100"));
        assert_eq!(find_arch(&properties, usize::MAX).as_deref(), Some("gfx1100"));
    }
}
