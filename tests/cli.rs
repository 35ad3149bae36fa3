//! The command as users see it: arguments, output and exit codes.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Runs the command with standard input closed and without the caller's settings.
fn thermocline(args: &[&str]) -> Output {
    with_env(args, &[])
}

fn with_env(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().envs(env.iter().copied()).args(args).stdin(Stdio::null());
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this machine has a device other than the CPU. If so, no message reports a missing
/// device.
fn has_device() -> bool {
    let report: serde_json::Value =
        serde_json::from_slice(&thermocline(&["devices", "--json"]).stdout).unwrap();
    let found = report["devices"].as_array().unwrap().iter().any(|d| d["software"] == false);
    if found {
        println!("skipped: this machine has a GPU");
    }
    found
}

#[track_caller]
fn check_failure(output: &Output, code: i32, says: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(says), "{says:?} is not in {text}");
    assert!(text.contains("error: "), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    assert_eq!(stdout(output), "", "a failure writes nothing on standard output");
}

fn vocabulary(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/vocab");
    let path = folder.join(format!("ggml-vocab-{name}.gguf"));
    if !path.exists() {
        println!("skipped: {} does not exist", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn version_and_help_go_to_standard_output() {
    let version = thermocline(&["--version"]);
    assert!(version.status.success());
    let text = stdout(&version);
    assert!(text.starts_with("thermocline ") && text.contains("\nbackends: cpu"), "{text}");
    for args in [&["--help"][..], &["-m", "x", "-h"], &["bench", "--help"], &["help", "info"]] {
        let help = thermocline(args);
        assert!(help.status.success(), "{args:?}");
        assert!(stdout(&help).contains("Usage: thermocline"), "{args:?}");
    }
    let long = stdout(&thermocline(&["run", "--help"]));
    for word in ["-ngl", "--mirostat", "--no-warmup", "THERMOCLINE_ARG_N_PREDICT", "--keep"] {
        assert!(long.contains(word), "{word}");
    }
}

#[test]
fn completions_are_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = thermocline(&["completions", shell]);
        assert!(script.status.success());
        assert!(stdout(&script).contains("ctx-size"), "{shell}");
        assert!(stdout(&script).contains("slot-save-path"), "{shell}: flags of `serve`");
        // The others complete no values, fish none of words without a flag.
        if ["bash", "zsh", "fish"].contains(&shell) {
            assert!(stdout(&script).contains("predicted"), "{shell}: values of --sparsity");
        }
        if ["bash", "zsh"].contains(&shell) {
            assert!(stdout(&script).contains("Q5_K_S"), "{shell}: types of `quantize`");
        }
    }
}

#[test]
fn manual_pages_are_written_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    assert!(thermocline(&["man", pages.to_str().unwrap()]).status.success());
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("thermocline.1").contains("thermocline\\-serve(1)"));
    assert!(page("thermocline-serve.1").contains("\\-\\-slot\\-save\\-path"));
    let help = stdout(&thermocline(&["--help"]));
    assert!(!help.contains("  man "), "it is for packages");
    assert!(!pages.join("thermocline-man.1").exists());
    assert!(!pages.join("thermocline-help.1").exists());
    check_failure(&thermocline(&["man", "/dev/null/x"]), 1, "cannot create the folder");
}

