//! Conversations whose standard input is closed or a pipe.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use thermocline::gguf::{Array, Strings, Value};

use super::built_in_with;

/// Runs the built-in model with `input` on standard input; `None` closes it.
pub(super) fn thermocline(args: &[&str], input: Option<&str>) -> Output {
    with_env(args, input, &[])
}

pub(super) fn with_env(args: &[&str], input: Option<&str>, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().env("THERMOCLINE_ARG_BACKEND", "cpu").envs(env.iter().copied());
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().unwrap();
    if let Some(input) = input {
        // Writing fails if the program exits without reading all its input.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    }
    child.wait_with_output().unwrap()
}

pub(super) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Arguments for short answers with greedy sampling.
const SHORT: [&str; 5] = ["chat", "--temp", "0", "-n", "12"];

pub(super) fn chat(more: &[&str], input: Option<&str>) -> Output {
    thermocline(&[&SHORT[..], more].concat(), input)
}

#[track_caller]
pub(super) fn check_done(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
    assert!(!stderr(output).contains("panicked"), "{}", stderr(output));
}

#[test]
fn closed_input_ends_the_chat() {
    for args in [&["chat"][..], &["-cnv"], &["run", "-cnv"]] {
        let output = thermocline(args, None);
        check_done(&output);
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn without_a_template_turns_are_plain_and_noted_once() {
    let output = chat(&[], Some("Tell me a story about a cat.\nAnd then?\n"));
    check_done(&output);
    let (text, notes) = (stdout(&output), stderr(&output));
    assert_eq!(notes.matches("no chat template").count(), 1, "{notes}");
    assert!(text.ends_with('\n') && text.trim().len() > 10, "{text:?}");
    for decoration in ["> ", "User:", "Assistant:", "\u{1b}["] {
        assert!(!text.contains(decoration), "{decoration:?} in {text:?}");
    }
}

#[test]
fn each_line_is_a_turn_and_answers_are_reproducible() {
    let input = "One day\nThe end\\\nof it\n";
    let template = ["--chat-template", "chatml"];
    let first = chat(&template, Some(input));
    check_done(&first);
    assert!(!stderr(&first).contains("no chat template"));
    assert!(!stdout(&first).contains("<|im_"), "{:?}", stdout(&first));
    let again = chat(&[&template[..], &["--json"]].concat(), Some(input));
    assert_eq!(stdout(&first), stdout(&again));
    let reports: Vec<serde_json::Value> = stderr(&again)
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(reports.len(), 2, "two turns: {}", stderr(&again));
    assert_eq!(reports[0]["prompt_tokens_reused"], 0);
    let (reused, prompt) = (&reports[1]["prompt_tokens_reused"], &reports[0]["prompt_tokens"]);
    assert!(
        reused.as_u64() >= prompt.as_u64(),
        "the first turn is not computed again: {reports:?}"
    );
}

#[test]
fn commands_are_answered_on_standard_error() {
    let input = "/help\n/nonsense\n/set temp 0.5\n/set\n/set magic 1\n/system Be brief.\n/system\n/regen\n/stats\n/clear\n/exit\nnever read\n";
    let output = chat(&[], Some(input));
    check_done(&output);
    assert_eq!(stdout(&output), "");
    let text = stderr(&output);
    for says in [
        "/regen            answer",
        "unknown command /nonsense",
        "temp 0.5",
        "unknown setting 'magic'",
        "Be brief.",
        "there is no answer yet",
        "context 0 of",
        "the conversation was cleared",
    ] {
        assert!(text.contains(says), "{says:?} is not in {text}");
    }
}

/// The reports of the answers, one per turn.
fn reports(output: &Output) -> Vec<serde_json::Value> {
    let notes = stderr(output);
    let lines = notes.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn save_replaces_only_saved_conversations() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let save = |name: &str| {
        let line = format!("One day\n/save {}\n", path(name).display());
        let output = chat(&["--chat-template", "chatml"], Some(&line));
        (output.status.code(), stderr(&output))
    };
    assert_eq!(save("talk").0, Some(0));
    assert_eq!(save("talk").0, Some(0), "a saved conversation is replaced");
    for (file, name) in [("notes", "notes"), ("settings.json", "settings")] {
        std::fs::write(path(file), "precious").unwrap();
        let (code, text) = save(name);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("exists") && text.contains("choose another name"), "{text}");
        assert_eq!(std::fs::read(path(file)).unwrap(), b"precious");
    }
    let output = chat(&[], Some(&format!("/load {}\n", path("notes").display())));
    assert!(stderr(&output).contains("is not a saved conversation"), "{}", stderr(&output));
}

#[test]
fn lines_between_quotes_are_one_message() {
    let template = ["--chat-template", "{{ messages[-1].content }} and"];
    let quoted = chat(&template, Some("\"\"\"One\nday\"\"\"\n"));
    check_done(&quoted);
    assert_eq!(stdout(&quoted), stdout(&chat(&template, Some("One\\\nday\n"))));
    assert_eq!(
        stdout(&quoted).lines().count(),
        stdout(&chat(&template, Some("One"))).lines().count()
    );
}

#[test]
fn a_loaded_conversation_computes_only_new_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a talk");
    let name = file.to_str().unwrap();
    let args = ["--chat-template", "chatml", "--json", "-sys", "Be brief."];
    let whole = chat(&args, Some("One day\nThe dog\nAnd then?\n"));
    check_done(&whole);
    let whole_reports = reports(&whole);

    let first = chat(&args, Some(&format!("One day\nThe dog\n/save {name}\n")));
    check_done(&first);
    assert!(stderr(&first).contains("saved "), "{}", stderr(&first));
    // `/load` replaces this system message and removes the first turn.
    let other = ["--chat-template", "chatml", "--json", "-sys", "Be a cat."];
    let second = chat(&other, Some(&format!("A bird\n/load {name}\nAnd then?\n")));
    check_done(&second);
    assert!(stderr(&second).contains("2 questions"), "{}", stderr(&second));
    let second_reports = reports(&second);
    let count = |report: &serde_json::Value, key: &str| report[key].as_u64().unwrap();
    let (expected, got) = (&whole_reports[2], &second_reports[1]);
    for key in ["prompt_tokens", "prompt_tokens_reused"] {
        assert_eq!(count(got, key), count(expected, key), "{key}");
    }
    let reused = count(got, "prompt_tokens_reused");
    let before = count(&whole_reports[1], "prompt_tokens");
    assert!(reused >= before, "{reused} tokens are reused, and the saved prompt has {before}");
    assert!(stdout(&second).ends_with(stdout(&whole).strip_prefix(&stdout(&first)).unwrap()));

    // Without the file of messages, the file of tokens is only a prompt cache, here for a
    // conversation that begins in the same way.
    std::fs::remove_file(folder.path().join("a talk.json")).unwrap();
    let third = chat(&args, Some(&format!("/load {name}\nOne day\n")));
    check_done(&third);
    assert!(stderr(&third).contains("the messages stay"), "{}", stderr(&third));
    let third = &reports(&third)[0];
    assert_eq!(count(third, "prompt_tokens_reused") + 1, count(third, "prompt_tokens"));

    for (write, says) in
        [(None, "No such file"), (Some("something else"), "is not a saved sequence")]
    {
        std::fs::remove_file(&file).ok();
        write.iter().for_each(|text| std::fs::write(&file, text).unwrap());
        let failed = chat(&args, Some(&format!("/load {name}\nnever read\n")));
        assert_eq!(failed.status.code(), Some(1));
        assert!(stderr(&failed).contains(says), "{}", stderr(&failed));
    }
    let failed = chat(&args, Some(&format!("/save {}\n", folder.path().display())));
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("cannot write"), "{}", stderr(&failed));
}

