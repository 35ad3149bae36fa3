//! Compiles all kernels for the CPU, and the fake drivers that run them. Without a working C++
//! compiler the crate still builds, and the tests report why the fakes are missing.

#![allow(clippy::disallowed_methods, reason = "cargo passes parameters to build scripts this way")]

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Maximum number of kernel variants per C++ file, since files are compiled in parallel.
const MAX_VARIANTS: usize = 12;

/// A C++ file to compile, and the name of its object.
struct Job {
    name: String,
    source: PathBuf,
}

/// The C++ compiler, and the folder for its objects.
struct Compiler {
    command: String,
    flags: Vec<String>,
    objects: PathBuf,
}

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CXX");
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let kernels = fs::canonicalize(here.join("../../kernels-cuda"))?;
    for folder in ["shim", "driver", "kernels"] {
        println!("cargo::rerun-if-changed={}", here.join(folder).display());
    }
    println!("cargo::rerun-if-changed={}", kernels.display());
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let missing = match compiler(&here, &out) {
        Ok(compiler) => {
            build(&compiler, &here, &kernels, &out)?;
            String::new()
        }
        Err(reason) => reason.to_string(),
    };
    // Empty if the fakes were built.
    println!("cargo::rustc-env=FAKES_MISSING={missing}");
    println!("cargo::rustc-env=FAKES_LEVEL={}", if has_x86_64_v3() { "x86-64-v3" } else { "any" });
    Ok(())
}

/// Whether this CPU has the instructions of x86-64-v3 that make float products and f16 conversions
/// fast.
fn has_x86_64_v3() -> bool {
    #[cfg(target_arch = "x86_64")]
    let fast = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi2");
    #[cfg(not(target_arch = "x86_64"))]
    let fast = false;
    fast
}

/// The first C++ compiler that works, or the reason why none can be used.
fn compiler(here: &Path, out: &Path) -> Result<Compiler> {
    let (os, arch) = (env::var("CARGO_CFG_TARGET_OS")?, env::var("CARGO_CFG_TARGET_ARCH")?);
    if os != "linux" || !["x86_64", "aarch64"].contains(&arch.as_str()) {
        return Err(format!(
            "fake drivers need Linux on x86-64 or aarch64, this is {os} on {arch}"
        )
        .into());
    }
    if env::var("HOST")? != env::var("TARGET")? {
        return Err("fake drivers cannot be cross-compiled".into());
    }
    let objects = out.join("objects");
    fs::create_dir_all(&objects)?;
    let mut flags: Vec<String> = [
        "-std=c++17",
        "-O2",
        "-fPIC",
        // As in the builds for GPUs, multiply and add are fused only where a kernel requests it.
        "-ffp-contract=off",
        "-fno-math-errno",
        "-Wall",
        "-Wextra",
        "-Wno-unknown-pragmas",
    ]
    .map(str::to_owned)
    .to_vec();
    if has_x86_64_v3() {
        flags.push("-march=x86-64-v3".to_owned());
    }
    let probe = out.join("probe.cpp");
    fs::write(
        &probe,
        "#include <optional>\nint main() { return std::optional<int>(0).value(); }\n",
    )?;
    let named = env::var("CXX").ok().filter(|name| !name.trim().is_empty());
    let names = match named {
        Some(name) => vec![name],
        None => ["c++", "g++", "clang++"].map(str::to_owned).to_vec(),
    };
    for command in names {
        let mut trial = Command::new(&command);
        trial.args(&flags).arg("-pthread").arg(&probe).arg("-o").arg(out.join("probe"));
        if trial.current_dir(here).output().is_ok_and(|output| output.status.success()) {
            return Ok(Compiler { command, flags, objects });
        }
    }
    Err("no working C++ compiler found (on Debian: apt-get install g++)".into())
}

