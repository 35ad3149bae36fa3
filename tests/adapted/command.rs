//! Adapters and RoPE settings on the command line, with the built-in model.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rand::RngExt;
use thermocline::gguf::{Container, Writer};

use super::*;

/// Writes an adapter for `attn_q` and the feed-forward matrices of all layers of the built-in model.
fn write_adapter(path: &Path, seed: u64) {
    let model = runtime::embedded::file().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut writer = Writer::new(Container::Gguf);
    let architecture = model.metadata().str("general.architecture").unwrap().unwrap();
    let keys = [
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", architecture),
    ];
    keys.iter().for_each(|(key, value)| writer.set(key, *value).unwrap());
    writer.set("adapter.lora.alpha", 8.0_f32).unwrap();
    let parts = ["attn_q.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"];
    let changed =
        model.tensors().iter().filter(|t| parts.iter().any(|part| t.name.ends_with(part)));
    let mut factors = Vec::new();
    for tensor in changed {
        let shapes = [[tensor.shape[0], 4], [4, tensor.shape[1]]];
        for (suffix, shape) in ["lora_a", "lora_b"].iter().zip(shapes) {
            factors.push((format!("{}.{suffix}", tensor.name), shape));
        }
    }
    for (name, shape) in &factors {
        writer.declare(name, shape, Format::F32).unwrap();
    }
    let mut data = writer.create(path).unwrap();
    for (name, shape) in &factors {
        let values = (0..shape[0] * shape[1]).map(|_| rng.random_range(-0.08_f32..0.08));
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        data.write(name, &bytes).unwrap();
    }
    data.finish().unwrap();
}

fn thermocline(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().env("THERMOCLINE_ARG_BACKEND", "cpu").envs(env.iter().copied());
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SHORT: [&str; 11] =
    ["run", "-p", "One day", "--temp", "0", "-n", "16", "--repack-cache", "off", "-c", "64"];

#[track_caller]
fn text_of(args: &[&str], env: &[(&str, &str)]) -> (String, String) {
    let output = thermocline(&[&SHORT, args].concat(), env);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
}

/// A folder with two adapters.
fn adapters() -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (one, two) = (path("one.gguf"), path("two.gguf"));
    write_adapter(&PathBuf::from(&one), 1);
    write_adapter(&PathBuf::from(&two), 2);
    (folder, one, two)
}

#[test]
fn adapters_change_the_text_by_their_scales() {
    let (_folder, one, two) = adapters();
    let (plain, notes) = text_of(&[], &[]);
    assert!(!notes.contains("LoRA"), "{notes}");
    let (with_one, notes) = text_of(&["--lora", &one], &[]);
    assert_ne!(with_one, plain);
    assert!(notes.contains("LoRA: one.gguf (scale 1) merged into"), "{notes}");
    assert_eq!(text_of(&["--lora-scaled", &format!("{one}:0")], &[]).0, plain);
    assert_eq!(text_of(&[], &[("LLAMA_ARG_LORA", &one)]).0, with_one);
    let both = format!("{one}:0.5,{two}:-1.5");
    let (with_both, notes) = text_of(&["--lora-scaled", &both], &[]);
    assert!(with_both != plain && with_both != with_one);
    assert!(notes.contains("one.gguf (scale 0.5), two.gguf (scale -1.5)"), "{notes}");
    let older = ["--lora-scaled", &one, "0.5", "--lora-scaled", &two, "-1.5"];
    assert_eq!(text_of(&older, &[]).0, with_both);
    let (apart, list) = (text_of(&["--lora", &one, "--lora", &two], &[]).0, format!("{two},{one}"));
    assert_eq!(text_of(&["--lora", &list], &[]).0, apart);
}

#[test]
fn adapters_that_cannot_be_used_end_the_program() {
    let (folder, one, _) = adapters();
    let check = |args: &[&str], code: i32, says: &[&str]| {
        let output = thermocline(&[&SHORT, args].concat(), &[]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        says.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text}"));
        assert!(output.stdout.is_empty());
    };
    check(&["--lora", "gone.gguf"], 3, &["cannot use the LoRA adapter", "gone.gguf"]);
    let model = folder.path().join("model.gguf");
    crate::chat::built_in_with(&model, &[]);
    let model = model.to_str().unwrap();
    check(&["--lora", model], 3, &["`general.type` is", "help: --lora takes"]);
    check(&["--lora-scaled", &one], 2, &["write FILE:SCALE"]);
    let later = ["serve", "--lora", &one, "--lora-init-without-apply"];
    let output = thermocline(&later, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("merged when the model is loaded"), "{}", stderr(&output));
}

/// A prompt cache, and repacked weights, belong to one set of adapters and RoPE settings.
#[test]
fn files_of_other_adapters_are_not_used() {
    let (folder, one, _) = adapters();
    let state = folder.path().join("state");
    let cache = ["--prompt-cache", state.to_str().unwrap()];
    let with_one = text_of(&["--lora", &one], &[]).0;
    text_of(&cache, &[]);
    for other in [&["--lora", one.as_str()][..], &["--rope-scale", "2"]] {
        let output = thermocline(&[&SHORT[..], &cache, other].concat(), &[]);
        let text = stderr(&output);
        assert!(text.contains("cannot use the prompt cache"), "{other:?}: {text}");
    }
    let weights = folder.path().join("weights");
    let weights = ["--repack-cache", weights.to_str().unwrap()];
    let run = |args: &[&str]| {
        let output = thermocline(&[&SHORT[..7], &["-c", "64"], &weights, args].concat(), &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let plain = run(&[]);
    assert_eq!(run(&["--lora", &one]), with_one);
    assert_eq!(run(&[]), plain);
}

#[test]
fn rope_flags_change_the_text_and_the_warning_about_the_context() {
    let (plain, _) = text_of(&[], &[]);
    for neutral in [
        &["--rope-scaling", "linear", "--rope-freq-base", "0", "--rope-freq-scale", "0"][..],
        &["--yarn-orig-ctx", "0", "--yarn-ext-factor", "-1", "--yarn-attn-factor", "-1"],
        &["--yarn-beta-slow", "-1", "--yarn-beta-fast", "-1", "--rope-scale", "1"],
        &["--rope-scale", "9", "--rope-freq-scale", "1"],
    ] {
        assert_eq!(text_of(neutral, &[]).0, plain, "{neutral:?}");
    }
    let scaled = text_of(&["--rope-scale", "8"], &[]).0;
    assert_ne!(scaled, plain);
    assert_eq!(text_of(&["--rope-freq-scale", "0.125"], &[]).0, scaled);
    assert_eq!(text_of(&[], &[("LLAMA_ARG_ROPE_SCALE", "8")]).0, scaled);
    assert_ne!(text_of(&["--rope-scale", "8", "--rope-scaling", "yarn"], &[]).0, scaled);
    let long = ["-c", "4096"];
    let warns = |args: &[&str]| text_of(args, &[]).1.contains("tokens the model was trained with");
    assert!(warns(&long));
    assert!(!warns(&[&long[..], &["--rope-scale", "16"]].concat()));
}
