//! Command lines as people post them for llama.cpp, ollama and PowerInfer.

mod posted;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::chat::built_in_with;

fn run_as(program: &Path, args: &[&str], input: Option<&str>, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.env_clear().env("THERMOCLINE_ARG_BACKEND", "cpu").envs(env.iter().copied());
    command.env("THERMOCLINE_ARG_PROBE_SIZE", "16");
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().unwrap();
    if let Some(input) = input {
        // Writing fails if the program exits without reading all its input.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    }
    child.wait_with_output().unwrap()
}

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_thermocline"))
}

fn thermocline(args: &[&str]) -> Output {
    run_as(&program(), args, None, &[])
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Splits a line at spaces; single quotes hold a word together.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        if i % 2 == 1 {
            words.push(part);
        } else {
            words.extend(part.split_whitespace());
        }
    }
    words
}

/// Lines whose flags are accepted: the only error is that the model does not exist.
const ACCEPTED: &[&str] = &[
    "-m gone.gguf -f FILE --color -c 2048 -n 200 --temp 0.5 --top_k 5 --top_p 0.99 --repeat_last_n 64 --repeat_penalty 1.0",
    "-m gone.gguf -sys 'You are a pirate' -p hello -st -n 16 --no-warmup --simple-io -c 512 -b 512 --seed 7 -ngl 0 --main-gpu 0 -sm none",
    "-m gone.gguf -mli --multiline-input -p Once -n 4",
    "-m gone.gguf -p 'Once upon a time' -n 16 --logdir logs --log-file FILE.log --log-disable",
    "-m gone.gguf -md s.gguf --spec-type draft-mtp --spec-draft-n-max 2 -np 1 -fa on -n 4 -p hi",
    "-m gone.gguf --n-cpu-ffn 4 -n 4 -p hi",
    "serve -m gone.gguf -c 16384 -np 4 --port 0 --threads-http 4 --cache-reuse 256 --cache-ram 16384 --metrics --slots",
    "serve -m gone.gguf -ngl 99 --n-cpu-moe 2 -c 16384 --host 127.0.0.1 --port 0 -a gpt-oss --jinja --no-context-shift",
    "-m gone.gguf -n 4 -p Once --vram-budget 8 --gpu-index x.gpuidx",
    "-m gone.gguf -n 4 -p Once -ngl 10 --no-offload-ffn",
    "-m gone.gguf -p Once -n 8 -nkvo -kvu --swa-full -dt 0.1",
    "-m gone.gguf -p Once -n 8 --offline --no-mmproj --chat-template chatml",
    "-m gone.gguf -p Once -n 8 --draft 16 --spec-replace a b",
    "-m gone.gguf -p Once -n 8 --logit-bias 15043+1 --no-penalize-nl -nl",
    "-m gone.gguf -p Once -n 8 --gpu-layers 10 --n_gpu_layers 10",
    "-m gone.gguf -p Once -n 8 --random-prompt",
    "-m gone.gguf -p Once -n 8 --low-vram --mul-mat-q",
    "-m gone.gguf -p Once -n 8 -eps 1e-5 -gqa 8",
    "-m gone.gguf -n 4 -p Once --kv-unified --no-mmproj-offload",
    "-m gone.gguf -n 4 -p Once --cache-ram 8192 --ctx-checkpoints 4",
    "-m gone.gguf -n 4 -p Once --top-k 40 --top_p 0.9",
    "-m gone.gguf -n 4 -p Once --no_mmap",
    "-m gone.gguf -n 4 -p Once --temp 0.0 --no-cnv",
    "-m gone.gguf -n 4 -p Once --log-test --log-new",
    "-m gone.gguf -n 4 -p Once --threads auto",
    "-m gone.gguf -n 4 -p Once --numa",
    "-m gone.gguf -n 4 -p Once -td 4 --draft-p-min 0.6 -cd 1024",
    "-m gone.gguf -n 4 -p Once --cpu-moe-draft --n-cpu-moe-draft 2",
    "-m gone.gguf -n 4 --prompt-file FILE",
    "-m gone.gguf -n 4 -p Once --image-min-tokens 1024",
    "-m gone.gguf -n 4 -p Once --seed 4294967295 -s -1",
    "-m gone.gguf -n 4 -p Once --tensor-buft-overrides x",
    "-m gone.gguf -n 2 -n 4 -ngl 99 -ngl 0 --temp 0.5 --temp 0.7 -c 256 -c 512 -p a -p b",
    "-m gone.gguf --lora a.gguf,b.gguf --lora c.gguf --lora-scaled d.gguf 0.5 --lora-scaled e.gguf:2,f.gguf:-1 -p Once",
    "-m gone.gguf -p Once --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768 --yarn-ext-factor -1 --yarn-attn-factor 1.0 --yarn-beta-slow 1.0 --yarn-beta-fast 32.0",
    "-m gone.gguf -p Once -c 4096 --rope-freq-base 10000 --rope-freq-scale 0.5",
    "serve -m gone.gguf --rope-scaling linear --rope-scale 2 --lora a.gguf",
    "bench -m gone.gguf -ngl 10,20,30,31 -fa 0,1",
    "bench -m gone.gguf -ngl 0,99 -mmp 0,1 -nkvo 0,1 -C 0x1,0x3 -t 1,2 -sm layer",
    "bench -m gone.gguf -ngl 10-30+10",
];