#[test]
fn invalid_command_lines_exit_with_2() {
    let cases: [(&[&str], &str); 20] = [
        (&["--no-such-flag"], "--no-such-flag"),
        (&["-xyz"], "unknown flag '-xyz'"),
        (&["-n", "many"], "many"),
        (&["-n", "-3"], "-3"),
        (&["-m"], "--model"),
        (&["-t", "100000"], "100000"),
        (&["--temp", "nan"], "invalid value NaN for --temp: must be a finite number"),
        (&["--repeat-penalty", "0"], "--repeat-penalty: must be a number above 0"),
        (&["--adaptive-decay", "1"], "--adaptive-decay: must be a number from 0 to 0.99"),
        (&["--mirostat", "3"], "must be a whole number from 0 to 2"),
        (&["--adaptive-target", "0.5"], "--adaptive-target needs the sampler adaptive_p"),
        (&["serve", "--adaptive-target", "0.5"], "--adaptive-target needs the sampler adaptive_p"),
        (&["--samplers", "top_k;magic"], "unknown sampler 'magic'"),
        (&["--sampling-seq", "ekq"], "unknown sampler 'q'"),
        (&["--logit-bias", "5"], "TOKEN_ID"),
        (&["--vram-budget", "much"], "not a memory size"),
        (&["-ctk", "q2_k"], "q2_k"),
        (&["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (&["bench", "-t", "8-1"], "descending"),
        (&["tokenize"], "no text to tokenize"),
    ];
    for (args, says) in cases {
        check_failure(&thermocline(args), 2, says);
    }
}

#[test]
fn unsupported_flags_that_change_the_text_are_rejected() {
    let cases: [(&[&str], &str); 7] = [
        (&["--tfs", "0.9"], "error: --tfs 0.9: llama.cpp has removed this sampler"),
        (&["--control-vector", "a.gguf"], "error: --control-vector a.gguf: control vectors"),
        (&["-hf", "model"], "error: invalid value 'model' for --hf-repo: write USER/REPO"),
        (&["-i"], "error: -i: raw text"),
        (&["--cfg-scale=1.5"], "error: --cfg-scale 1.5: "),
        (&["perplexity", "-f", "x", "--ppl-stride", "64"], "--ppl-stride 64"),
        (&["bench", "--grp-attn-n", "4"], "self-extended attention"),
    ];
    for (args, says) in cases {
        check_failure(&thermocline(args), 2, says);
    }
}

#[test]
fn placement_hints_are_noted_in_one_line_and_neutral_flags_are_not() {
    let missing = "no-such-file.gguf";
    if has_device() {
        return;
    }
    let output = thermocline(&["-m", missing, "-ngl", "99", "-sm", "layer", "-fa", "--no-warmup"]);
    let text = stderr(&output);
    let notes: Vec<_> = text.lines().filter(|l| l.starts_with("note:")).collect();
    assert!(
        notes[0].starts_with("note: ignoring -sm layer: the planner places layers and neurons"),
        "{text}"
    );
    assert!(notes[1].starts_with("note: --n-gpu-layers has no effect: "), "{text}");
    assert_eq!(notes.len(), 2);
    let quiet =
        ["-m", missing, "-ngl", "0", "--tfs", "1.0", "--cfg-scale", "1.0", "-no-cnv", "-fa", "on"];
    assert!(!stderr(&thermocline(&quiet)).contains("note:"));
    let silenced = ["-m", missing, "-ngl", "99", "--log-disable"];
    assert!(!stderr(&thermocline(&silenced)).contains("note:"));
}

#[test]
fn flags_can_be_set_in_the_environment() {
    let twin = |name: &str, value: &str| with_env(&["-m", "gone.gguf"], &[(name, value)]);
    check_failure(&twin("THERMOCLINE_ARG_THREADS", "lots"), 2, "lots");
    check_failure(&twin("THERMOCLINE_ARG_CACHE_TYPE_K", "q2_k"), 2, "q2_k");
    check_failure(&twin("THERMOCLINE_ARG_LORA_SCALED", "a"), 2, "write FILE:SCALE");
    check_failure(&twin("THERMOCLINE_ARG_MMPROJ", "a"), 2, "THERMOCLINE_ARG_MMPROJ=a: images");
    check_failure(&twin("THERMOCLINE_ARG_MMAP", "perhaps"), 2, "perhaps");
    // The command line takes precedence over the environment.
    let both =
        with_env(&["-ctk", "f16", "-m", "gone"], &[("THERMOCLINE_ARG_CACHE_TYPE_K", "q2_k")]);
    assert!(!stderr(&both).contains("q2_k"));
    if has_device() {
        return;
    }
    let budget = twin("THERMOCLINE_ARG_VRAM_BUDGET", "8GiB");
    assert!(stderr(&budget).contains("note: --vram-budget has no effect: "));
    let hint = twin("THERMOCLINE_ARG_N_GPU_LAYERS", "9");
    assert!(stderr(&hint).contains("note: --n-gpu-layers has no effect: "));
}

#[test]
fn a_missing_backend_exits_with_5() {
    check_failure(&thermocline(&["-dev", "CUDA0"]), 5, "no device 'CUDA0'");
    let commands: &[&str] = if has_device() { &[] } else { &["run", "bench", "plan"] };
    for command in commands {
        let failed = thermocline(&[command, "--backend", "wgpu"]);
        check_failure(&failed, 5, "the backend wgpu has no device on this machine");
        assert!(stderr(&failed).contains("help: "), "{}", stderr(&failed));
    }
    let listed = thermocline(&["--list-devices"]);
    assert!(listed.status.success());
    assert!(stdout(&listed).contains("  CPU: "));
}

#[test]
fn a_file_of_another_format_exits_with_3() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.gguf");
    std::fs::write(&text, "once upon a time there was a file").unwrap();
    for path in [folder.path(), &text, &folder.path().join("gone.gguf")] {
        let path = path.to_str().unwrap();
        for command in ["info", "tokenize"] {
            let mut args = vec![command, "-m", path];
            if command == "tokenize" {
                args.extend(["-p", "x"]);
            }
            let output = thermocline(&args);
            check_failure(&output, 3, "caused by: ");
            assert!(stderr(&output).contains(path), "names the file");
        }
    }
}

#[test]
fn reranking_needs_a_ranking_model() {
    for flag in [&["--reranking"][..], &["--rerank"], &["--pooling", "rank"]] {
        let output = thermocline(&[&["serve", "--port", "0"], flag].concat());
        check_failure(&output, 3, "this model has no head for ranking");
    }
    let both = thermocline(&["serve", "--reranking", "--pooling", "last"]);
    check_failure(&both, 2, "--pooling");
}

#[test]
fn colour_follows_the_rules() {
    let escape = "\u{1b}[";
    let args = ["info", "-m", "gone.gguf"];
    assert!(!stderr(&thermocline(&args)).contains(escape), "no terminal, no colour");
    let forced = with_env(&args, &[("CLICOLOR_FORCE", "1")]);
    assert!(stderr(&forced).contains(escape));
    let refused = with_env(&args, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]);
    assert!(!stderr(&refused).contains(escape));
    let on = with_env(&["info", "-m", "gone.gguf", "--color", "on"], &[("NO_COLOR", "1")]);
    assert!(stderr(&on).contains(escape));
}

