//! Tells the program which commit it is built from, for `--version`; an archive of the source has
//! none.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Also if git fails now, so that a later build asks again.
    let log = ".git/logs/HEAD";
    if Path::new(log).is_file() {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rustc-env=THERMOCLINE_COMMIT={}", commit().unwrap_or_default());
}

/// The abbreviated commit, if this folder is the root of a git repository.
fn commit() -> Option<String> {
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    if Path::new(&top).canonicalize().ok()? != here.canonicalize().ok()? {
        return None;
    }
    // Changes with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if here.join(&log).is_file() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=9", "HEAD"])
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