/// Lines that are refused, and a part of the sentence.
const REFUSED: &[(&str, &str)] = &[
    (
        "-m m.gguf -n 256 --repeat_penalty 1.0 --color -i -r User: -f FILE",
        "`chat` starts a conversation",
    ),
    ("-m m.gguf --in-prefix ' ' -p x", "--in-prefix ' ': the chat template"),
    ("-m m.gguf --control-vector-scaled b.gguf 0.5 -p Once", "control vectors"),
    ("-m m.gguf --lora-scaled b.gguf -p Once", "write FILE:SCALE, such as a.gguf:0.5"),
    ("-m m.gguf --rope-scaling cubic -p Once", "possible values: none, linear, yarn"),
    ("-m m.gguf --port 8080 --host 0.0.0.0", "thermocline serve -m model.gguf --port"),
    ("-m m.gguf --api-key dummy -n 4 -p hi", "thermocline serve -m model.gguf --api-key"),
    ("-m m.gguf -p hi --threads-http 4", "`thermocline serve -m model.gguf --threads-http`"),
    ("-m m.gguf -p hi --no-webui", "thermocline serve -m model.gguf --no-webui"),
    ("-m m.gguf -p hi --pooling mean", "thermocline serve"),
    ("-m m.gguf -p Once --chunks 3", "`thermocline perplexity`"),
    ("-m m.gguf -p Once --gpt-oss-20b-default", "name the model with -hf USER/REPO"),
    ("-m m.gguf -p Once -dr ai/x", "-hf USER/REPO"),
    ("-mu m.gguf -p hi", "'m.gguf' is not a URL"),
    ("-hff m.gguf -p hi", "--hf-file needs --hf-repo"),
    ("-hf llama3 -p hi", "for --hf-repo: write USER/REPO"),
    ("-cl", "`thermocline list`"),
    ("perplexity -m m.gguf -bf FILE --multiple-choice", "this benchmark is not supported"),
    ("quantize m.gguf", "`quantize` takes IN [OUT] TYPE [THREADS]"),
    ("quantize m.gguf o.gguf IQ2_XS", "Q2_K, Q3_K_S or IQ4_XS can be made here"),
    ("quantize --tensor-type attn_v m.gguf o.gguf Q4_0", "--tensor-type attn_v=q6_k"),
    ("chta", "did you mean `thermocline chat`?"),
    ("quantizee a b Q4_0", "did you mean `thermocline quantize`?"),
    ("pull llama3", "as USER/REPO or USER/REPO:QUANT"),
    ("pull", "pull needs the name of a model"),
    ("login", "HF_TOKEN"),
    ("version", "`thermocline --version`"),
    ("--verion", "did you mean --version?"),
    ("-n abc", "invalid value 'abc' for --predict: must be a whole number, -2 or more"),
    ("-n -5", "must be a whole number, -2 or more"),
    ("-c 99999999999", "for --ctx-size: the number is too large"),
    ("predictor --tokens 512", "must be a whole number from 1024 to 16777216"),
    ("--top-p 2", "invalid value 2 for --top-p: must be a number from 0 to 1"),
    ("--temp hot", "'hot' is not a number"),
    ("-mmp 0,1 -m m.gguf", "only `bench` runs them in turn"),
    ("-m m.gguf -p Once -fa bogus", "invalid value 'bogus' for -fa"),
    ("-m m.gguf -fa=maybe", "write on, off or auto; a prompt goes after -p"),
    ("--color=perhaps", "help: possible values: on, off, auto"),
];

