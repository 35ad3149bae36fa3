//! The disk cache.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hal::Bytes;

use super::{request, run, scheduler, tokens};
use crate::{Notice, SchedulerOptions};

fn options(folder: &Path, most: u64) -> SchedulerOptions {
    let disk_cache = Some((folder.to_owned(), Bytes(most)));
    SchedulerOptions { disk_cache, ..SchedulerOptions::default() }
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.collect();
    files.sort();
    files
}

#[test]
fn evicted_sequences_are_restored_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let scheduler = scheduler(256, 1, options(folder.path(), 1 << 30));
    let texts: Vec<Vec<u32>> = (0..4).map(|i| tokens(100, i + 1)).collect();
    let first: Vec<_> = texts.iter().map(|text| run(&scheduler, request(text, 4))).collect();
    assert!(first.iter().all(|answer| answer.report().n_cached == 0));
    let counters = scheduler.status().counters;
    assert_eq!((counters.n_spilled, counters.n_restored), (counters.n_evicted, 0));
    assert!(counters.n_spilled >= 2, "{counters:?}");
    for (text, first) in texts.iter().zip(&first) {
        let again = run(&scheduler, request(text, 4));
        assert_eq!((again.report().n_cached, &again.tokens), (99, &first.tokens));
    }
    let counters = scheduler.status().counters;
    assert_eq!(counters.prompt_tokens, 400 + 4);
    assert!(counters.n_restored >= 3 && counters.disk_tokens == counters.n_restored * 99);
}

#[test]
fn a_conversation_continues_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut conversation = tokens(150, 1);
    let mut n_new = 150;
    for _ in 0..3 {
        let scheduler = scheduler(512, 2, options(folder.path(), 1 << 30));
        let answer = run(&scheduler, request(&conversation, 8));
        assert_eq!(scheduler.status().counters.prompt_tokens, n_new);
        conversation.extend(&answer.tokens);
        conversation.extend(tokens(20, 9));
        n_new = 1 + 20;
        scheduler.shutdown(Duration::ZERO);
        assert_eq!(files(folder.path()).len(), 1, "a longer sequence replaces its beginning");
    }
}

#[test]
fn damaged_and_foreign_files_cause_a_notice() {
    let folder = tempfile::tempdir().unwrap();
    let text = tokens(100, 1);
    let first = {
        let scheduler = scheduler(256, 1, options(folder.path(), 1 << 30));
        run(&scheduler, request(&text, 4))
    };
    let [saved] = &files(folder.path())[..] else { panic!("one file") };
    let mut bytes = fs::read(saved).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(saved, &bytes).unwrap();
    let foreign = folder.path().join("notes.txt");
    fs::write(&foreign, "mine").unwrap();
    let short = folder.path().join("sequence-0123456789abcdef.kv");
    fs::write(&short, "short").unwrap();
    let seen: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let observer = {
        let seen = Arc::clone(&seen);
        Arc::new(move |notice: &Notice| seen.lock().unwrap().push(notice.clone()))
    };
    let options = SchedulerOptions { observer, ..options(folder.path(), 1 << 30) };
    let scheduler = scheduler(256, 1, options);
    let again = run(&scheduler, request(&text, 4));
    assert_eq!((again.report().n_cached, again.tokens), (0, first.tokens));
    let mut seen = seen.lock().unwrap().clone();
    let deleted = |notice: &Notice| {
        matches!(notice, Notice::FileDeleted { file, reason }
            if file == saved && reason.contains("checksum"))
    };
    assert!(seen.iter().any(deleted), "{seen:?}");
    seen.retain(|notice| matches!(notice, Notice::FileSkipped { .. }));
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(foreign.exists() && short.exists() && !saved.exists());
}

#[test]
fn the_size_of_the_folder_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let size = {
        let scheduler = scheduler(256, 1, options(folder.path(), 1 << 30));
        run(&scheduler, request(&tokens(100, 1), 4));
        scheduler.shutdown(Duration::ZERO);
        fs::metadata(&files(folder.path())[0]).unwrap().len()
    };
    let scheduler = scheduler(256, 1, options(folder.path(), 3 * size));
    for i in 2..8 {
        run(&scheduler, request(&tokens(100, i), 4));
    }
    scheduler.shutdown(Duration::ZERO);
    let total: u64 = files(folder.path()).iter().map(|f| fs::metadata(f).unwrap().len()).sum();
    let status = scheduler.status();
    assert!(total <= 3 * size && status.disk_bytes == total, "{total} of 3 * {size}: {status:?}");
    assert!(status.counters.n_spilled > 3);
    #[cfg(unix)]
    for file in files(folder.path()) {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let tiny = super::scheduler(256, 1, options(folder.path(), 10));
    assert_eq!(tiny.status().n_disk_files, 0);
    assert_eq!(run(&tiny, request(&tokens(100, 7), 4)).report().n_cached, 0);
}

#[test]
#[cfg(unix)]
fn a_pipe_with_the_name_of_a_file_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("sequence-0123456789abcdef.kv");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("skipped: this system has no mkfifo");
        return;
    }
    let seen: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let observer = {
        let seen = Arc::clone(&seen);
        Arc::new(move |notice: &Notice| seen.lock().unwrap().push(notice.clone()))
    };
    let options = SchedulerOptions { observer, ..options(folder.path(), 1 << 30) };
    run(&scheduler(256, 1, options), request(&tokens(100, 1), 4));
    let skipped = |notice: &Notice| {
        matches!(notice, Notice::FileSkipped { file, reason }
            if *file == pipe && reason.contains("not a regular file"))
    };
    assert!(seen.lock().unwrap().iter().any(skipped), "{seen:?}");
}

#[test]
fn leftovers_of_killed_processes_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(3600);
    let write = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, "half").unwrap();
        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(old).unwrap();
    };
    let others = ["4000000000-1.notes.kv.part", "sequence.part"];
    others.into_iter().for_each(&write);
    write("4000000000-1.sequence-0123456789abcdef.kv.part");
    let scheduler = scheduler(256, 1, options(folder.path(), 1 << 30));
    let left = files(folder.path());
    assert_eq!(left, others.map(|name| folder.path().join(name)));
    drop(scheduler);
}