fn build(compiler: &Compiler, here: &Path, kernels: &Path, out: &Path) -> Result<()> {
    let generated = out.join("units");
    fs::create_dir_all(&generated)?;
    let mut units = generate(kernels, &generated)?;
    units.extend(generate(&here.join("kernels"), &generated)?);
    let source = |name: &str| Job {
        name: name.rsplit('/').next().unwrap_or(name).to_owned(),
        source: here.join(format!("{name}.cpp")),
    };
    units.push(source("shim/shim"));
    let common = ["driver/memory", "driver/queue", "driver/world"].map(source);
    let drivers = ["driver/cuda", "driver/hip"].map(source);
    let folders = [here.join("shim"), kernels.to_owned(), here.join("kernels")];
    let all: Vec<&Job> = units.iter().chain(&common).chain(&drivers).collect();
    compile(compiler, &folders, &all)?;

    let objects = |jobs: &[Job]| -> Vec<PathBuf> {
        jobs.iter().map(|job| compiler.object(&job.name)).collect()
    };
    compiler.link(out, "libfake_kernels.so", &objects(&units), &[])?;
    let shared = objects(&common);
    // `library` is the name that programs look for first, so that they load the fake even if a real
    // driver is installed.
    for (driver, library, others) in [
        ("cuda", "libcuda.so.1", &["libcuda.so"][..]),
        ("hip", "libamdhip64.so.7", &["libamdhip64.so.6", "libamdhip64.so"][..]),
    ] {
        let mut parts = shared.clone();
        parts.push(compiler.object(driver));
        compiler.link(out, library, &parts, &["-lfake_kernels"])?;
        for other in others {
            let link = out.join(other);
            let _ = fs::remove_file(&link);
            #[cfg(unix)]
            std::os::unix::fs::symlink(library, &link)?;
        }
    }
    Ok(())
}

impl Compiler {
    fn object(&self, name: &str) -> PathBuf {
        self.objects.join(format!("{name}.o"))
    }

    /// Links objects to a shared library.
    fn link(&self, out: &Path, name: &str, objects: &[PathBuf], libraries: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.command);
        command.args(["-shared", "-pthread", "-o"]).arg(out.join(name)).args(objects);
        command.arg(format!("-Wl,-soname,{name}")).arg(format!("-Wl,-rpath,{}", out.display()));
        command.arg("-L").arg(out).args(libraries);
        succeed(command, name)
    }

    /// Compiles a file, unless its object is up to date.
    fn make(&self, job: &Job, folders: &[PathBuf]) -> Result<()> {
        let object = self.object(&job.name);
        let (stamp, list) = (object.with_extension("stamp"), object.with_extension("d"));
        let mut command = Command::new(&self.command);
        command.args(&self.flags).arg("-c").arg(&job.source).arg("-o").arg(&object);
        // Hides the symbols of the drivers, so that a process can load both drivers.
        if ["memory", "queue", "world", "cuda", "hip"].contains(&job.name.as_str()) {
            command.arg("-fvisibility=hidden");
        }
        // Compiling the many variants of a kernel takes longer than running them in the tests.
        if job.name.starts_with("unit_") {
            command.arg("-O1");
        }
        for folder in folders {
            command.arg("-I").arg(folder);
        }
        command.arg("-MMD").arg("-MF").arg(&list);
        let line = format!("{command:?}");
        if object.is_file()
            && fs::read_to_string(&stamp).is_ok_and(|old| old == state(&line, &list))
        {
            return Ok(());
        }
        let _ = fs::remove_file(&stamp);
        succeed(command, &job.name)?;
        fs::write(stamp, state(&line, &list))?;
        Ok(())
    }
}

/// State of an object's inputs: the compiler command, and the hashes of all files that it read.
fn state(command: &str, list: &Path) -> String {
    let mut state = command.to_owned();
    let list = fs::read_to_string(list).unwrap_or_default();
    let files = list.split_once(':').map_or("", |(_, files)| files);
    for file in files.split_whitespace().filter(|word| *word != "\\") {
        // FNV-1a.
        let hash = fs::read(file)
            .unwrap_or_default()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let _ = write!(state, "\n{file} {hash:016x}");
    }
    state
}