#[test]
fn posted_command_lines_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, "Once upon a time").unwrap();
    for line in ACCEPTED {
        let line = line.replace("FILE", file.to_str().unwrap());
        let output = thermocline(&words(&line));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{line}: {text}");
        assert!(text.contains("gone.gguf"), "{line}: {text}");
    }
}

#[test]
fn a_log_file_gets_notes_and_errors() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("run.log");
    let log_flag = ["--log-file", log.to_str().unwrap()];
    let output = thermocline(&[&["-p", "Once", "-n", "1"][..], &log_flag].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), stderr(&output));
    let failed = thermocline(&[&["-m", "gone.gguf", "-p", "Once"][..], &log_flag].concat());
    let text = std::fs::read_to_string(&log).unwrap();
    assert_eq!(text, stderr(&output) + &stderr(&failed), "the log is appended to");
    let refused = thermocline(&["-p", "Once", "--log-file", "m.gguf"]);
    assert!(stderr(&refused).contains("-m the model"), "{}", stderr(&refused));
}

#[test]
fn refusals_say_what_to_write() {
    for (line, says) in REFUSED {
        let output = thermocline(&words(line));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains(says), "{line}: {says:?} is not in {text}");
        assert!(!text.contains("unexpected argument"), "{line}: {text}");
    }
}

/// A folder with the built-in model as `story.gguf`, and with a chat template as `chat.gguf`.
fn models() -> (TempDir, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (story, chat) = (path("story.gguf"), path("chat.gguf"));
    built_in_with(Path::new(&story), &[]);
    let template = "{% for m in messages %}{{ m.content }} and {% endfor %}";
    built_in_with(Path::new(&chat), &[("tokenizer.chat_template", template.into())]);
    (folder, story, chat)
}

const SHORT: [&str; 5] = ["--temp", "0", "-n", "8", "--log-disable"];

