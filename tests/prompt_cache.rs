//! `--prompt-cache`: a second run does not recompute the prompt tokens of the first run.

use std::process::{Command, Stdio};

/// Runs the built-in model. Returns the text and how many prompt tokens were computed.
fn run(prompt: &str, cache: &[&str]) -> (String, u64) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    let fixed = ["run", "--json", "--backend", "cpu", "--repack-cache", "off", "--no-auto-profile"];
    let args = ["--temp", "0", "-n", "8", "-c", "256", "-p", prompt];
    command.env_clear().args(fixed).args(args).args(cache).stdin(Stdio::null());
    let output = command.output().unwrap();
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{notes}");
    let json = notes.lines().find(|line| line.starts_with('{')).unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let count = |key: &str| json[key].as_u64().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text, count("prompt_tokens") - count("prompt_tokens_reused"))
}

#[test]
fn a_second_run_computes_only_new_prompt_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let path = path.to_str().unwrap();
    let (first, n) = run("One day, a little girl", &["--prompt-cache", path]);
    assert!(n > 4);
    assert_eq!(run("One day, a little girl", &["--prompt-cache", path]), (first.clone(), 1));
    // `--prompt-cache-all` also stores the answer; `--prompt-cache-ro` leaves the file unchanged.
    let all = ["--prompt-cache", path, "--prompt-cache-all"];
    assert_eq!(run("One day, a little girl", &all), (first.clone(), 1));
    let before = std::fs::read(path).unwrap();
    let read = ["--prompt-cache", path, "--prompt-cache-ro"];
    let (_, n_further) = run(&first, &read);
    assert!(n_further <= 3, "{n_further} tokens");
    assert_eq!(std::fs::read(path).unwrap(), before);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    std::fs::write(path, "something else").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    let output = command.env_clear().args(["run", "-p", "One", "--backend", "cpu"]).args(read);
    let output = output.stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("cannot use the prompt cache"), "{error}");
    assert_eq!(output.status.code(), Some(1));
}
