//! Files on disk: split models, errors for files that are not models, and writes that leave a
//! complete file or none.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{contents, fill, small, small_bytes};
use thermocline::gguf::{Container, File, TensorType, Writer};

fn open_error(path: &Path) -> String {
    let message = File::open(path).unwrap_err().to_string();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(message.contains(name), "{message:?} does not name {name}");
    message
}

#[track_caller]
fn check(message: &str, expected: &str) {
    assert!(message.contains(expected), "{message:?} lacks {expected:?}");
}

#[test]
fn a_written_file_opens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, "an older file").unwrap();
    let mut data = small(Container::PowerInfer).create(&path).unwrap();
    fill(&mut data);
    assert_eq!(fs::read_to_string(&path).unwrap(), "an older file");
    data.finish().unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert_eq!(fs::read(&path).unwrap(), small_bytes(Container::PowerInfer));

    let file = File::open(&path).unwrap();
    assert_eq!(file.size_bytes(), fs::metadata(&path).unwrap().len());
    let share = file.slice(file.tensor("weight").unwrap()).unwrap();
    drop(file);
    let other = share.clone();
    drop(share);
    let from_thread = std::thread::spawn(move || other.to_vec()).join().unwrap();
    assert_eq!(from_thread, contents("weight", 72));
}

#[test]
fn an_unfinished_file_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let first = small(Container::Gguf).create(&path).unwrap();
    let mut second = small(Container::Gguf).create(&path).unwrap();
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(names.len(), 2);
    // Others cannot create a name first that they cannot guess.
    assert!(!names.iter().any(|name| name.contains("-0.") || name.contains("-1.")), "{names:?}");
    drop(first);
    second.write("norm", &[1; 12]).unwrap();
    check(&second.finish().unwrap_err().to_string(), "`weight` needs 72 bytes of data, found 0");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);

    let nowhere = folder.path().join("absent").join("model.gguf");
    check(&small(Container::Gguf).create(&nowhere).unwrap_err().to_string(), "cannot create");
    let taken = folder.path().join("taken");
    let mut data = small(Container::Gguf).create(&taken).unwrap();
    fs::create_dir(&taken).unwrap();
    fill(&mut data);
    check(&data.finish().unwrap_err().to_string(), "the output is a folder");
    check(&small(Container::Gguf).create(&taken).unwrap_err().to_string(), "only a regular file");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn errors_describe_unreadable_paths() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    check(&open_error(&path.join("absent.gguf")), "cannot open: ");
    let message = open_error(path);
    assert!(
        message.ends_with("is a directory, expected a GGUF file; it contains no GGUF file"),
        "{message}"
    );
    fs::write(path.join("config.json"), "{}").unwrap();
    check(&open_error(path), "Hugging Face");
    fs::write(path.join("b.gguf"), "").unwrap();
    check(&open_error(path), "; it contains b.gguf");
    fs::write(path.join("a.gguf"), "").unwrap();
    check(&open_error(path), "; it contains 2 files, a.gguf to b.gguf: name one of them");
    check(&open_error(&path.join("a.gguf")), "is empty (0 bytes)");
}

#[cfg(unix)]
#[test]
fn a_socket_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    check(&open_error(&path), "is not a regular file");
}

/// Writes file `number`, from 0, of a model split into `count` files. It has one tensor of 8
/// values.
fn write_part(path: &Path, number: u16, count: u16, n_tensors: i32, tensor: &str) {
    let mut writer = Writer::new(Container::Gguf);
    writer.set("split.no", number).unwrap();
    writer.set("split.count", count).unwrap();
    writer.set("split.tensors.count", n_tensors).unwrap();
    writer.declare(tensor, &[8], TensorType::F32).unwrap();
    let mut data = writer.create(path).unwrap();
    fill(&mut data);
    data.finish().unwrap();
}

#[test]
fn parts_of_a_model_open_together() {
    let folder = tempfile::tempdir().unwrap();
    let part = |n: u16| folder.path().join(format!("my-model-{n:05}-of-00003.gguf"));
    for n in 1..=3 {
        write_part(&part(n), n - 1, 3, 3, &format!("t{n}"));
    }
    for opened in 1..=3 {
        let file = File::open(&part(opened)).unwrap();
        assert_eq!(file.paths(), [part(1), part(2), part(3)]);
        assert_eq!(file.name(), part(1).display().to_string());
        assert_eq!(file.tensors().len(), 3);
        assert_eq!(file.tensor("t2").unwrap().part(), 1);
        assert_eq!(file.metadata().u32("split.no").unwrap(), Some(0));
        for tensor in file.tensors() {
            assert_eq!(file.bytes(tensor).unwrap(), contents(&tensor.name, 32));
        }
        let lengths = (1..=3).map(|n| fs::metadata(part(n)).unwrap().len());
        assert_eq!(file.size_bytes(), lengths.sum::<u64>());
    }
}

#[test]
fn parts_that_do_not_match_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let part = |n: u16| folder.path().join(format!("m-{n:05}-of-00002.gguf"));
    let broken = |n: u16| {
        let message = File::open(&part(1)).unwrap_err().to_string();
        check(&message, &format!("m-0000{n}-of-00002.gguf"));
        message
    };
    write_part(&part(1), 0, 2, 2, "a");
    check(&broken(2), "part 2 of 2 of this split model is missing");
    fs::write(part(2), "GGUF").unwrap();
    check(&broken(2), "truncated inside the version: expected at least 8 bytes, found 4");
    fs::write(part(2), small_bytes(Container::Gguf)).unwrap();
    check(&broken(2), "key `split.count`: expected 2, found 1");
    fs::write(part(2), small_bytes(Container::PowerInfer)).unwrap();
    check(&broken(2), "container: expected GGUF, found PowerInfer GGUF");
    write_part(&part(2), 0, 2, 2, "b");
    check(&broken(2), "key `split.no`: expected 1, found 0");
    write_part(&part(2), 1, 2, 2, "a");
    check(&broken(1), "tensor `a` occurs twice");
    write_part(&part(1), 0, 2, 9, "b");
    check(&broken(1), "expected 9, found 2");

    let odd = folder.path().join("renamed.gguf");
    fs::copy(part(1), &odd).unwrap();
    check(&open_error(&odd), "expected NAME-00001-of-00002.gguf, as for each of its 2 parts");
    let bytes = fs::read(part(1)).unwrap();
    let in_memory = File::from_vec(bytes, "memory").unwrap_err().to_string();
    check(&in_memory, "key `split.count`: expected 1 for a model in memory, found 2");

    let mut writer = Writer::new(Container::Gguf);
    writer.set("split.count", u64::MAX).unwrap();
    writer.create(&part(1)).unwrap().finish().unwrap();
    check(&broken(1), "expected at most 99999, found 18446744073709551615");
}

/// Writing a file removes what a killed process left of the same file, and nothing else.
#[test]
fn abandoned_temporary_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    let names =
        ["12-0.m.gguf.part", "12-0.other.gguf.part", "notes.m.gguf.part", "13-1.m.gguf.part"];
    for (name, time) in names.iter().zip([long_ago, long_ago, long_ago, SystemTime::now()]) {
        let file = fs::File::create(path(name)).unwrap();
        file.set_modified(time).unwrap();
    }
    write_part(&path("m.gguf"), 0, 1, 1, "t");
    let mut left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["12-0.other.gguf.part", "13-1.m.gguf.part", "m.gguf", "notes.m.gguf.part"]);
}
