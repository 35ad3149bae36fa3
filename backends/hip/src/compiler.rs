//! ROCm's compiler for kernels, hiprtc.

#![allow(unsafe_code, reason = "functions of a C library")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Mutex;

use hal::{Error, Result};
use libloading::Library;
use simt::LibraryError;
use simt::native::{Function, Raw};

use crate::sources::Source;

/// Creates a program: program, source, name, number of headers, their contents, their names.
type CreateProgram = unsafe extern "C" fn(
    *mut Raw,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
/// Reads a size: program, destination.
type GetSize = unsafe extern "C" fn(Raw, *mut usize) -> c_int;
/// Reads bytes: program, destination.
type GetBytes = unsafe extern "C" fn(Raw, *mut c_char) -> c_int;

/// Held while a kernel is compiled: not all versions of the compiler are thread-safe, whatever
/// device they compile for (5.2 crashes).
static COMPILING: Mutex<()> = Mutex::new(());

/// The compiler.
#[derive(Debug)]
pub(crate) struct Compiler {
    version: Function<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>,
    create: Function<CreateProgram>,
    compile: Function<unsafe extern "C" fn(Raw, c_int, *const *const c_char) -> c_int>,
    log_size: Function<GetSize>,
    log: Function<GetBytes>,
    code_size: Function<GetSize>,
    code: Function<GetBytes>,
    destroy: Function<unsafe extern "C" fn(*mut Raw) -> c_int>,
    text: Function<unsafe extern "C" fn(c_int) -> *const c_char>,
}

impl Compiler {
    /// Looks up the compiler in a library that is never unloaded.
    ///
    /// # Errors
    /// [`LibraryError::Function`].
    pub(crate) fn find(library: &'static Library) -> std::result::Result<Compiler, LibraryError> {
        // SAFETY: the types are those of `hiprtc.h`, which are the same in all versions.
        unsafe {
            Ok(Compiler {
                version: Function::find(library, "hiprtcVersion")?,
                create: Function::find(library, "hiprtcCreateProgram")?,
                compile: Function::find(library, "hiprtcCompileProgram")?,
                log_size: Function::find(library, "hiprtcGetProgramLogSize")?,
                log: Function::find(library, "hiprtcGetProgramLog")?,
                code_size: Function::find(library, "hiprtcGetCodeSize")?,
                code: Function::find(library, "hiprtcGetCode")?,
                destroy: Function::find(library, "hiprtcDestroyProgram")?,
                text: Function::find(library, "hiprtcGetErrorString")?,
            })
        }
    }

    pub(crate) fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the call writes both values, and only before it returns.
        let code = unsafe { (self.version.call)(&raw mut major, &raw mut minor) };
        if code == 0 { format!("{major}.{minor}") } else { "unknown".to_owned() }
    }

    /// # Errors
    /// [`Error::Driver`] with the compiler's log.
    pub(crate) fn compile(&self, source: &Source, options: &[String]) -> Result<Vec<u8>> {
        let error = |call: &str, code: c_int, message: String| Error::Driver {
            call: format!("{call} of {}", source.unit),
            code: i64::from(code),
            message,
        };
        let text = |text: &str| {
            CString::new(text).map_err(|_| {
                error("hiprtcCreateProgram", 0, "the text contains a NUL byte".to_owned())
            })
        };
        let (unit, code) = (text(&source.unit)?, text(&source.text)?);
        let options: Vec<CString> =
            options.iter().map(|option| text(option)).collect::<Result<_>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // The lock protects no data, so a panic in an earlier compilation does not matter.
        let _guard = COMPILING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut program = Program { raw: ptr::null_mut(), destroy: self.destroy };
        let check = |call: &str, code: c_int| match code {
            0 => Ok(()),
            _ => Err(error(call, code, self.text(code))),
        };
        // SAFETY: the strings end in NUL and live during the call; there are no headers.
        let made = unsafe {
            let raw = &raw mut program.raw;
            (self.create.call)(raw, code.as_ptr(), unit.as_ptr(), 0, ptr::null(), ptr::null())
        };
        check(self.create.name, made)?;
        // SAFETY: the number of options is correct, and they live during the call.
        let compiled =
            unsafe { (self.compile.call)(program.raw, options.len() as c_int, options.as_ptr()) };
        if compiled != 0 {
            let log = self.bytes(&program, self.log_size, self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
            let message = format!("{}: {log}", self.text(compiled));
            return Err(error(self.compile.name, compiled, message));
        }
        self.bytes(&program, self.code_size, self.code)
            .map_err(|(call, code)| error(call, code, self.text(code)))
    }

    /// The log or the code of a program.
    fn bytes(
        &self,
        program: &Program,
        size: Function<GetSize>,
        get: Function<GetBytes>,
    ) -> std::result::Result<Vec<u8>, (&'static str, c_int)> {
        let mut length = 0;
        // SAFETY: the program is live; the call writes the size, and only before it returns.
        let code = unsafe { (size.call)(program.raw, &raw mut length) };
        if code != 0 {
            return Err((size.name, code));
        }
        // One byte more than reported, since it is undocumented whether a log's length counts its
        // NUL.
        let mut bytes = vec![0u8; length + 1];
        // SAFETY: the buffer is larger than the reported size.
        let code = unsafe { (get.call)(program.raw, bytes.as_mut_ptr().cast()) };
        if code != 0 {
            return Err((get.name, code));
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    fn text(&self, code: c_int) -> String {
        // SAFETY: the call returns null or a string that is never freed.
        let text = unsafe { (self.text.call)(code) };
        if text.is_null() {
            return format!("unknown code {code}");
        }
        // SAFETY: as above; the string ends in NUL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A program of the compiler, destroyed when dropped.
struct Program {
    raw: Raw,
    destroy: Function<unsafe extern "C" fn(*mut Raw) -> c_int>,
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the program was created, and no other reference to it is left.
            let _ = unsafe { (self.destroy.call)(&raw mut self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::expand;
    use crate::sources::tests::unit_names;
    use crate::vendor::flags;

    /// The oldest compiler that is supported, that of ROCm 5 as Debian 12 and Ubuntu 24.04 package
    /// it: its clang lacks what later versions have.
    fn oldest() -> Option<Compiler> {
        // SAFETY: loading the library runs its code; the library of this name is ROCm's.
        let file = unsafe { Library::new("libamdhip64.so.5") };
        let Ok(file) = file else {
            eprintln!(
                "skipped: this machine has no libamdhip64.so.5 (Debian 12: apt-get install libamdhip64-5)"
            );
            return None;
        };
        let file = Box::leak(Box::new(file));
        Some(Compiler::find(file).expect("ROCm 5 has the compiler in HIP's library"))
    }

    /// Architectures that the compiler's device libraries know. For another one, version 5.2
    /// crashes.
    const ARCHS: [&str; 4] = ["gfx1030", "gfx90a", "gfx908", "gfx906"];

    fn compile(units: &[String], archs: &[&str]) {
        let Some(compiler) = oldest() else { return };
        for arch in archs {
            for unit in units {
                let source = expand(unit).expect("the unit exists");
                let mut options = vec![format!("--offload-arch={arch}")];
                options.extend(flags().map(str::to_owned));
                options.extend_from_slice(&source.options);
                let code = compiler.compile(&source, &options);
                let code = code.unwrap_or_else(|error| panic!("{arch}: {error}"));
                assert!(code.len() > 1000, "{unit} for {arch} has {} bytes of code", code.len());
            }
        }
    }

    #[test]
    fn the_oldest_compiler_takes_the_dialect() {
        let units = ["probe", "norm", "attention.f16", "matmul_few.q4_0"].map(str::to_owned);
        compile(&units, &ARCHS[..1]);
    }

    #[test]
    #[ignore = "takes minutes; scripts/check_fakes runs it"]
    fn the_oldest_compiler_takes_every_unit() {
        compile(&unit_names(), &ARCHS);
    }
}
