//! Downloads that go wrong: nothing half-written is ever used.

use super::*;
use std::thread;
use std::time::{Duration, Instant};

const PULL: [&str; 2] = ["pull", REPOSITORY];

fn incomplete(home: &Path) -> Vec<usize> {
    let blobs = blobs(home).into_iter();
    blobs.filter(|(name, _)| name.ends_with(".incomplete")).map(|(_, data)| data.len()).collect()
}

/// Starts a slow download, and returns when more of it is on disk.
fn start_slow(hub: &TestHub, home: &Path, args: &[&str]) -> std::process::Child {
    let on_disk = || incomplete(home).first().copied().unwrap_or(0);
    let before = on_disk();
    let mut pull = command(hub, home, args);
    let child = pull.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while on_disk() <= before {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing arrives");
        thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn a_connection_that_breaks_ten_times_gives_the_right_file() {
    let home = TempDir::new().unwrap();
    let model = data(1, 3_000_000);
    let hub = TestHub::start(&[("tiny.gguf", &model)], Fault::Breaks(10));
    let out = run(&hub, home.path(), &PULL);
    assert_eq!(fs::read(succeed(&out).trim_end()).unwrap(), model);
    assert_eq!(hub.requests("/cdn/").len(), 11, "{}", text(&out.stderr));
    assert_eq!(incomplete(home.path()).len(), 0);
}

#[test]
fn wrong_data_is_refused_and_removed() {
    let home = TempDir::new().unwrap();
    let model = data(1, 50_000);
    let hub = TestHub::start(&[("tiny.gguf", &model)], Fault::WrongData);
    fail(&run(&hub, home.path(), &PULL), &["has the checksum", "the download was deleted"]);
    assert!(blobs(home.path()).is_empty());
    assert!(!repository(home.path()).join("snapshots").exists());
    hub.set_fault(Fault::WrongSize);
    let out = run(&hub, home.path(), &PULL);
    fail(&out, &["should have 50000 bytes, but the server has 50001"]);
    assert!(blobs(home.path()).is_empty());
    hub.set_fault(Fault::None);
    succeed(&run(&hub, home.path(), &PULL));
    check_blobs(home.path(), &[&model]);
}

#[test]
fn a_damaged_partial_file_is_fetched_again() {
    let home = TempDir::new().unwrap();
    let model = data(1, 50_000);
    let hub = TestHub::start(&[("tiny.gguf", &model)], Fault::None);
    let folder = repository(home.path()).join("blobs");
    fs::create_dir_all(&folder).unwrap();
    let partial = folder.join(format!("{}.incomplete", checksum(&model)));
    for wrong in [data(9, 20_000), data(9, 50_000), data(9, 60_000)] {
        fs::write(&partial, wrong).unwrap();
        let path = succeed(&run(&hub, home.path(), &PULL));
        assert_eq!(fs::read(path.trim_end()).unwrap(), model);
        fs::remove_file(folder.join(checksum(&model))).unwrap();
    }
}

#[test]
fn servers_without_ranges_or_checksums_in_the_listing_work() {
    for fault in [Fault::NoRanges, Fault::NoBlobs] {
        let home = TempDir::new().unwrap();
        let model = data(1, 50_000);
        let hub = TestHub::start(&[("tiny.gguf", &model)], fault);
        let folder = repository(home.path()).join("blobs");
        fs::create_dir_all(&folder).unwrap();
        let partial = folder.join(format!("{}.incomplete", checksum(&model)));
        fs::write(partial, &model[..7000]).unwrap();
        let out = run(&hub, home.path(), &PULL);
        assert_eq!(fs::read(succeed(&out).trim_end()).unwrap(), model, "{fault:?}");
        assert!(text(&out.stderr).contains("checksum verified"), "{fault:?}");
    }
}

#[test]
fn broken_servers_are_reported() {
    let home = TempDir::new().unwrap();
    let model = data(1, 50_000);
    let hub = TestHub::start(&[("tiny.gguf", &model)], Fault::Loop);
    fail(&run(&hub, home.path(), &PULL), &["more than 8 redirects"]);
    hub.set_fault(Fault::Down);
    fail(&run(&hub, home.path(), &PULL), &["answered with status 503", "try again later"]);
}

/// Times from the first new data to each of ten interrupts.
#[cfg(unix)]
fn random_delays() -> [Duration; 10] {
    let mut random = ChaCha8Rng::seed_from_u64(rand::random());
    std::array::from_fn(|_| Duration::from_micros(random.random_range(0..40_000)))
}

/// Interrupted ten times at random moments, the download is never used before it is complete, and
/// then right.
#[test]
#[cfg(unix)]
fn an_interrupted_download_continues() {
    let home = TempDir::new().unwrap();
    let model = data(1, 200_000);
    let hub = TestHub::start(&[("tiny.gguf", &model)], Fault::Slow);
    let lines = [&PULL[..], &["run", REPOSITORY, "Hi"], &["chat", REPOSITORY]];
    for (args, delay) in lines.into_iter().cycle().zip(random_delays()) {
        let child = start_slow(&hub, home.path(), args);
        thread::sleep(delay);
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let out = child.wait_with_output().unwrap();
        let shown = text(&out.stderr);
        assert_eq!(out.status.code(), Some(130), "{args:?}: {shown}");
        assert!(shown.contains("the same command continues"), "{args:?}: {shown}");
    }
    let left = incomplete(home.path());
    assert!(left.len() == 1 && left[0] < model.len(), "{left:?}");
    assert!(!repository(home.path()).join("snapshots").exists());
    let list = succeed(&run(&hub, home.path(), &["list"]));
    assert!(list.contains("not complete; `thermocline pull` continues it"), "{list}");
    let out = run(&hub, home.path(), &["run", REPOSITORY, "--offline"]);
    fail(&out, &["not in the cache"]);

    hub.set_fault(Fault::None);
    let out = run(&hub, home.path(), &PULL);
    assert_eq!(fs::read(succeed(&out).trim_end()).unwrap(), model);
    assert!(text(&out.stderr).contains("are on disk already"), "{}", text(&out.stderr));
}

#[test]
fn concurrent_pulls_download_a_file_once() {
    let home = TempDir::new().unwrap();
    let model = data(1, 60_000);
    let hub = TestHub::start(&[("tiny.gguf", &model)], Fault::Slow);
    let first = start_slow(&hub, home.path(), &PULL);
    let second = run(&hub, home.path(), &PULL);
    assert_eq!(fs::read(succeed(&second).trim_end()).unwrap(), model);
    assert!(text(&second.stderr).contains("another process downloads"), "{}", text(&second.stderr));
    succeed(&first.wait_with_output().unwrap());
    assert_eq!(hub.requests("/cdn/").len(), 1);
    check_blobs(home.path(), &[&model]);
}
