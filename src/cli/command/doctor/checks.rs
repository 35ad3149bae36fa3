//! Checks of the machine's settings: cache folder, disk, CPU governor, huge pages.

use crate::cli::folders::cache_folder;
use hal::Bytes;
use serde_json::{Value, json};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::path::Path;

/// Less free disk space than this is reported: repacked weights of a 7B model take it.
const MIN_DISK: Bytes = Bytes(4 << 30);

/// The result of one check.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) is_ok: bool,
    /// What was found, and what to do if it is not good.
    pub(super) text: String,
    /// Whether the finding slows decode down.
    pub(super) is_slow: bool,
}

impl Check {
    fn ok(text: String) -> Check {
        Check { is_ok: true, text, is_slow: false }
    }

    fn problem(text: String) -> Check {
        Check { is_ok: false, text, is_slow: false }
    }

    pub(super) fn label(&self) -> &'static str {
        if self.is_ok { "  ok       " } else { "  problem  " }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "ok": self.is_ok, "text": self.text })
    }
}

/// All checks that this system allows.
pub(super) fn checks() -> Vec<Check> {
    let cache = cache_folder(None).map(|folder| folder.path);
    let system = |path: &str| fs::read_to_string(path).ok();
    let governor = system("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let pages = system("/sys/kernel/mm/transparent_hugepage/enabled");
    [folder(cache.as_deref())]
        .into_iter()
        .chain(cache.as_deref().and_then(disk))
        .chain(governor.as_deref().map(self::governor))
        .chain(pages.as_deref().map(huge_pages))
        .collect()
}

fn folder(cache: Option<&Path>) -> Check {
    let Some(path) = cache else {
        return Check::problem(
            "no cache folder is known, so speeds and profiles are lost: set HOME".to_owned(),
        );
    };
    let shown = path.display();
    match write(path) {
        Ok(()) => Check::ok(format!("the cache folder {shown} is writable")),
        Err(error) => Check::problem(format!(
            "the cache folder {shown} cannot be written ({error}): set XDG_CACHE_HOME to another"
        )),
    }
}

/// Writes and removes a small file in `folder`.
fn write(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let path = folder.join(format!("doctor-{:016x}.tmp", RandomState::new().hash_one(0)));
    let written = fs::File::create_new(&path).and_then(|mut file| file.write_all(b"x"));
    let removed = fs::remove_file(&path);
    written.and(removed)
}

fn disk(cache: &Path) -> Option<Check> {
    let folder = cache.ancestors().find(|folder| folder.is_dir())?;
    let free = Bytes(crate::gguf::free_bytes(folder)?);
    let text = format!("{free} of disk are free for models and caches");
    Some(if free < MIN_DISK {
        Check::problem(format!("only {text}: `thermocline rm` and `cache clear` free some"))
    } else {
        Check::ok(text)
    })
}

fn governor(name: &str) -> Check {
    let name = name.trim();
    match name {
        "performance" | "schedutil" => Check::ok(format!("the CPU governor is {name}")),
        _ => Check {
            is_slow: name == "powersave",
            ..Check::problem(format!(
                "the CPU governor is {name}: `sudo cpupower frequency-set -g performance` may be faster"
            ))
        },
    }
}

/// `states` are the kernel's words, the chosen one in brackets.
fn huge_pages(states: &str) -> Check {
    let chosen = states.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match chosen.map(|(name, _)| name) {
        Some("never") => Check {
            is_slow: true,
            ..Check::problem(
                "huge pages are off: `echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled` makes reading weights faster"
                    .to_owned(),
            )
        },
        name => Check::ok(format!("huge pages are available ({})", name.unwrap_or("unknown"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cost_speed_are_problems() {
        assert!(governor("performance\n").is_ok && !governor("powersave\n").is_ok);
        assert!(governor("powersave").is_slow && !governor("ondemand").is_slow);
        assert!(huge_pages("always [madvise] never\n").is_ok);
        let off = huge_pages("always madvise [never]\n");
        assert!(!off.is_ok && off.is_slow && off.text.contains("tee /sys"), "{off:?}");
    }

    #[test]
    fn the_cache_folder_has_to_be_writable() {
        let place = tempfile::tempdir().unwrap();
        let cache = place.path().join("a/b");
        assert!(folder(Some(&cache)).is_ok && fs::read_dir(&cache).unwrap().next().is_none());
        assert!(disk(&cache).is_some_and(|check| check.text.contains("disk")));
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(!folder(Some(&file)).is_ok && !folder(None).is_ok);
    }
}
