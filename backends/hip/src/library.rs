//! The functions of HIP's library that are used here.

#![allow(unsafe_code, reason = "functions of a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::offset_of;
use std::sync::{Arc, Mutex};

use hip_sys::hiprt;
use libloading::Library as File;
use simt::native::{Calls, Function, GraphCalls};
use simt::{Missing, Outcome};

use crate::compiler::Compiler;

/// Reads text about a device: destination, its size, device.
type Text = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
/// Text for an error code.
type About = unsafe extern "C" fn(c_int) -> *const c_char;
/// Reads the properties of a device.
type Ask = unsafe extern "C" fn(*mut Properties, c_int) -> c_int;

/// Folders to search for libraries: the system's search path, then the folder of ROCm's own
/// installer.
const FOLDERS: [&str; 2] = ["", "/opt/rocm/lib/"];

/// Version suffixes of the libraries' names, newest first.
const VERSIONS: [&str; 4] = [".7", ".6", ".5", ""];

/// Buffer for a device's properties, which grow slightly with each version.
#[repr(C, align(16))]
struct Properties([u8; 8 << 10]);

/// Offset of the architecture's name in them: up to ROCm 5, and since (`hipDeviceProp_tR0600`).
const ARCH_BEFORE_6: usize = offset_of!(hiprt::hipDeviceProp_t, gcnArchName);
const ARCH: usize = 1160;

/// The initialised HIP.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    file: &'static File,
    /// Version suffix of the library's name.
    version: &'static str,
    count: Function<unsafe extern "C" fn(*mut c_int) -> c_int>,
    runtime: Function<unsafe extern "C" fn(*mut c_int) -> c_int>,
    name: Function<Text>,
    slot: Function<Text>,
    attribute: Function<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>,
    total: Function<unsafe extern "C" fn(*mut usize, c_int) -> c_int>,
    properties: (Function<Ask>, usize),
    pub(crate) set_device: Function<unsafe extern "C" fn(c_int) -> c_int>,
    error_name: Function<About>,
    error_text: Function<About>,
    pub(crate) calls: Calls,
    /// Lock of the compiler, shared by all devices.
    compiling: Arc<Mutex<()>>,
}

