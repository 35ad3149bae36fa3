//! A lock that another process never releases.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

fn lock(folder: &Path) -> fs::File {
    let file = fs::File::open(folder).unwrap();
    file.lock().unwrap();
    file
}

const PROFILE: [&str; 5] = ["profile", "-m", "story.gguf", "--tokens", "64"];

#[test]
fn profile_says_that_the_folder_is_locked() {
    let folder = Folder::new();
    let _held = lock(folder.0.path());
    let start = Instant::now();
    let output = folder.run(&PROFILE);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("another process has locked the folder"), "{text}");
    assert!(text.contains("help: end that process"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(folder.parts(), [""; 0]);
}

#[test]
fn a_run_ends_although_the_cache_is_locked() {
    let folder = Folder::new();
    let cache = folder.path("xdg/thermocline");
    fs::create_dir_all(&cache).unwrap();
    let _held = lock(&cache);
    let args = ["run", "-p", "Once", "-n", "64", "-m", "story.gguf", "-c", "128"];
    let output = folder.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// How long a command that waits for a lock runs on after a signal; `None` if it did not wait.
fn time_to_end_after_a_signal() -> Option<Duration> {
    let folder = Folder::new();
    let held = lock(folder.0.path());
    let mut child = folder.start(&PROFILE);
    // /proc/locks has a line with `->` for each waiting process only if it blocks, so the wait
    // shows by the process doing nothing else: it sleeps after its profile is complete.
    thread::sleep(Duration::from_secs(3));
    let waits = child.try_wait().unwrap().is_none();
    let start = Instant::now();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    drop(held);
    waits.then(|| start.elapsed())
}

#[test]
fn the_first_signal_ends_the_wait() {
    // On a busy machine the profile may not be complete yet, or the wait may be over.
    let soon = |time: Option<Duration>| time.is_some_and(|time| time < Duration::from_secs(2));
    assert!((0..4).any(|_| soon(time_to_end_after_a_signal())));
}