fn succeed(mut command: Command, what: &str) -> Result<()> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{what} does not compile for the CPU:\n{text}").into());
    }
    for line in text.lines().filter(|line| line.contains("warning:")) {
        println!("cargo::warning={line}");
    }
    Ok(())
}

/// Compiles all files, with as many parallel jobs as cargo uses.
fn compile(compiler: &Compiler, folders: &[PathBuf], jobs: &[&Job]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let n_workers = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    std::thread::scope(|scope| {
        for _ in 0..n_workers {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = compiler.make(job, folders) {
                        failures.lock().unwrap_or_else(|e| e.into_inner()).push(error.to_string());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Generates C++ files for the kernel units of a folder, with each variant in its own namespace.
fn generate(folder: &Path, to: &Path) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let list = folder.join("VARIANTS");
    let list = if list.exists() { fs::read_to_string(list)? } else { String::new() };
    for file in kernel_files(folder)? {
        let mut lines = list.lines().filter_map(|line| line.split_once(' '));
        let kind = lines.find(|(name, _)| *name == file).map_or("plain", |(_, kind)| kind.trim());
        let text = fs::read_to_string(folder.join(format!("{file}.cu")))?;
        let included: Vec<&str> =
            text.lines().filter(|line| line.trim_start().starts_with("#include \"")).collect();
        let variants = variants(folder, kind)?;
        for (part, variants) in variants.chunks(MAX_VARIANTS).enumerate() {
            // The included files do not depend on the variant, so they stay outside its namespace.
            let mut code = String::from("#include \"dialect.h\"\n");
            for line in &included {
                writeln!(code, "{line}")?;
            }
            for names in variants {
                let values: Vec<&str> = names.iter().map(|(_, value)| value.as_str()).collect();
                let unit = [&[file.as_str()][..], &values[..]].concat();
                let variant = values.join("_");
                let dot = if variant.is_empty() { "" } else { "." };
                writeln!(code, "#define SHIM_UNIT \"{file}{dot}{variant}\"")?;
                for (name, value) in names {
                    writeln!(code, "#define {name} {value}")?;
                }
                writeln!(code, "namespace unit_{} {{\n#include \"{file}.cu\"\n}}", unit.join("_"))?;
                for (name, _) in names {
                    writeln!(code, "#undef {name}")?;
                }
                writeln!(code, "#undef SHIM_UNIT")?;
            }
            let name = format!("unit_{file}_{part}");
            let source = to.join(format!("{name}.cpp"));
            fs::write(&source, code)?;
            jobs.push(Job { name, source });
        }
    }
    Ok(jobs)
}

/// Names of the kernel files of a folder, without their ending, in order.
fn kernel_files(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "cu") {
            names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
        }
    }
    Ok(names)
}

/// The macros of each variant of a kernel file.
fn variants(folder: &Path, kind: &str) -> Result<Vec<Vec<(&'static str, String)>>> {
    let format = |name: &String| vec![("FORMAT", name.clone())];
    let weights = || formats(&folder.join("formats"));
    Ok(match kind {
        "plain" => vec![Vec::new()],
        "weight" => weights()?.iter().map(format).collect(),
        "down" => {
            let mut all = weights()?;
            all.extend(["transposed_nibbles", "transposed_bytes"].map(str::to_owned));
            all.iter().map(format).collect()
        }
        "cache" => formats(&folder.join("cache"))?.iter().map(format).collect(),
        other => return Err(format!("VARIANTS: unknown kind `{other}`").into()),
    })
}

/// Names of the formats in a folder: those of files that declare a struct of the file's name.
fn formats(folder: &Path) -> Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        let text = fs::read_to_string(&path)?;
        let declared = format!("struct {name}");
        let is_format = text
            .match_indices(&declared)
            .any(|(at, _)| text[at + declared.len()..].starts_with([' ', '{', ':']));
        if is_format {
            names.insert(name.to_owned());
        }
    }
    Ok(names.into_iter().collect())
}