#[track_caller]
fn text_of(args: &[&str], input: Option<&str>) -> String {
    let output = run_as(&program(), &[args, &SHORT].concat(), input, &[]);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn models_and_prompts_need_no_flags() {
    let (_folder, story, _) = models();
    let expected = text_of(&["run", "-m", &story, "-p", "A cat"], None);
    assert!(expected.len() > 10, "{expected:?}");
    for args in [
        &[story.as_str(), "A cat"][..],
        &["run", &story, "A cat"],
        &["run", &story, "A", "cat"],
        &["-m", &story, "A cat"],
        &["run", "A cat"],
    ] {
        assert_eq!(text_of(args, None), expected, "{args:?}");
    }
    assert!(stdout(&thermocline(&["info", &story])).contains("architecture"));
    let ids = stdout(&thermocline(&["tokenize", &story, "A cat", "--ids"]));
    assert_eq!(ids, stdout(&thermocline(&["tokenize", "-m", &story, "-p", "A cat", "--ids"])));
}

#[test]
fn piped_text_is_the_prompt() {
    let expected = text_of(&["run", "-p", "A cat"], None);
    assert_eq!(text_of(&["run"], Some("A cat\n")), expected);
    assert_eq!(text_of(&[], Some("A cat\n")), expected);
    assert_eq!(text_of(&["run", "-p", "A cat"], Some("never read\n")), expected);
    let both = text_of(&["run", "-p", "A dog.\nA cat"], None);
    assert_eq!(
        text_of(&["run", "A cat "], Some("A dog.\n")),
        text_of(&["run", "-p", "A dog.\nA cat "], None)
    );
    assert_eq!(text_of(&["A cat", "-no-cnv"], Some("A dog.")), both);
    let ids = run_as(&program(), &["tokenize", "--ids"], Some("A cat\n"), &[]);
    assert_eq!(stdout(&ids), stdout(&thermocline(&["tokenize", "A cat", "--ids"])));
    let answer = text_of(&["run", "--chat"], Some("A cat\n"));
    assert_eq!(answer, text_of(&["run", "--chat", "-p", "A cat"], None));
}

#[test]
fn the_models_template_or_a_chat_flag_starts_a_conversation() {
    let (_folder, story, chat) = models();
    let raw = text_of(&["run", "-m", &chat, "-p", "A cat"], None);
    assert!(raw.starts_with("A cat"), "raw text repeats the prompt: {raw:?}");
    let answer = text_of(&["chat", "-m", &chat, "-p", "A cat"], None);
    assert_ne!(answer, raw);
    for args in [
        &["-m", chat.as_str(), "-p", "A cat"][..],
        &["-m", &chat, "-p", "A cat", "--jinja", "-i"],
        &["run", &chat, "A cat"],
        &[&chat, "A cat"],
    ] {
        assert_eq!(text_of(args, None), answer, "{args:?}");
    }
    assert_eq!(text_of(&["-m", &chat], Some("A cat\n")), answer, "a line of input is a message");
    assert_eq!(text_of(&["-m", &chat, "-p", "A cat", "-no-cnv"], None), raw);
    let plain = text_of(&["chat", "-m", &story, "-p", "A cat"], None);
    assert_eq!(text_of(&["-m", &story, "-p", "A cat", "-st"], None), plain);
}

#[test]
fn the_last_of_repeated_flags_counts() {
    let expected = text_of(&["run", "-p", "A cat"], None);
    let twice = ["run", "-p", "One", "--temp", "9", "--backend", "wgpu", "--backend", "cpu"];
    assert_eq!(text_of(&[&twice[..], &["-p", "A cat"]].concat(), None), expected);
}

#[test]
fn llama_cpps_variables_count_where_ours_are_not_set() {
    let with = |env: &[(&str, &str)]| run_as(&program(), &["-m", "gone.gguf"], None, env);
    let wrong = with(&[("LLAMA_ARG_N_PREDICT", "x")]);
    assert_eq!(wrong.status.code(), Some(2));
    let text = stderr(&wrong);
    assert!(text.contains("invalid value 'x' in LLAMA_ARG_N_PREDICT: must be a whole"), "{text}");
    let both = with(&[("LLAMA_ARG_N_PREDICT", "x"), ("THERMOCLINE_ARG_N_PREDICT", "4")]);
    assert_eq!(both.status.code(), Some(3), "{}", stderr(&both));
    let ours = with(&[("THERMOCLINE_ARG_N_PREDICT", "x")]);
    assert!(stderr(&ours).contains("in THERMOCLINE_ARG_N_PREDICT: "), "{}", stderr(&ours));
    let images = with(&[("LLAMA_ARG_MMPROJ", "a")]);
    assert!(stderr(&images).contains("LLAMA_ARG_MMPROJ=a: "), "{}", stderr(&images));
    let flash = with(&[("LLAMA_ARG_FLASH_ATTN", "bogus")]);
    assert!(stderr(&flash).contains("'bogus' in LLAMA_ARG_FLASH_ATTN"), "{}", stderr(&flash));
    let port = with(&[("LLAMA_ARG_PORT", "x"), ("LLAMA_ARG_STATIC_PATH", "x")]);
    assert_eq!(port.status.code(), Some(3), "`run` has no server: {}", stderr(&port));
}

#[test]
#[cfg(unix)]
fn a_link_behaves_as_the_program_it_is_named_after() {
    let folder = tempfile::tempdir().unwrap();
    let link = |name: &str| {
        let path = folder.path().join(name);
        std::os::unix::fs::symlink(program(), &path).unwrap();
        path
    };
    let help = |name: &str| stdout(&run_as(&link(name), &["-h"], None, &[]));
    for (name, usage) in [
        ("llama-cli", "thermocline run"),
        ("llama-server", "thermocline serve"),
        ("llama-bench", "thermocline bench"),
        ("llama-perplexity", "thermocline perplexity"),
        ("llama-tokenize", "thermocline tokenize"),
        ("llama-gguf-split", "thermocline split"),
        ("llama-quantize", "thermocline quantize"),
        ("main", "thermocline run"),
    ] {
        let text = help(name);
        assert!(text.contains(&format!("Usage: {usage}")), "{name}: {text}");
    }
    let (_models, _, chat) = models();
    let args = [&["-m", chat.as_str(), "-p", "A cat"], &SHORT[..]].concat();
    let main = run_as(&folder.path().join("main"), &args, None, &[]);
    let raw = text_of(&["run", "-m", &chat, "-p", "A cat"], None);
    assert_eq!(stdout(&main), raw, "main of 2023 continues raw text");
}

#[test]
fn quantize_and_split_take_llama_cpps_words() {
    let (folder, story, _) = models();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let done = |args: &[&str]| {
        let output = thermocline(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
    done(&["quantize", &story, "7", "2"]);
    let whole = std::fs::read(path("ggml-model-Q8_0.gguf")).unwrap();
    let (named, planned) = (path("named.gguf"), path("planned.gguf"));
    done(&["quantize", &story, &named, "q8_0", "1"]);
    assert!(std::fs::read(&named).unwrap() == whole, "the number of threads changes no byte");
    let printed = done(&["quantize", "--dry-run", &story, &planned, "q8_0"]);
    assert!(printed.contains(&planned) && !Path::new(&planned).exists(), "{printed}");

    let prefix = path("part");
    let size = ["--split-max-size", "4M"];
    let planned =
        done(&[&["split", "--split", "--dry-run"], &size[..], &[&story, &prefix]].concat());
    assert!(
        planned.contains("part-00001-of-0000")
            && !Path::new(&path("part-00001-of-00004.gguf")).exists()
    );
    let flags = ["split", "--split", "--no-tensor-first-split"];
    let parts = done(&[&flags, &size[..], &[&story, &prefix]].concat());
    let parts: Vec<&str> = parts.lines().collect();
    assert_eq!(parts.len(), planned.lines().count() + 1, "one more, which has only metadata");
    let joined = path("joined.gguf");
    done(&["split", "--merge", parts[0], &joined]);
    assert!(std::fs::read(&joined).unwrap() == std::fs::read(&story).unwrap());

    let out = path("small.gguf");
    let kept = done(&["quantize", "--keep-split", parts[0], &out, "q8_0"]);
    assert_eq!(kept.lines().count(), parts.len(), "{kept}");
    let again = path("again.gguf");
    done(&["merge", kept.lines().next().unwrap(), &again]);
    assert!(std::fs::read(&again).unwrap() == whole, "the same tensors as in one file");
}

#[test]
fn bench_runs_each_value_of_a_list() {
    let args = ["bench", "-p", "4", "-n", "0", "-r", "1", "--no-warmup", "-o", "jsonl"];
    let lists = ["-mmp", "0,1", "-nkvo", "0,1", "-C", "0x1,0x3"];
    let output = thermocline(&[&args[..], &lists].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut found: Vec<_> =
        rows.iter().map(|row| (row["use_mmap"].to_string(), row["cpu_mask"].to_string())).collect();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 4, "{found:?}");
}
