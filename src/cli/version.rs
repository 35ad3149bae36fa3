//! What `--version` prints.

use crate::devices;
use std::sync::LazyLock;

/// The abbreviated commit that the program was built from; empty if the source was not a git
/// repository.
const COMMIT: &str = env!("THERMOCLINE_COMMIT");

/// The version, and the commit if it is known: `0.1.0 (0123456)`.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let number = env!("CARGO_PKG_VERSION");
    if COMMIT.is_empty() { number.to_owned() } else { format!("{number} ({COMMIT})") }
});

/// [`VERSION`] and the backends of this build.
pub(crate) static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let built = devices::built();
    format!("{}\nbackends: {}\nsystem: {}", *VERSION, built.join(", "), system())
});

fn system() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

/// Name, version and commit in one word, printed where llama-bench prints its commit.
pub(crate) static BUILD: LazyLock<String> = LazyLock::new(|| {
    let name = concat!(env!("CARGO_PKG_NAME"), "-", env!("CARGO_PKG_VERSION"));
    if COMMIT.is_empty() { name.to_owned() } else { format!("{name}-{COMMIT}") }
});