#[test]
fn tokenize_prints_as_llama_tokenize_does() {
    let Some(path) = vocabulary("llama-spm") else { return };
    let path = path.to_str().unwrap();
    let ids = thermocline(&["tokenize", "-m", path, "-p", "Hello world", "--ids", "--log-disable"]);
    assert_eq!(stdout(&ids), "[1, 15043, 3186]\n");
    let bare = thermocline(&["tokenize", "-m", path, "-p", "Hello world", "--ids", "--no-bos"]);
    assert_eq!(stdout(&bare), "[15043, 3186]\n");
    let lines = thermocline(&["tokenize", "-m", path, "-p", "Hello world", "--show-count"]);
    assert_eq!(
        stdout(&lines),
        "     1 -> '<s>'\n 15043 -> ' Hello'\n  3186 -> ' world'\nTotal number of tokens: 3\n"
    );
    let special = thermocline(&["tokenize", "-m", path, "-p", "<s>", "--ids", "--no-bos"]);
    assert_eq!(stdout(&special), "[1]\n");
    let text = ["tokenize", "-m", path, "-p", "<s>", "--ids", "--no-bos", "--no-parse-special"];
    assert_ne!(stdout(&thermocline(&text)), "[1]\n");
}

#[test]
fn tokenize_reads_files_and_standard_input() {
    use std::io::Write;
    let Some(path) = vocabulary("gpt-2") else { return };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"Hello\\n world").unwrap();
    let text = file.path().to_str().unwrap();
    let model = path.to_str().unwrap();
    let from_file = thermocline(&["tokenize", "-m", model, "-f", text, "--ids"]);
    let from_flag = thermocline(&["tokenize", "-m", model, "-p", "Hello\n world", "--ids"]);
    assert!(from_file.status.success());
    assert_eq!(stdout(&from_file), stdout(&from_flag), "escapes count in files as well");
    let raw = thermocline(&["tokenize", "-m", model, "-f", text, "--ids", "--no-escape"]);
    assert_ne!(stdout(&raw), stdout(&from_flag));
    let lines = thermocline(&["tokenize", "-m", model, "-p", "a\nb\\n\n", "--lines", "--ids"]);
    assert_eq!(stdout(&lines), "[64]\n[65, 198]\n", "the lines of the text, then its escapes");
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.args(["tokenize", "-m", model, "--stdin", "--ids"]);
    command.stdin(std::fs::File::open(file.path()).unwrap());
    assert_eq!(stdout(&command.output().unwrap()), stdout(&from_flag));
}