#[test]
fn regen_and_clear_repeat_the_answer() {
    let output = chat(&[], Some("A dog\n/regen\n/clear\nA dog\n"));
    check_done(&output);
    let text = stdout(&output);
    let third = text.len() / 3;
    assert!(text.len().is_multiple_of(3), "{text:?}");
    assert_eq!(text[..third], text[third..2 * third], "greedy answers repeat");
    assert_eq!(text[..third], text[2 * third..], "greedy answers repeat after /clear");
}

#[test]
fn a_message_without_a_terminal_is_one_turn() {
    let output = chat(&["-p", "A bird"], Some("never read\n"));
    check_done(&output);
    let run = thermocline(&["run", "--chat", "--temp", "0", "-n", "12", "-p", "A bird"], None);
    check_done(&run);
    assert_eq!(stdout(&output), stdout(&run), "run --chat writes the template once");
    let single = chat(&["-st"], Some("A bird\nnever read\n"));
    assert_eq!(stdout(&single), stdout(&output));
    let raw = thermocline(
        &["run", "--temp", "0", "-n", "12", "-p", "A bird", "--no-display-prompt"],
        None,
    );
    assert_ne!(stdout(&raw), stdout(&run), "run -p stays raw");
}

#[test]
fn errors_have_a_message_and_an_exit_code() {
    let cases: [(&[&str], i32, &str); 8] = [
        (&["chat", "--chat-template", "magic"], 2, "unknown chat template 'magic'"),
        (&["chat", "--chat-template", "{% if %}"], 2, "line 1: "),
        (&["chat", "--chat-template-kwargs", "[]"], 2, "not a JSON object"),
        (&["chat", "--reasoning-budget", "7"], 2, "7"),
        (&["chat", "-no-cnv"], 2, "-no-cnv disables it"),
        (&["run", "--chat"], 2, "--chat needs a message"),
        (&["chat", "--chat-template-file", "gone.jinja"], 1, "gone.jinja"),
        (
            &["chat", "-p", "x", "--chat-template", "{{ raise_exception('not you') }}"],
            1,
            "line 1: not you",
        ),
    ];
    for (args, code, says) in cases {
        let output = thermocline(args, None);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(says), "{says:?} is not in {text}");
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_full_context_is_an_error_or_drops_old_turns() {
    let input = "One two three four five six seven eight nine ten\n".repeat(6);
    let full = chat(&["-c", "96"], Some(&input));
    assert_eq!(full.status.code(), Some(1), "{}", stderr(&full));
    assert!(stderr(&full).contains("leaves no room"), "{}", stderr(&full));
    let shifted = chat(&["-c", "96", "--context-shift"], Some(&input));
    check_done(&shifted);
    assert!(stderr(&shifted).contains("turns were dropped"), "{}", stderr(&shifted));
}

#[test]
fn reasoning_is_kept_out_of_standard_output() {
    // The template opens the reasoning, and the story model never closes it.
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>";
    let output = chat(&["-p", "A cat", "--chat-template", template], None);
    check_done(&output);
    assert_eq!(stdout(&output).trim(), "");
    let notes = stderr(&output);
    let whole =
        chat(&["-p", "A cat", "--chat-template", template, "--reasoning-format", "none"], None);
    let text = stdout(&whole);
    assert!(text.trim().len() > 10 && notes.contains(text.trim()), "{text:?} is not in {notes:?}");
    let quiet = chat(&["-p", "A cat", "--chat-template", template, "--log-disable"], None);
    assert_eq!(stderr(&quiet), "");
}

/// A file of the built-in model in which token 300 is a control token of this name.
fn with_control_token(name: &str) -> tempfile::NamedTempFile {
    let file = thermocline::embedded::file().unwrap();
    let tokens = file.metadata().str_array("tokenizer.ggml.tokens").unwrap().unwrap();
    let types = file.metadata().i32_array("tokenizer.ggml.token_type").unwrap().unwrap();
    let tokens = tokens.iter().enumerate();
    let tokens: Strings =
        tokens.map(|(id, token)| if id == 300 { name.as_bytes() } else { token }).collect();
    let types = types.iter().enumerate().map(|(id, &kind)| if id == 300 { 3 } else { kind });
    let path = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    built_in_with(
        path.path(),
        &[
            ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
            ("tokenizer.ggml.token_type", Value::Array(Array::I32(types.collect()))),
        ],
    );
    path
}

#[test]
fn reasoning_tags_may_be_control_tokens() {
    let file = with_control_token("[THINK]");
    let model = file.path().to_str().unwrap();
    let args = [
        ["-m", model, "-p", "A cat"],
        ["--logit-bias", "300+1000000", "--chat-template", "chatml"],
    ];
    let split = chat(&args.concat(), None);
    check_done(&split);
    assert_eq!(stdout(&split).trim(), "", "the whole answer is reasoning");
    assert!(stderr(&split).contains("[THINK][THINK]"), "{}", stderr(&split));
    let whole = chat(&[&args.concat()[..], &["--reasoning-format", "none"]].concat(), None);
    assert_eq!(stdout(&whole).trim(), "[THINK]".repeat(12));
}

#[test]
fn the_end_of_turn_token_is_shown_but_not_in_the_next_prompt() {
    let template = "{% for m in messages %}{{ m.content }}</s>{% endfor %}";
    // The model only generates its EOS token.
    let args = ["--chat-template", template, "--logit-bias", "2+1000000", "--verbose-prompt"];
    let input = Some("A cat\nA dog\n");
    let [special, plain] =
        [&["--special"][..], &[]].map(|more| chat(&[&args[..], more].concat(), input));
    check_done(&special);
    assert_eq!((stdout(&special).as_str(), stdout(&plain).as_str()), ("</s>\n</s>\n", "\n\n"));
    let prompts = |output: &Output| {
        let text = stderr(output);
        let tokens = text.lines().filter(|line| line.contains("-> '")).map(str::to_owned);
        tokens.collect::<Vec<_>>()
    };
    assert_eq!(prompts(&special), prompts(&plain), "the second turn has the same prompt");
    assert_eq!(prompts(&plain).iter().filter(|line| line.ends_with("'</s>'")).count(), 4);
}

#[test]
fn a_slash_command_may_span_lines() {
    let output = chat(&[], Some("/system Be \\\nvery \\\nbrief.\n/system\n/exit\n"));
    check_done(&output);
    assert!(stderr(&output).contains("\nBe \nvery \nbrief.\n"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "", "no line was sent as a message");
    let reverse = chat(&["-mli"], Some("/system Be brief.\n/system\n/exit\n"));
    assert!(stderr(&reverse).contains("\nBe brief.\n"), "{}", stderr(&reverse));
}

#[test]
fn a_named_template_ignores_a_broken_template_in_the_file() {
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    let broken = [("tokenizer.chat_template", Value::String(b"\xff".to_vec()))];
    built_in_with(file.path(), &broken);
    let model = ["-m", file.path().to_str().unwrap(), "-p", "A cat"];
    let own = chat(&model, None);
    assert_eq!(own.status.code(), Some(3), "{}", stderr(&own));
    let known = chat(&[&model[..], &["--chat-template", "chatml"]].concat(), None);
    check_done(&known);
    assert!(stdout(&known).trim().len() > 10);
    let unknown = chat(&[&model[..], &["--chat-template", "magic"]].concat(), None);
    assert_eq!(unknown.status.code(), Some(2), "{}", stderr(&unknown));
}

#[test]
fn a_shift_within_an_answer_keeps_the_system_message() {
    let system = "You are a cat that lives in a big house by the sea and tells stories to dogs.";
    let args = ["chat", "--temp", "0", "-c", "192", "-n", "220", "--ignore-eos", "--json"];
    let talk = ["--chat-template", "chatml", "-sys", system, "-p", "Hello"];
    let answer = |keep: &str| {
        let shift = ["--context-shift", "--keep", keep];
        let output = thermocline(&[&args[..], &talk, &shift].concat(), None);
        check_done(&output);
        assert!(!stderr(&output).contains("\"context_shifts\":0"), "{}", stderr(&output));
        assert!(stderr(&output).contains("the oldest tokens were dropped"), "{}", stderr(&output));
        stdout(&output)
    };
    // `--keep` has no effect as long as it covers less than the system message.
    assert_eq!(answer("0"), answer("16"));
    assert_ne!(answer("0"), answer("-1"), "a larger --keep has an effect");
}

#[test]
#[cfg(unix)]
fn ctrl_c_while_the_next_line_is_awaited_exits_as_interrupted() {
    use std::io::{BufRead, BufReader};

    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().args(SHORT).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"A bird\n").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.trim().len() > 10, "{line:?}");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
