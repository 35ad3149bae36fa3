//! `thermocline profile` and related commands, as users see them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use thermocline::embedded;

/// A folder with the built-in model in `m/story.gguf` and the cache folder `xdg`.
struct TestFolder(tempfile::TempDir);

impl TestFolder {
    fn new() -> TestFolder {
        let place = TestFolder(tempfile::tempdir().unwrap());
        fs::create_dir(place.path("m")).unwrap();
        fs::write(place.path("m/story.gguf"), embedded::BYTES).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().env("THERMOCLINE_ARG_BACKEND", "cpu");
        command.env("XDG_CACHE_HOME", self.path("xdg")).current_dir(self.0.path());
        command.args(args).stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    fn succeed(&self, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    }
}

#[test]
fn a_profile_is_stored_beside_the_model_and_collected_once() {
    let place = TestFolder::new();
    let take = ["profile", "-m", "m/story.gguf", "--tokens", "700", "--plot", "p.svg"];
    let (report, _) = place.succeed(&take);
    assert!(report.contains("Tokens:            700\n"), "{report}");
    assert!(report.contains("m/story.thermocline.gguf"), "{report}");
    let picture = fs::read_to_string(place.path("p.svg")).unwrap();
    assert!(
        picture.starts_with("<svg")
            && picture.contains("Activation profile of story.gguf: 4 layers")
    );
    let file = place.path("m/story.thermocline.gguf");
    let first = fs::read(&file).unwrap();
    let changed = fs::metadata(&file).unwrap().modified().unwrap();
    assert_eq!(place.succeed(&take).0, report, "the second run reuses the profile");
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), changed);
    place.succeed(&["profile", "-m", "m/story.gguf", "--tokens", "700", "--restart"]);
    assert_eq!(fs::read(&file).unwrap(), first, "the same tokens give the same file");
    let (json, _) = place.succeed(&["profile", "-m", "m/story.gguf", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["tokens"], 700, "without a text, the stored profile is shown");
    let (info, _) = place.succeed(&["info", "-m", "m/story.gguf"]);
    assert!(info.contains("profile            700 tokens: "), "{info}");

    // Replace the model with another model of the same name.
    let mut other = embedded::BYTES.to_vec();
    *other.last_mut().unwrap() ^= 1;
    fs::write(place.path("m/story.gguf"), other).unwrap();
    let output = place.run(&take);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("made for another model") && text.contains("--restart"), "{text}");
    assert_eq!(fs::read(&file).unwrap(), first);
    let (info, _) = place.succeed(&["info", "-m", "m/story.gguf"]);
    assert!(info.contains("profile            cannot be used: "), "{info}");
    fs::write(&file, "notes").unwrap();
    assert_eq!(place.run(&[&take[..], &["--restart"]].concat()).status.code(), Some(1));
    assert_eq!(fs::read(&file).unwrap(), b"notes", "another program's file is unchanged");
}

#[test]
fn a_model_without_exact_zeros_has_no_power_law() {
    let place = TestFolder::new();
    let silu = ["--ffn-activation", "silu", "--tokens", "100"];
    let plot = ["profile", "-m", "m/story.gguf", "--plot", "p.svg"];
    let (report, _) = place.succeed(&[&plot[..], &silu].concat());
    for part in ["no neuron (SiLU)", "contribute at least the mean", "Never above:"] {
        assert!(report.contains(part), "{part:?} is not in {report}");
    }
    assert!(!report.contains("activat"), "{report}");
    let picture = fs::read_to_string(place.path("p.svg")).unwrap();
    assert!(picture.contains("No neuron is exactly zero") && !picture.contains("Power law"));
    let (json, _) =
        place.succeed(&[&["profile", "-m", "m/story.gguf", "--json"], &silu[..]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["counts"], "above_mean");
}

#[test]
fn the_profile_of_the_built_in_model_is_in_the_cache_folder() {
    let place = TestFolder::new();
    let (report, _) = place.succeed(&["profile", "--tokens", "100"]);
    assert!(report.contains("xdg/thermocline/built-in-"), "{report}");
    let (report, _) = place.succeed(&["profile", "--tokens", "90", "--out", "here.gguf"]);
    assert!(report.contains("here.gguf"), "{report}");
    for (args, says) in [
        (&["profile", "--out", "/proc/none/x"][..], "error: "),
        (&["profile", "--repack-cache", "off"], "no folder"),
        (&["profile", "--import", "nowhere"], "activation_0.pt"),
        (&["profile", "--compare", "m/story.gguf", "--tokens", "100"], "PWRI"),
    ] {
        let output = place.run(args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
    }
}

#[test]
fn run_collects_a_short_profile_and_notes_it_once() {
    let place = TestFolder::new();
    let run =
        ["run", "-m", "m/story.gguf", "-n", "480", "--temp", "0", "--no-perf", "--ignore-eos"];
    let (text, notes) = place.succeed(&[&run[..], &["--no-auto-profile"]].concat());
    assert!(!notes.contains("activation profile"), "{notes}");
    let cache = fs::read_dir(place.path("xdg/thermocline")).unwrap();
    assert_eq!(cache.count(), 0, "no profile is kept");
    let (same, notes) = place.succeed(&run);
    assert_eq!(text, same);
    assert_eq!(notes.matches("disable with --no-auto-profile").count(), 1, "{notes}");
    assert_eq!(fs::read_dir(place.path("m")).unwrap().count(), 1, "nothing beside the model");
    let tokens = || {
        let (json, _) = place.succeed(&["info", "-m", "m/story.gguf", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["profile"]["tokens"].as_u64().unwrap()
    };
    let first = tokens();
    assert!(first >= 32, "{first}");
    let (_, notes) = place.succeed(&run);
    assert!(!notes.contains("disable with"), "{notes}");
    assert!(tokens() > first);
    // An explicitly requested profile replaces the automatic one.
    place.succeed(&["profile", "-m", "m/story.gguf", "--tokens", "300"]);
    assert_eq!(tokens(), 300);
    place.succeed(&run);
    assert_eq!(tokens(), 300);
}
