//! The command's files in the repack cache, and its notes about them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use thermocline::embedded;

const RUN: [&str; 12] =
    ["run", "-p", "Once", "-n", "6", "--temp", "0", "-t", "1", "-c", "64", "--no-perf"];

/// The built-in model in a file, and a folder for its cache.
struct TestFolder {
    folder: tempfile::TempDir,
}

impl TestFolder {
    fn new() -> TestFolder {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("story.gguf"), embedded::BYTES).unwrap();
        TestFolder { folder }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn start(&self, args: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().env("XDG_CACHE_HOME", self.folder.path().join("xdg"));
        command.env("THERMOCLINE_ARG_BACKEND", "cpu");
        command.args(RUN);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs the command; returns standard output and notes.
    fn run(&self, args: &[&str]) -> (String, String) {
        let output = self.start(args).wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    }

    /// Runs the model in the file with `cache` as the repack cache.
    fn run_with_cache(&self, cache: &Path, more: &[&str]) -> (String, String) {
        let model = self.folder.path().join("story.gguf");
        let args = ["-m", model.to_str().unwrap(), "--repack-cache", cache.to_str().unwrap()];
        self.run(&[&args, more].concat())
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.cache()) else { return Vec::new() };
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

#[test]
fn the_first_run_writes_the_cache_and_later_runs_read_it() {
    let place = TestFolder::new();
    let (expected, notes) = place.run_with_cache(Path::new("off"), &[]);
    assert_eq!(notes, "");
    let (text, notes) = place.run_with_cache(&place.cache(), &[]);
    assert_eq!(text, expected);
    let [file] = &place.files()[..] else { panic!("{:?}", place.files()) };
    assert!(notes.starts_with("note: writing repacked weights, "), "{notes}");
    assert!(notes.contains(&format!("to {}; --repack-cache off disables it", file.display())));
    assert_eq!(place.run_with_cache(&place.cache(), &[]), (expected.clone(), String::new()));
    // A damaged file is reported once and written again.
    let len = fs::metadata(file).unwrap().len();
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(len / 2).unwrap();
    let (text, notes) = place.run_with_cache(&place.cache(), &[]);
    assert_eq!(text, expected);
    assert!(notes.contains("are written again: the file is damaged"), "{notes}");
    assert_eq!(fs::metadata(file).unwrap().len(), len);
    assert_eq!(place.run_with_cache(&place.cache(), &[]), (expected, String::new()));
}

#[test]
fn no_cache_file_for_small_models_or_if_disabled() {
    let place = TestFolder::new();
    let cache = place.cache();
    place.run(&["--repack-cache", cache.to_str().unwrap()]);
    let model = place.folder.path().join("story.gguf");
    place.run(&["-m", model.to_str().unwrap()]);
    place.run_with_cache(Path::new("off"), &[]);
    place.run_with_cache(&cache, &["--no-mmap"]);
    let (_, notes) = place.run_with_cache(&cache, &["-nr"]);
    assert!(notes.contains("--no-repack: skipping a neuron saves only"), "{notes}");
    let listed = |folder: &Path| -> Vec<_> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    // The usual cache folder is created, and stays empty.
    let (left, usual) = (listed(place.folder.path()), place.folder.path().join("xdg"));
    assert_eq!(left.len(), 2, "the model and the cache: {left:?}");
    assert!(listed(&usual).iter().all(|name| listed(&usual.join(name)).is_empty()));
}

#[test]
fn an_unusable_cache_folder_is_noted_and_the_model_runs() {
    let place = TestFolder::new();
    let (expected, _) = place.run_with_cache(Path::new("off"), &[]);
    let taken = place.folder.path().join("story.gguf/below");
    let (text, notes) = place.run_with_cache(&taken, &[]);
    assert_eq!(text, expected);
    assert_eq!(
        notes
            .matches("the repacked weights are not kept on disk: cannot create the folder")
            .count(),
        1,
        "{notes}"
    );
}

/// A limit on the size of files stands in for a disk that becomes full during the write.
#[test]
#[cfg(unix)]
fn a_full_disk_is_noted_once_and_leaves_no_file() {
    let place = TestFolder::new();
    let (expected, _) = place.run_with_cache(Path::new("off"), &[]);
    let model = place.folder.path().join("story.gguf");
    let mut command = Command::new("sh");
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    command.env_clear().env("THERMOCLINE_ARG_BACKEND", "cpu");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_thermocline")]).args(RUN);
    command.arg("-m").arg(model).arg("--repack-cache").arg(place.cache());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let notes = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{notes}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let n = |what: &str| notes.matches(what).count();
    let counts = [n("weights are not kept on disk: "), n("cannot write: "), notes.lines().count()];
    assert_eq!(counts, [1, 1, 2], "{notes}");
    assert_eq!(place.files(), Vec::<PathBuf>::new());
}

#[test]
fn concurrent_first_runs_write_one_file() {
    let place = TestFolder::new();
    let model = place.folder.path().join("story.gguf");
    let (model, cache) = (model.to_str().unwrap(), place.cache());
    let args = ["-m", model, "--repack-cache", cache.to_str().unwrap()];
    let children: Vec<Child> = (0..3).map(|_| place.start(&args)).collect();
    let outputs = children.into_iter().map(|child| child.wait_with_output().unwrap());
    let texts: Vec<_> = outputs.map(|output| (output.status.code(), output.stdout)).collect();
    assert!(texts.iter().all(|text| *text == texts[0] && text.0 == Some(0)), "{texts:?}");
    assert_eq!(place.files().len(), 1);
    assert_eq!(place.run_with_cache(&cache, &[]).1, "");
}

#[test]
fn the_folder_is_listed_and_cleared() {
    let place = TestFolder::new();
    let cache = place.cache();
    let command = |what: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().args(["cache", what, "--repack-cache", cache.to_str().unwrap()]);
        let output = command.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(command("list").contains("0 B  of repacked weights in 0 files"));
    place.run_with_cache(&cache, &[]);
    fs::write(cache.join("99-0.x.thermocline.part"), [0; 100]).unwrap();
    fs::write(cache.join("somebody's.gguf"), [0; 100]).unwrap();
    fs::write(cache.join("notes.thermocline"), "remember the milk").unwrap();
    fs::write(cache.join("notes.thermocline.part"), "not a name of this program").unwrap();
    let list = command("list");
    assert!(list.contains("story.gguf)") && list.contains("in 1 file in"), "{list}");
    fs::remove_file(place.folder.path().join("story.gguf")).unwrap();
    assert!(command("list").contains("story.gguf, which no longer exists)"));
    assert!(command("clear").contains("freed in"));
    let left: Vec<_> =
        place.files().iter().map(|path| path.file_name().unwrap().to_owned()).collect();
    let others = ["notes.thermocline", "notes.thermocline.part", "somebody's.gguf"];
    assert_eq!(left, others, "files of other programs are kept");
}
