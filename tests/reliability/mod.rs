//! What happens to real processes when their files, locks, threads or memory fail.
#![cfg(unix)]
// Clippy exempts test functions from these lints, but not their helpers.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod calls;
mod limits;
mod locks;
mod outputs;
mod owners;
mod shortened;
mod signals;
mod texts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use thermocline::{embedded, gguf};

/// A folder with the built-in model in a file.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("story.gguf"), embedded::BYTES).unwrap();
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The command in this folder, with a cache of its own, without a GPU.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().env("XDG_CACHE_HOME", self.path("xdg")).current_dir(self.0.path());
        command.env("THERMOCLINE_ARG_BACKEND", "cpu").args(args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Names of the files that end with `.part`.
    fn parts(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".part")).collect()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until `condition` is true, a minute at most.
#[track_caller]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn shorten(path: &Path) {
    fs::File::options().write(true).open(path).unwrap().set_len(4096).unwrap();
}
