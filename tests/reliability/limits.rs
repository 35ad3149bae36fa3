//! Few threads, small files, little address space: a result or a typed failure, never a panic.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};

use super::*;

/// A folder of a user that runs nothing else, with the program and the model in it.
struct Limited {
    folder: Folder,
    user: u32,
}

impl Limited {
    /// `None`, with the reason printed, where limits cannot be set: root has no limit of threads,
    /// and only root can become another user.
    fn new(test: u32) -> Option<Limited> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can become a user that has a limit of threads");
            return None;
        }
        if Command::new("prlimit").arg("--version").output().is_err() {
            println!("skipped: there is no prlimit");
            return None;
        }
        let folder = Folder::new();
        // Threads are counted by user, so each test and each process has its own.
        let user = 20_000 + std::process::id() % 4_000 * 8 + test;
        // By another process: one that is started meanwhile would inherit the open file, and a
        // program that is open for writing cannot be executed.
        let program = env!("CARGO_BIN_EXE_thermocline");
        let copied = Command::new("cp").arg(program).arg(folder.path("program")).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(folder.path("program"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path("text"), "a cat and a dog and a ball. ".repeat(200)).unwrap();
        for path in [folder.0.path(), &folder.path("story.gguf"), &folder.path("text")] {
            chown(path, Some(user), Some(user)).unwrap();
        }
        Some(Limited { folder, user })
    }

    /// `prlimit` with a limit such as `--nproc=2`, as the user.
    fn command(&self, limit: &str) -> Command {
        let mut command = Command::new("prlimit");
        command.arg(limit).uid(self.user).gid(self.user);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(self.folder.0.path());
        command.env("XDG_CACHE_HOME", self.folder.path("xdg"));
        command.env("THERMOCLINE_ARG_BACKEND", "cpu").env("THERMOCLINE_ARG_PROBE_SIZE", "16");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program with a limit.
    fn run(&self, limit: &str, args: &[&str]) -> Output {
        self.command(limit).arg("./program").args(args).output().unwrap()
    }
}

const COMMANDS: [&[&str]; 7] = [
    &["run", "-m", "story.gguf", "-p", "Once", "-n", "8", "-t", "2", "--temp", "0"],
    &["run", "-m", "story.gguf", "-p", "Once", "-n", "8", "-t", "1", "--repack-cache", "cache"],
    &["quantize", "story.gguf", "out.gguf", "q8_0", "--force"],
    &["profile", "-m", "story.gguf", "--tokens", "64", "--restart"],
    &[
        "perplexity",
        "-m",
        "story.gguf",
        "-p",
        "a cat and a dog and a cat and a dog and a cat and a dog and a cat",
        "-c",
        "8",
    ],
    &["predictor", "-m", "story.gguf", "--kind", "sign", "--restart", "-f", "text"],
    &["bench", "-m", "story.gguf", "-p", "4", "-n", "4", "-r", "1"],
];

#[test]
fn few_threads_are_enough() {
    let Some(limited) = Limited::new(0) else { return };
    for args in COMMANDS {
        for limit in ["--nproc=1", "--nproc=2", "--nproc=3"] {
            let output = limited.run(limit, args);
            let text = stderr(&output);
            assert!(output.status.success(), "{limit} {args:?}: {:?} {text}", output.status);
            assert!(!text.contains("panicked"), "{limit} {args:?}: {text}");
        }
    }
    let serve = ["serve", "-m", "story.gguf", "--port", "0"];
    for limit in 2..9 {
        let mut command = limited.command(&format!("--nproc={limit}"));
        command.args(["timeout", "--preserve-status", "-s", "INT", "2", "./program"]).args(serve);
        let output = command.output().unwrap();
        let text = stderr(&output);
        assert!(
            matches!(output.status.code(), Some(0 | 1 | 130)),
            "{limit}: {:?} {text}",
            output.status
        );
        assert!(!text.contains("panicked"), "{limit}: {text}");
    }
    let output = limited.run("--nproc=1", &serve);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("error: cannot start"), "{}", stderr(&output));
}

/// The bytes of the text do not depend on how many threads the system allows.
#[test]
fn a_limit_of_threads_changes_no_byte() {
    let Some(limited) = Limited::new(1) else { return };
    let texts: Vec<Vec<u8>> = ["--nproc=1", "--nproc=2", "--nproc=100"]
        .map(|limit| limited.run(limit, COMMANDS[0]).stdout)
        .to_vec();
    assert!(!texts[0].is_empty() && texts.iter().all(|text| *text == texts[0]));
}

#[test]
fn a_limit_of_file_sizes_is_an_error_and_leaves_no_part() {
    let folder = Folder::new();
    if Command::new("prlimit").arg("--version").output().is_err() {
        return println!("skipped: there is no prlimit");
    }
    for args in [COMMANDS[2], &["merge", "story.gguf", "out.gguf"]] {
        let mut command = Command::new("prlimit");
        command.arg("--fsize=100000").arg(env!("CARGO_BIN_EXE_thermocline")).args(args);
        command.current_dir(folder.0.path());
        let output = command.output().unwrap();
        assert_eq!(output.status.signal(), None, "no SIGXFSZ");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("File too large"), "{}", stderr(&output));
        assert_eq!(folder.parts(), [""; 0]);
    }
}

/// Every amount of address space gives a result or a typed failure. With less than here, the system
/// cannot start threads at all, and its libraries end the process themselves.
#[test]
fn little_address_space_never_ends_in_an_abort() {
    let folder = Folder::new();
    if Command::new("prlimit").arg("--version").output().is_err() {
        return println!("skipped: there is no prlimit");
    }
    let mut codes = std::collections::BTreeSet::new();
    for args in [COMMANDS[1], COMMANDS[2]] {
        for mib in (152..=600).step_by(16) {
            let mut command = Command::new("prlimit");
            command.arg(format!("--as={}", mib << 20)).args(["timeout", "60"]);
            command.arg(env!("CARGO_BIN_EXE_thermocline")).args(args).stdin(Stdio::null());
            command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(folder.0.path());
            command.env("XDG_CACHE_HOME", folder.path("xdg"));
            command.env("THERMOCLINE_ARG_BACKEND", "cpu").env("RUST_BACKTRACE", "1");
            let output = command.output().unwrap();
            let (text, code) = (stderr(&output), output.status.code());
            let expected = matches!(code, Some(0 | 1 | 3 | 4));
            assert!(expected, "{mib} MiB, {args:?}: {:?} {text}", output.status);
            assert!(!text.contains("panicked"), "{mib} MiB, {args:?}: {text}");
            codes.insert(code);
            assert_eq!(folder.parts(), [""; 0], "{mib} MiB, {args:?}");
        }
    }
    assert!(codes.contains(&Some(0)), "some are enough: {codes:?}");
}
