//! Models by name, against a hub on this machine.

mod faults;
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use server::{COMMIT, Fault, REPOSITORY, TOKEN, TestHub, checksum};
use tempfile::TempDir;
use thermocline::embedded;

/// A command whose only folders are in `home`, and whose only hub is `hub`.
fn command(hub: &TestHub, home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().env("HOME", home).env("HF_ENDPOINT", &hub.url);
    command.args(args).stdin(Stdio::null());
    command
}

fn run(hub: &TestHub, home: &Path, args: &[&str]) -> Output {
    command(hub, home, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn succeed(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn fail(output: &Output, says: &[&str]) {
    let shown = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    for words in says {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    assert!(shown.contains("help: ") && !shown.contains("panicked"), "{shown}");
    assert!(output.stdout.is_empty());
}

/// Random bytes, in place of a model that is not opened.
fn data(seed: u64, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    ChaCha8Rng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

fn repository(home: &Path) -> PathBuf {
    home.join(".cache/huggingface/hub/models--someone--tiny-GGUF")
}

/// Names and contents of the files in a repository's `blobs` folder.
fn blobs(home: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(repository(home).join("blobs")).into_iter().flatten().flatten();
    let blob = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    entries.map(blob).collect()
}

/// Checks that the complete files in `blobs` are exactly `files`.
#[track_caller]
fn check_blobs(home: &Path, files: &[&[u8]]) {
    let expected: BTreeMap<String, Vec<u8>> =
        files.iter().map(|data| (checksum(data), data.to_vec())).collect();
    let mut found = blobs(home);
    found.retain(|name, _| !name.ends_with(".incomplete"));
    let names = |map: &BTreeMap<String, Vec<u8>>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    assert!(found == expected, "the data differs");
}

#[test]
fn a_model_is_pulled_into_the_standard_cache() {
    let home = TempDir::new().unwrap();
    let (q4, q8, projector) = (data(1, 300_000), data(2, 2000), data(3, 3000));
    let hub = TestHub::start(
        &[
            ("tiny-Q4_K_M.gguf", &q4),
            ("tiny-Q8_0.gguf", &q8),
            ("mmproj-Q4_K_M.gguf", &projector),
            ("README.md", b"# Tiny"),
        ],
        Fault::None,
    );
    let out = run(&hub, home.path(), &["pull", REPOSITORY]);
    let path = PathBuf::from(succeed(&out).trim_end());
    let repository = repository(home.path());
    assert_eq!(path, repository.join("snapshots").join(COMMIT).join("tiny-Q4_K_M.gguf"));
    assert_eq!(fs::read(&path).unwrap(), q4);
    assert_eq!(fs::read_link(&path).unwrap(), Path::new("../../blobs").join(checksum(&q4)));
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    check_blobs(home.path(), &[&q4]);
    assert!(text(&out.stderr).contains("checksum verified"), "{}", text(&out.stderr));

    let again = run(&hub, home.path(), &["pull", REPOSITORY]);
    assert!(text(&again.stderr).contains("was downloaded already"));
    assert_eq!(hub.requests("/cdn/").len(), 1, "nothing is fetched twice");

    succeed(&run(&hub, home.path(), &["pull", &format!("hf.co/{REPOSITORY}:q8_0")]));
    check_blobs(home.path(), &[&q4, &q8]);
    let list = succeed(&run(&hub, home.path(), &["list"]));
    assert!(list.contains("someone/tiny-GGUF:Q4_K_M     300 kB"), "{list}");
    assert!(list.contains("someone/tiny-GGUF:Q8_0      2.00 kB"), "{list}");
    assert!(list.contains("2 models, 302 kB in "), "{list}");
    let json = succeed(&run(&hub, home.path(), &["list", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["bytes"], 300_000);

    // `rm` also deletes the side file that `profile` writes.
    fs::write(path.with_file_name("tiny-Q8_0.thermocline.gguf"), [0; 500]).unwrap();
    let out = succeed(&run(&hub, home.path(), &["rm", &format!("{REPOSITORY}:Q8_0")]));
    assert_eq!(out, "deleted someone/tiny-GGUF:Q8_0: 1 file, 2.50 kB\n");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    check_blobs(home.path(), &[&q4]);
    succeed(&run(&hub, home.path(), &["rm", REPOSITORY]));
    assert!(!repository.exists());
    fail(&run(&hub, home.path(), &["rm", REPOSITORY]), &["not in the cache", "thermocline list"]);
}

#[test]
fn every_part_and_powerinfers_counts_are_pulled() {
    let home = TempDir::new().unwrap();
    let parts = [data(1, 5000), data(2, 6000)];
    let counts = data(3, 400);
    let hub = TestHub::start(
        &[
            ("Q4_0/m-Q4_0-00001-of-00002.gguf", &parts[0]),
            ("Q4_0/m-Q4_0-00002-of-00002.gguf", &parts[1]),
            ("activation/activation_0.pt", &counts),
            ("F16/m-F16-00001-of-00003.gguf", &parts[0]),
        ],
        Fault::None,
    );
    let out = run(&hub, home.path(), &["pull", REPOSITORY]);
    let path = PathBuf::from(succeed(&out).trim_end());
    assert!(path.ends_with("Q4_0/m-Q4_0-00001-of-00002.gguf"), "{}", path.display());
    let link = fs::read_link(&path).unwrap();
    assert_eq!(link, Path::new("../../../blobs").join(checksum(&parts[0])));
    check_blobs(home.path(), &[&parts[0], &parts[1], &counts]);
    assert!(text(&out.stderr).contains("--import"), "{}", text(&out.stderr));
    let out = run(&hub, home.path(), &["pull", &format!("{REPOSITORY}:F16")]);
    fail(&out, &["has 3 parts, and the repository has 1"]);
}

#[test]
fn commands_open_models_by_name() {
    let home = TempDir::new().unwrap();
    let model = embedded::BYTES;
    let hub = TestHub::start(&[("tiny-F16.gguf", model)], Fault::None);
    let name = format!("{REPOSITORY}:F16");
    let info = run(&hub, home.path(), &["info", "-hf", &name, "--json"]);
    let info: serde_json::Value = serde_json::from_str(&succeed(&info)).unwrap();
    assert!(info.is_object());
    let n = hub.requests("/").len();
    for args in [
        &["run", REPOSITORY, "Once upon", "-n", "2"][..],
        &[REPOSITORY, "Once upon", "-n", "2"],
        &["-hf", REPOSITORY, "-p", "Once upon", "-n", "2", "--offline"],
        &["tokenize", "-m", &name, "-p", "Once"],
        &["show", &name],
    ] {
        assert_ne!(succeed(&run(&hub, home.path(), args)), "", "{args:?}");
    }
    let mut llama = command(&hub, home.path(), &["plan"]);
    succeed(&llama.env("LLAMA_ARG_HF_REPO", &name).output().unwrap());
    assert_eq!(hub.requests("/").len(), n, "a model in the cache needs no request");
    let out = run(&hub, home.path(), &["run", "-hf", &name, "-m", "x.gguf"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("-hf and -m both name a model"), "{}", text(&out.stderr));
    // A refused flag ends the command before anything is downloaded.
    let fresh = TempDir::new().unwrap();
    let out = run(&hub, fresh.path(), &["run", "-hf", &name, "--cfg-scale", "2"]);
    assert_eq!((out.status.code(), hub.requests("/").len()), (Some(2), n));
}

#[test]
fn a_split_model_opens_from_the_cache() {
    let home = TempDir::new().unwrap();
    let hub = TestHub::start(&[], Fault::None);
    let whole = tempfile::NamedTempFile::new().unwrap();
    fs::write(whole.path(), embedded::BYTES).unwrap();
    let prefix = home.path().join("tiny");
    let (model, prefix) = (whole.path().to_str().unwrap(), prefix.to_str().unwrap());
    let split = ["split", model, prefix, "--split-max-tensors", "20"];
    succeed(&run(&hub, home.path(), &split));
    let files: Vec<fs::DirEntry> = fs::read_dir(home.path()).unwrap().flatten().collect();
    let parts: Vec<&fs::DirEntry> =
        files.iter().filter(|file| file.file_type().unwrap().is_file()).collect();
    assert!(parts.len() > 1);
    for part in &parts {
        let data = fs::read(part.path()).unwrap();
        hub.set_file(part.file_name().to_str().unwrap(), &data);
    }
    let out = run(&hub, home.path(), &[REPOSITORY, "Once upon", "-n", "2"]);
    assert_ne!(succeed(&out), "");
    assert_eq!(hub.requests("/cdn/").len(), parts.len());
    // A model without one of its parts is not in the cache.
    let blob = blobs(home.path()).into_keys().next().unwrap();
    fs::remove_file(repository(home.path()).join("blobs").join(blob)).unwrap();
    let out = run(&hub, home.path(), &[REPOSITORY, "Once upon", "-n", "2", "--offline"]);
    fail(&out, &["not in the cache"]);
}

#[test]
fn a_model_is_downloaded_from_any_address() {
    let home = TempDir::new().unwrap();
    let model = embedded::BYTES;
    let hub = TestHub::start(&[("tiny-F16.gguf", model)], Fault::None);
    let url = format!("{}/cdn/tiny-F16.gguf", hub.url);
    let run_url = ["-mu", &url, "-p", "Once upon", "-n", "2"];
    let out = run(&hub, home.path(), &run_url);
    assert_ne!(succeed(&out), "");
    assert!(text(&out.stderr).contains("states no checksum"), "{}", text(&out.stderr));
    let n = hub.requests("/").len();
    succeed(&run(&hub, home.path(), &["-m", &url, "-p", "Once upon", "-n", "2"]));
    assert_eq!(hub.requests("/").len(), n, "it is kept");
    let out = run(&hub, home.path(), &["pull", &format!("{}/cdn/none.gguf", hub.url)]);
    fail(&out, &["answered with status 404", "check the address"]);
    let out = run(&hub, home.path(), &["pull", &format!("{}/cdn/x.gguf", hub.url), "--offline"]);
    fail(&out, &["x.gguf' is not in the cache"]);
    // An address of the hub is a file in its repository.
    let url = format!("{}/{REPOSITORY}/resolve/main/tiny-F16.gguf", hub.url);
    let path = succeed(&run(&hub, home.path(), &["pull", &url]));
    assert!(path.contains("snapshots"), "{path}");
}

#[test]
fn a_changed_model_is_pulled_again() {
    let home = TempDir::new().unwrap();
    let (old, new) = (data(1, 5000), data(2, 5000));
    let hub = TestHub::start(&[("tiny.gguf", &old)], Fault::None);
    succeed(&run(&hub, home.path(), &["pull", REPOSITORY]));
    hub.set_file("tiny.gguf", &new);
    let path = succeed(&run(&hub, home.path(), &["pull", REPOSITORY]));
    assert_eq!(fs::read(path.trim_end()).unwrap(), new);
}

#[test]
fn the_folders_and_the_token_come_from_the_environment() {
    let home = TempDir::new().unwrap();
    let model = data(1, 5000);
    let hub = TestHub::start(&[("tiny.gguf", &model)], Fault::None);
    let at = |variable: &str, folder: &str| {
        let folder = home.path().join(folder);
        let mut pull = command(&hub, home.path(), &["pull", REPOSITORY]);
        let path = succeed(&pull.env(variable, &folder).output().unwrap());
        PathBuf::from(path).strip_prefix(folder).unwrap().iter().next().unwrap().to_owned()
    };
    assert_eq!(at("HF_HUB_CACHE", "a"), "models--someone--tiny-GGUF");
    assert_eq!(at("HF_HOME", "b"), "hub");
    assert!(hub.requests("/").iter().all(|(_, has_token)| !has_token));

    let gated = ["pull", "someone/gated"];
    let out = run(&hub, home.path(), &gated);
    fail(&out, &["'someone/gated' is gated", "accept the terms at https://", "HF_TOKEN"]);
    let mut wrong = command(&hub, home.path(), &gated);
    let out = wrong.env("HF_TOKEN", "hf_wrongwrong").output().unwrap();
    fail(&out, &["is gated", "the account of your token"]);
    assert!(!text(&out.stderr).contains("hf_wrong"));
    let mut right = command(&hub, home.path(), &gated);
    let out = right.env("HF_TOKEN", TOKEN).output().unwrap();
    succeed(&out);
    assert!(!text(&out.stderr).contains(TOKEN));
    fs::write(home.path().join("b/token"), format!("{TOKEN}\n")).unwrap();
    let mut stored = command(&hub, home.path(), &gated);
    succeed(&stored.env("HF_HOME", home.path().join("b")).output().unwrap());
}

#[test]
fn wrong_names_get_help() {
    let home = TempDir::new().unwrap();
    let model = data(1, 5000);
    let files: [(&str, &[u8]); 2] = [("t-Q8_0.gguf", &model), ("t-UD-IQ2_M.gguf", &model)];
    let hub = TestHub::start(&files, Fault::None);
    let pull = |name: &str| run(&hub, home.path(), &["pull", name]);
    fail(&pull("someone/other"), &["has no repository 'someone/other'", "models?search=other"]);
    fail(&pull(&format!("{REPOSITORY}:Q4_0")), &["no quantisation Q4_0", "Q8_0, UD-IQ2_M"]);
    let out = run(&hub, home.path(), &["pull", "-hf", REPOSITORY, "-hff", "x.gguf"]);
    fail(&out, &["has no file 'x.gguf'", "t-Q8_0.gguf"]);
    assert_eq!(pull("llama3").status.code(), Some(2));
    assert_eq!(pull("a/b/c").status.code(), Some(2));
    let hub = TestHub::start(&[("model.safetensors", &model)], Fault::None);
    let out = run(&hub, home.path(), &["pull", REPOSITORY]);
    fail(&out, &["has no GGUF file", "thermocline convert"]);
    assert!(blobs(home.path()).is_empty());
}

#[test]
fn names_without_a_user_get_help() {
    let home = TempDir::new().unwrap();
    let model = data(1, 5000);
    let hub = TestHub::start(&[("tiny-Q4_0.gguf", &model)], Fault::None);
    let refused = |args: &[&str], code: i32| {
        let out = command(&hub, home.path(), args).current_dir(home.path()).output().unwrap();
        let shown = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {shown}");
        for words in ["USER/REPO", "thermocline pull", "thermocline list", "docs/models.md"] {
            assert!(shown.contains(words), "{args:?}: {words:?} is not in {shown}");
        }
        shown
    };
    for args in [
        &["run", "llama3.2"][..],
        &["-m", "llama3.2", "-p", "Hi"],
        &["info", "llama3.2"],
        &["bench", "llama3.2", "-n", "1"],
    ] {
        let shown = refused(args, 3);
        assert!(shown.contains("there is no file 'llama3.2' here"), "{args:?}: {shown}");
        assert!(!shown.contains("did you mean"), "{args:?}: {shown}");
    }
    assert!(refused(&["pull", "llama3"], 2).contains("'llama3' is not a model's name"));
    succeed(&run(&hub, home.path(), &["pull", REPOSITORY]));
    for args in [&["run", "tiny:q4_0"][..], &["-m", "Tiny"]] {
        let shown = refused(args, 3);
        assert!(shown.contains("did you mean `someone/tiny-GGUF:Q4_0`?"), "{args:?}: {shown}");
    }
    fs::write(home.path().join("story.gguf"), model).unwrap();
    assert!(refused(&["run", "story"], 3).contains("did you mean `story.gguf`?"));
}

#[test]
fn offline_uses_only_the_cache() {
    let home = TempDir::new().unwrap();
    let model = data(1, 5000);
    let hub = TestHub::start(&[("tiny-Q4_0.gguf", &model)], Fault::None);
    let offline = ["pull", REPOSITORY, "--offline"];
    let out = run(&hub, home.path(), &offline);
    fail(&out, &["downloads are off", "remove --offline", "has no models"]);
    assert_eq!(hub.requests("/").len(), 0);
    succeed(&run(&hub, home.path(), &["pull", REPOSITORY]));
    let n = hub.requests("/").len();
    succeed(&run(&hub, home.path(), &offline));
    let mut other = command(&hub, home.path(), &["run", "someone/else"]);
    let out = other.env("HF_HUB_OFFLINE", "1").output().unwrap();
    fail(&out, &["'someone/else' is not in the cache", "someone/tiny-GGUF:Q4_0"]);
    assert_eq!(hub.requests("/").len(), n);
    // No server listens on port 1.
    let mut gone = command(&hub, home.path(), &["pull", "someone/else"]);
    let out = gone.env("HF_ENDPOINT", "http://127.0.0.1:1").output().unwrap();
    fail(&out, &["cannot reach 127.0.0.1:1", "--offline", "the cache has someone/tiny-GGUF:Q4_0"]);
}