#[test]
fn info_works_on_vocabularies_and_unknown_architectures() {
    let Some(path) = vocabulary("falcon") else { return };
    let path = path.to_str().unwrap();
    let text = stdout(&thermocline(&["info", "-m", path]));
    for part in ["architecture       falcon", "tokenizer.ggml.tokens", "..."] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|l| l.chars().count() < 200), "long arrays are shortened");
    let report = thermocline(&["info", "-m", path, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(json["architecture"], "falcon");
    assert_eq!(json["metadata"]["tokenizer.ggml.tokens"]["length"], json["tokenizer"]["n_vocab"]);
}

#[test]
fn info_shows_the_notices_of_the_built_in_model() {
    let text = stdout(&thermocline(&["info"]));
    assert!(text.contains("Built with Llama") && text.contains("CDLA-Sharing-1.0"), "{text}");
    let json: serde_json::Value =
        serde_json::from_slice(&thermocline(&["info", "--json"]).stdout).unwrap();
    assert!(json["notices"].as_str().unwrap().contains("Built with Llama"));
}

/// The speed is known only after a command has measured the devices.
#[test]
fn info_begins_with_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    let run = |args: &[&str]| stdout(&with_env(args, &[("HOME", home)]));
    let text = run(&["info"]);
    let head: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    assert!(head[0].ends_with("runs here"), "{text}");
    let says = ["llama, ", " bits per weight", "ReLU is 0, without any loss", "none: `chat`"];
    for part in says
        .into_iter()
        .chain(["with the default context of", "unknown: `thermocline plan -m FILE`"])
    {
        assert!(head.iter().any(|line| line.contains(part)), "{part:?} is not in {text}");
    }
    let verdict = || {
        let json: serde_json::Value = serde_json::from_str(&run(&["info", "--json"])).unwrap();
        json["verdict"].clone()
    };
    let before = verdict();
    assert_eq!(before["runs"], true);
    assert!(before["memory_needed_bytes"].as_u64().unwrap() > 1 << 20, "{before}");
    assert!(before["tokens_per_second"].is_null(), "{before}");
    run(&["plan"]);
    assert!(verdict()["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(run(&["info"]).contains("tokens/s on the CPU"));
}

#[test]
fn info_lists_tensors_and_the_predictor() {
    use thermocline::gguf::{Container, TensorType, Writer};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = Writer::new(Container::PowerInfer);
    writer.set("general.architecture", "unheard_of").unwrap();
    writer.set("unheard_of.block_count", 1u32).unwrap();
    writer.declare("blk.0.fc1.weight", &[8, 4], TensorType::F32).unwrap();
    writer.declare("blk.0.ffn_up.weight", &[32, 3], hal::format::Format::Q8_0).unwrap();
    let mut data = writer.in_memory().unwrap();
    data.write("blk.0.fc1.weight", &[0; 128]).unwrap();
    data.write("blk.0.ffn_up.weight", &[0; 102]).unwrap();
    std::fs::write(&path, data.finish().unwrap()).unwrap();
    let path = path.to_str().unwrap();
    let text = stdout(&thermocline(&["info", "-m", path, "--tensors"]));
    for part in ["PowerInfer", "unheard_of", "8 x 4", "Q8_0", "102 B", "predictor: 1 tensor\n"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.starts_with("model.gguf does not run here: "), "{text}");
    let short = stdout(&thermocline(&["info", "-m", path]));
    assert!(!short.contains("8 x 4") && short.contains("--tensors lists"), "{short}");
    let report = thermocline(&["info", "-m", path, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(json["predictor"][0], "blk.0.fc1.weight");
    assert_eq!(json["tensors"].as_array().unwrap().len(), 2);
    assert_eq!(json["verdict"]["runs"], false);
    assert_eq!(json["n_params"], 128);
    assert_eq!(json["model"]["layers"], 1);
    assert_eq!(json["tokenizer"], serde_json::Value::Null);
}

/// `2>&1` puts the text and the notes after it into one file.
#[test]
#[cfg(unix)]
fn statistics_begin_on_a_line_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (both, alone) = (folder.path().join("both"), folder.path().join("alone"));
    let create = |path: &PathBuf| std::fs::File::create(path).unwrap();
    let run = |output: std::fs::File, errors: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().args(["run", "-p", "Once", "-n", "4", "--temp", "0"]);
        command.args(["--backend", "cpu"]).stdin(Stdio::null());
        assert!(command.stdout(output).stderr(errors).status().unwrap().success());
    };
    let file = create(&both);
    run(file.try_clone().unwrap(), file.into());
    run(create(&alone), Stdio::null());
    let [both, alone] = [both, alone].map(|path| std::fs::read_to_string(path).unwrap());
    assert!(!alone.is_empty() && !alone.contains('\n'), "the text stays unchanged: {alone:?}");
    assert!(both.contains(&format!("{alone}\nnote: load ")), "{both}");
}

/// `| head` closes the pipe before the program has written most of its output.
#[test]
fn a_closed_pipe_is_not_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.args(["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

/// The embeddings of a fixture without a BOS token.
#[test]
fn embed_prints_embeddings_and_encoders_generate_no_text() {
    let model =
        crate::support::packed::families().join("eurobert.gguf").to_str().unwrap().to_owned();
    let output =
        thermocline(&["embed", &model, "A cat.", "A dog.", "--embd-output-format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lengths = json["data"].as_array().unwrap().iter().map(|item| {
        let values = item["embedding"].as_array().unwrap();
        assert_eq!(values.len(), 16);
        values.iter().map(|value| value.as_f64().unwrap().powi(2)).sum::<f64>().sqrt()
    });
    assert!(lengths.map(|length| (length - 1.0).abs()).all(|error| error < 1e-4));
    let output = thermocline(&["embed", "-m", &model, "-p", "A cat.\nA cat."]);
    assert!(stdout(&output).contains("  1.00   1.00 A cat."), "{}", stdout(&output));
    let states = thermocline(&[
        "embed",
        "-m",
        &model,
        "-p",
        "A cat.",
        "--pooling",
        "none",
        "--embd-output-format",
        "raw",
    ]);
    assert_eq!(stdout(&states).lines().count(), 6);
    check_failure(&thermocline(&["run", "-m", &model, "-p", "A cat."]), 3, "`thermocline embed");
    check_failure(
        &thermocline(&["embed", "-m", &model, "-p", "A", "--pooling", "rank"]),
        3,
        "no head",
    );
    let long = "A cat. ".repeat(40);
    check_failure(&thermocline(&["embed", "-m", &model, "-c", "64", "-p", &long]), 1, "280 tokens");
}

/// With `--log-format json`, all that the server prints on standard error is JSON, and a copy of it is in
/// the log file.
#[test]
fn notes_and_errors_of_the_server_are_json_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let flags = ["--log-format", "json", "--port", "0", "-m", "no/such.gguf"];
    let flags = [&["serve"], &flags[..], &["--log-file", log.to_str().unwrap()]].concat();
    let output = thermocline(&flags);
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line);
    let lines: Vec<_> = text.lines().map(|line| parse(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["level"] == "error"), "{text}");
    let is_whole =
        |line: &serde_json::Value| line["message"].is_string() && line["time"].is_string();
    assert!(lines.iter().all(is_whole), "{text}");
    assert_eq!(std::fs::read_to_string(log).unwrap(), text);
}