/// Loads the newest of the libraries of this name.
fn open(name: &str, versions: &[&'static str]) -> Option<(&'static File, &'static str)> {
    let places = FOLDERS.iter().flat_map(|folder| versions.iter().map(move |v| (folder, v)));
    places.into_iter().find_map(|(folder, version)| {
        // SAFETY: loading a library runs its code; the library of this name in these folders is
        // ROCm's.
        let file = unsafe { File::new(format!("{folder}{name}.so{version}")) }.ok()?;
        // Never unloaded: its threads would go on without it.
        Some((&*Box::leak(Box::new(file)), *version))
    })
}

impl Library {
    /// Loads and initialises HIP.
    ///
    /// # Errors
    /// [`Missing`] with the cause.
    pub(crate) fn open() -> Result<Library, Missing> {
        let missing = Missing::Library { name: "libamdhip64.so" };
        let (file, version) = open("libamdhip64", &VERSIONS).ok_or(missing)?;
        let init: Function<unsafe extern "C" fn(c_uint) -> c_int> = find(file, "hipInit")?;
        let properties = match find(file, "hipGetDevicePropertiesR0600") {
            Ok(ask) => (ask, ARCH),
            Err(_) => (find(file, "hipGetDeviceProperties")?, ARCH_BEFORE_6),
        };
        let library = Library {
            file,
            version,
            count: find(file, "hipGetDeviceCount")?,
            runtime: find(file, "hipRuntimeGetVersion")?,
            name: find(file, "hipDeviceGetName")?,
            slot: find(file, "hipDeviceGetPCIBusId")?,
            attribute: find(file, "hipDeviceGetAttribute")?,
            total: find(file, "hipDeviceTotalMem")?,
            properties,
            set_device: find(file, "hipSetDevice")?,
            error_name: find(file, "hipGetErrorName")?,
            error_text: find(file, "hipGetErrorString")?,
            calls: calls(file)?,
            compiling: Arc::default(),
        };
        // SAFETY: the flags must be 0.
        let code = unsafe { (init.call)(0) };
        library.check_any(&init, code)?;
        Ok(library)
    }

    /// The compiler of the same ROCm: a separate library, or included in this one in old versions.
    ///
    /// # Errors
    /// [`Missing::Library`].
    pub(crate) fn compiler(&self) -> Result<Compiler, Missing> {
        let find = |file| Compiler::find(file, &self.compiling);
        let same = open("libhiprtc", &[self.version]).map(|(file, _)| find(file));
        if let Some(Ok(compiler)) = same {
            return Ok(compiler);
        }
        if let Ok(compiler) = find(self.file) {
            return Ok(compiler);
        }
        let (file, _) =
            open("libhiprtc", &VERSIONS).ok_or(Missing::Library { name: "libhiprtc.so" })?;
        find(file)
    }

    /// The version of HIP, 50221153 for 5.2.
    pub(crate) fn runtime(&self) -> Result<c_int, Missing> {
        let mut version = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.runtime.call)(&raw mut version) };
        self.check(&self.runtime, code).map(|()| version)
    }

    /// Number of devices.
    pub(crate) fn count(&self) -> Result<c_int, Missing> {
        let mut count = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.count.call)(&raw mut count) };
        self.check_any(&self.count, code).map(|()| count)
    }

    /// HIP's name of a device.
    pub(crate) fn name(&self, device: c_int) -> Result<String, Missing> {
        self.device_text(&self.name, device)
    }

    /// A device's PCI slot.
    pub(crate) fn slot(&self, device: c_int) -> Result<String, Missing> {
        self.device_text(&self.slot, device)
    }

    fn device_text(&self, call: &Function<Text>, device: c_int) -> Result<String, Missing> {
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: it writes less than the given size, during the call only.
        let code = unsafe { (call.call)(text.as_mut_ptr(), 255, device) };
        self.check(call, code)?;
        // SAFETY: the last byte is zero whatever the call has written before it.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().trim().to_owned())
    }

    /// The target that code for a device is compiled for: `gfx90a:sramecc+:xnack-`.
    pub(crate) fn arch(&self, device: c_int) -> Result<String, Missing> {
        let (ask, at) = &self.properties;
        let mut properties = Box::new(Properties([0; 8 << 10]));
        // SAFETY: the buffer is several times as large as any version's structure.
        let code = unsafe { (ask.call)(&raw mut *properties, device) };
        self.check(ask, code)?;
        let name = &properties.0[*at..*at + 256];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).trim().to_owned())
    }

    /// An attribute of a device.
    pub(crate) fn attribute(
        &self,
        which: hiprt::hipDeviceAttribute_t,
        device: c_int,
    ) -> Result<c_int, Missing> {
        let mut value = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.attribute.call)(&raw mut value, which as c_int, device) };
        self.check(&self.attribute, code).map(|()| value)
    }

    /// Physical memory of a device.
    pub(crate) fn total(&self, device: c_int) -> Result<u64, Missing> {
        let mut bytes = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.total.call)(&raw mut bytes, device) };
        self.check(&self.total, code).map(|()| bytes as u64)
    }

    /// Name and meaning of a code.
    pub(crate) fn text(&self, code: c_int) -> String {
        let parts: Vec<String> = [&self.error_name, &self.error_text]
            .into_iter()
            .filter_map(|about| {
                // SAFETY: it returns a text that is never freed, or null.
                let text = unsafe { (about.call)(code) };
                // SAFETY: as above; it ends in NUL.
                (!text.is_null())
                    .then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
            })
            .collect();
        if parts.is_empty() { format!("unknown code {code}") } else { parts.join(", ") }
    }

    fn check<F>(&self, call: &Function<F>, code: c_int) -> Result<(), Missing> {
        if Outcome::of(code) == Outcome::Done {
            return Ok(());
        }
        Err(Missing::Driver { call: call.name, code, text: self.text(code) })
    }

    /// [`Library::check`] for calls that fail without a device: in old versions all calls do.
    fn check_any<F>(&self, call: &Function<F>, code: c_int) -> Result<(), Missing> {
        use hiprt::hipError_t::{hipErrorInvalidDevice, hipErrorNoDevice};
        match code {
            code if code == hipErrorNoDevice as c_int => Err(Missing::Device),
            code if code == hipErrorInvalidDevice as c_int => Err(Missing::Device),
            code => self.check(call, code),
        }
    }
}

/// Looks up a function of the library by name.
fn find<F: Copy>(file: &'static File, name: &'static str) -> Result<Function<F>, Missing> {
    // SAFETY: the library is never unloaded; `F` is the type in HIP's headers of versions 5 to 7,
    // with handles as pointers and enums as integers, which have the same ABI.
    unsafe { Function::find(file, name) }
}

/// Functions that CUDA has under other names.
fn calls(file: &'static File) -> Result<Calls, Missing> {
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

/// The first versions of ROCm 5 lack some of them; then kernels are launched separately.
fn graphs(file: &'static File) -> Result<GraphCalls, Missing> {
    Ok(GraphCalls {
        begin_capture: find(file, "hipStreamBeginCapture")?,
        end_capture: find(file, "hipStreamEndCapture")?,
        instantiate: find(file, "hipGraphInstantiateWithFlags")?,
        destroy_graph: find(file, "hipGraphDestroy")?,
        destroy_ready: find(file, "hipGraphExecDestroy")?,
        launch_graph: find(file, "hipGraphLaunch")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_those_of_rocm_5() {
        assert_eq!(ARCH_BEFORE_6, 396);
        assert!(
            ARCH_BEFORE_6 + 256 <= size_of::<Properties>() && ARCH + 256 <= size_of::<Properties>()
        );
    }
}
