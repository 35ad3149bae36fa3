//! Checks of the machine: other programs, cache folder, disk, CPU governor, huge pages.

use crate::cli::folders::cache_folder;
use hal::Bytes;
use serde_json::{Value, json};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

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

/// What other programs use of the CPUs is observed for this long.
const LOAD_TIME: Duration = Duration::from_millis(250);
/// More than this share of the CPUs in use by others makes speeds doubtful.
const MAX_LOAD: f64 = 0.15;

/// How busy the CPUs are before anything is measured; `None` where the system does not say.
pub(super) fn other_programs() -> Option<Check> {
    let now = || CpuTime::parse(&fs::read_to_string("/proc/stat").ok()?);
    let before = now()?;
    thread::sleep(LOAD_TIME);
    Some(load(now()?.busy_since(before)))
}

/// `busy` is the share of the time of all CPUs.
fn load(busy: f64) -> Check {
    let percent = 100.0 * busy;
    if busy <= MAX_LOAD {
        return Check::ok(format!("other programs used {percent:.0} % of the CPUs"));
    }
    Check {
        is_slow: true,
        ..Check::problem(format!(
            "other programs used {percent:.0} % of the CPUs, so the measured speeds are too low: close them and run `doctor` again"
        ))
    }
}

/// Time of all CPUs since the start, in the kernel's ticks.
#[derive(Clone, Copy, Debug)]
struct CpuTime {
    idle: u64,
    all: u64,
}

impl CpuTime {
    /// Reads the first line of `/proc/stat`. Time that a hypervisor gave to others is busy.
    fn parse(text: &str) -> Option<CpuTime> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).collect();
        // User, nice, system, idle, waiting for disks, interrupts (two), stolen; guests are in user.
        let counted = ticks.get(..8)?;
        Some(CpuTime { idle: counted[3] + counted[4], all: counted.iter().sum() })
    }

    fn busy_since(self, before: CpuTime) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        if all == 0 { 0.0 } else { all.saturating_sub(idle) as f64 / all as f64 }
    }
}

/// All checks of settings that this system allows.
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
    let shown = without_names(path, std::env::home_dir().as_deref());
    match write(path) {
        Ok(()) => Check::ok(format!("the cache folder {shown} is writable")),
        Err(error) => Check::problem(format!(
            "the cache folder {shown} cannot be written ({error}): set XDG_CACHE_HOME to another"
        )),
    }
}

/// The path without the names of users and folders, since others read reports.
fn without_names(path: &Path, home: Option<&Path>) -> String {
    match home.and_then(|home| path.strip_prefix(home).ok()) {
        Some(rest) => format!("~/{}", rest.display()),
        None => "of XDG_CACHE_HOME".to_owned(),
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
    fn folders_are_shown_without_names() {
        let home = Some(Path::new("/home/ann"));
        let shown = |path: &str| without_names(Path::new(path), home);
        assert_eq!(shown("/home/ann/.cache/thermocline"), "~/.cache/thermocline");
        assert_eq!(shown("/data/ann/thermocline"), "of XDG_CACHE_HOME");
        assert_eq!(without_names(Path::new("/home/ann/x"), None), "of XDG_CACHE_HOME");
    }

    #[test]
    fn settings_that_cost_speed_are_problems() {
        assert!(governor("performance\n").is_ok && !governor("powersave\n").is_ok);
        assert!(governor("powersave").is_slow && !governor("ondemand").is_slow);
        assert!(huge_pages("always [madvise] never\n").is_ok);
        let off = huge_pages("always madvise [never]\n");
        assert!(!off.is_ok && off.is_slow && off.text.contains("tee /sys"), "{off:?}");
    }

    #[test]
    fn busy_cpus_are_a_problem() {
        let before = CpuTime::parse("cpu  100 5 20 800 50 1 2 22 7 0\ncpu0 1 2\n").unwrap();
        assert_eq!((before.idle, before.all), (850, 1000));
        let after = CpuTime::parse("cpu  150 5 20 830 60 1 2 32 7 0\n").unwrap();
        let busy = after.busy_since(before);
        assert_eq!(busy, 0.6);
        let check = load(busy);
        assert!(!check.is_ok && check.is_slow && check.text.contains("60 %"), "{check:?}");
        assert!(load(0.1).is_ok && !load(0.1).is_slow);
        assert_eq!(before.busy_since(after), 0.0);
        for wrong in ["", "intr 1 2", "cpu  1 2 3"] {
            assert!(CpuTime::parse(wrong).is_none(), "{wrong}");
        }
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
