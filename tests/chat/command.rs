//! The command, with standard input that is closed or a pipe.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs the built-in model with `input` on standard input; `None` closes it.
fn thermocline(args: &[&str], input: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().unwrap();
    if let Some(input) = input {
        // Who was answered enough need not read on.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    }
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Greedy and short.
const SHORT: [&str; 5] = ["chat", "--temp", "0", "-n", "12"];

fn chat(more: &[&str], input: Option<&str>) -> Output {
    thermocline(&[&SHORT[..], more].concat(), input)
}

#[track_caller]
fn check_done(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
    assert!(!stderr(output).contains("panicked"), "{}", stderr(output));
}

#[test]
fn closed_input_ends_at_once() {
    for args in [&["chat"][..], &["-cnv"], &["run", "-cnv"]] {
        let output = thermocline(args, None);
        check_done(&output);
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn without_a_template_turns_are_plain_and_it_is_said_once() {
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
fn each_line_is_a_turn_and_the_same_ones_give_the_same_answers() {
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
    let told = stderr(&output);
    for says in [
        "/regen            answer",
        "there is no command /nonsense",
        "temp 0.5",
        "there is no setting 'magic'",
        "Be brief.",
        "there is no answer yet",
        "context 0 of",
        "forgotten",
    ] {
        assert!(told.contains(says), "{says:?} is not in {told}");
    }
}

#[test]
fn an_answer_can_be_given_anew_and_forgotten() {
    let output = chat(&[], Some("A dog\n/regen\n/clear\nA dog\n"));
    check_done(&output);
    let text = stdout(&output);
    let third = text.len() / 3;
    assert!(text.len().is_multiple_of(3), "{text:?}");
    assert_eq!(text[..third], text[third..2 * third], "greedy answers are the same again");
    assert_eq!(text[..third], text[2 * third..], "and after the conversation was forgotten");
}

#[test]
fn with_a_message_and_nobody_there_it_is_one_turn() {
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
fn what_is_wrong_is_said_with_its_exit_code() {
    let cases: [(&[&str], i32, &str); 8] = [
        (&["chat", "--chat-template", "magic"], 2, "no chat template is called 'magic'"),
        (&["chat", "--chat-template", "{% if %}"], 2, "line 1: "),
        (&["chat", "--chat-template-kwargs", "[]"], 2, "no JSON object"),
        (&["chat", "--reasoning-budget", "7"], 2, "7"),
        (&["chat", "-no-cnv"], 2, "wants none"),
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
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
        assert!(told.contains(says), "{says:?} is not in {told}");
        assert_eq!(stdout(&output), "");
    }
}

#[test]
fn a_conversation_that_is_too_long_is_said_or_shortened() {
    let input = "One two three four five six seven eight nine ten\n".repeat(6);
    let full = chat(&["-c", "96"], Some(&input));
    assert_eq!(full.status.code(), Some(1), "{}", stderr(&full));
    assert!(stderr(&full).contains("leaves no room"), "{}", stderr(&full));
    let shifted = chat(&["-c", "96", "--context-shift"], Some(&input));
    check_done(&shifted);
    assert!(stderr(&shifted).contains("turns are forgotten"), "{}", stderr(&shifted));
}

#[test]
fn reasoning_is_kept_out_of_standard_output() {
    // A template that opens the reasoning: all that a story model writes then is reasoning.
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>";
    let output = chat(&["-p", "A cat", "--chat-template", template], None);
    check_done(&output);
    assert_eq!(stdout(&output).trim(), "");
    let told = stderr(&output);
    let whole =
        chat(&["-p", "A cat", "--chat-template", template, "--reasoning-format", "none"], None);
    let text = stdout(&whole);
    assert!(text.trim().len() > 10 && told.contains(text.trim()), "{text:?} is not in {told:?}");
    let quiet = chat(&["-p", "A cat", "--chat-template", template, "--log-disable"], None);
    assert_eq!(stderr(&quiet), "");
}
