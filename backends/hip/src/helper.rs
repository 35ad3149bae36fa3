//! Compiles kernels in a child process: ROCm's compiler ends its process if it does not know an
//! architecture (5.2), and a bug in it must neither end the program that generates a text nor stop it
//! for ever. Several children also compile at once, which the compiler in one process cannot.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hal::{Error, Result};

use crate::library;
use crate::sources::Source;

/// Called when a compilation begins (`true`) and ends (`false`), by several threads at once.
pub type CompilationWatch = Arc<dyn Fn(bool) + Send + Sync>;

/// How kernels are compiled.
#[derive(Clone, Default)]
pub struct Compilation {
    /// Folder of the cache of compiled kernels.
    pub folder: Option<PathBuf>,
    /// A program and its argument with which it calls [`serve_compilation`]; `None` compiles in this
    /// process.
    pub helper: Option<(PathBuf, &'static str)>,
    /// Called around each compilation.
    pub watch: Option<CompilationWatch>,
}

impl fmt::Debug for Compilation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Compilation { folder, helper, .. } = self;
        f.debug_struct("Compilation")
            .field("folder", folder)
            .field("helper", helper)
            .finish_non_exhaustive()
    }
}

/// First bytes of an answer: the compiler may write its own text before it.
const MAGIC: &[u8] = b"\0tclrtc1\0";
/// Longest part of a request: kernel sources have about 100 kB.
const MAX_PART: u32 = 16 << 20;
/// Most parts of a request.
const MAX_PARTS: u32 = 256;
/// How long a compilation may take: usually it takes 0.3 to 3 s.
const TIME_LIMIT: Duration = Duration::from_secs(300);
/// Pause between two looks whether a child has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// Compiles `source` in a child of `helper`.
///
/// # Errors
/// [`Error::Driver`]: that of the compiler, or how the child ended.
pub(crate) fn compile(
    helper: &(PathBuf, &'static str),
    suffix: &str,
    source: &Source,
    options: &[String],
) -> Result<Vec<u8>> {
    compile_within(TIME_LIMIT, helper, suffix, source, options)
}

fn compile_within(
    limit: Duration,
    (program, argument): &(PathBuf, &'static str),
    suffix: &str,
    source: &Source,
    options: &[String],
) -> Result<Vec<u8>> {
    let parts = [suffix, &source.unit, &source.text].into_iter();
    let parts: Vec<&str> = parts.chain(options.iter().map(String::as_str)).collect();
    let failed = |code: i64, message: String| Error::Driver {
        call: format!("hiprtcCompileProgram of {}", source.unit),
        code,
        message,
    };
    let ended = run_child(program, argument, &parts, limit);
    let ended = ended.map_err(|error| failed(0, format!("the compiler's process: {error}")))?;
    let Some((status, output)) = ended else {
        let limit = limit.as_secs();
        return Err(failed(0, format!("ROCm's compiler did not end within {limit} s")));
    };
    let answer = output.windows(MAGIC.len()).position(|window| window == MAGIC);
    let answer = answer.map(|at| &output[at + MAGIC.len()..]).filter(|_| status.success());
    match answer.and_then(<[u8]>::split_first) {
        Some((0, code)) => Ok(code.to_vec()),
        Some((_, message)) => Err(failed(0, String::from_utf8_lossy(message).into_owned())),
        None => Err(failed(0, format!("ROCm's compiler crashed ({status}) for this architecture"))),
    }
}

/// How the child ended, and its output; `None` if it was killed at the time limit.
fn run_child(
    program: &PathBuf,
    argument: &str,
    parts: &[&str],
    limit: Duration,
) -> io::Result<Option<(ExitStatus, Vec<u8>)>> {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let mut request = Vec::new();
    request.extend_from_slice(&(parts.len() as u32).to_le_bytes());
    for part in parts {
        request.extend_from_slice(&(part.len() as u32).to_le_bytes());
        request.extend_from_slice(part.as_bytes());
    }
    // Both ends of a pipe may block, so each has a thread; they end with the child.
    thread::scope(|scope| {
        // A child that ended reads nothing; its status says why.
        let write = || input.map(|mut input| input.write_all(&request));
        let read = || {
            let mut bytes = Vec::new();
            output.map_or(Ok(0), |mut output| output.read_to_end(&mut bytes)).map(|_| bytes)
        };
        let written = thread::Builder::new().spawn_scoped(scope, write);
        let answer = written.and_then(|_| thread::Builder::new().spawn_scoped(scope, read));
        let Ok(answer) = answer else {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other("the system refuses a thread"));
        };
        let status = wait(&mut child, limit)?;
        let bytes = answer.join().map_err(|_| io::Error::other("a thread failed"))??;
        Ok(status.map(|status| (status, bytes)))
    })
}

/// Waits for the child; kills it at the time limit and returns `None`.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(PAUSE);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Answers one request of a parent process.
///
/// # Errors
/// A request that is cut off or too long; errors of the streams.
pub fn serve_compilation(input: &mut dyn Read, output: &mut dyn Write) -> io::Result<()> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the request is invalid");
    let number = |most: u32, input: &mut dyn Read| -> io::Result<u32> {
        let mut bytes = [0; 4];
        input.read_exact(&mut bytes)?;
        Some(u32::from_le_bytes(bytes)).filter(|n| *n <= most).ok_or_else(invalid)
    };
    let n_parts = number(MAX_PARTS, input)?;
    let mut parts = Vec::new();
    for _ in 0..n_parts {
        let len = number(MAX_PART, input)?;
        let mut text = String::new();
        input.take(u64::from(len)).read_to_string(&mut text)?;
        parts.push(Some(text).filter(|text| text.len() == len as usize).ok_or_else(invalid)?);
    }
    let mut parts = parts.into_iter();
    let (Some(suffix), Some(unit), Some(text)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(invalid());
    };
    let options: Vec<String> = parts.collect();
    let source = Source { unit, text, options: Vec::new() };
    let compiled = match library::compiler_of(&suffix) {
        Ok(compiler) => compiler.compile(&source, &options),
        Err(missing) => Err(missing.into()),
    };
    output.write_all(MAGIC)?;
    match compiled {
        Ok(code) => {
            output.write_all(&[0])?;
            output.write_all(&code)?;
        }
        Err(error) => {
            output.write_all(&[1])?;
            // The parent adds the call.
            let text =
                if let Error::Driver { message, .. } = error { message } else { error.to_string() };
            output.write_all(text.as_bytes())?;
        }
    }
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_requests_are_refused() {
        let serve = |request: &[u8]| serve_compilation(&mut &request[..], &mut Vec::new());
        for request in
            [&[][..], &[1, 0, 0, 0], &[255; 8], &[1, 0, 0, 0, 9, 0, 0, 0, b'x'], &[0, 0, 0, 0]]
        {
            assert!(serve(request).is_err(), "{request:?}");
        }
    }

    #[test]
    fn a_child_that_crashes_hangs_or_is_missing_is_an_error() {
        let source = Source { unit: "add".to_owned(), text: "x".repeat(1 << 20), options: vec![] };
        let compile_with = |program: &str, argument: &'static str| {
            compile(&(PathBuf::from(program), argument), ".7", &source, &[]).unwrap_err()
        };
        let crashed = compile_with("/bin/sh", "-c");
        assert!(crashed.to_string().contains("crashed (exit status"), "{crashed}");
        let silent = compile_with("/bin/true", "");
        assert!(silent.to_string().contains("crashed"), "{silent}");
        // It neither reads the request nor ends.
        let sleep = (PathBuf::from("/bin/sleep"), "1000");
        let limit = Duration::from_millis(50);
        let stuck = compile_within(limit, &sleep, ".7", &source, &[]).unwrap_err();
        assert!(stuck.to_string().contains("did not end within 0 s"), "{stuck}");
        let missing = compile_with("/no/such/program", "");
        assert!(missing.to_string().contains("the compiler's process"), "{missing}");
    }
}
