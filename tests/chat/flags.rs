//! Flags of conversations: commands that accept them, precedence, and contradictions.

use super::command::{chat, check_done, stderr, stdout, thermocline, with_env};

#[track_caller]
fn check_usage(args: &[&str], says: &[&str]) {
    let output = thermocline(args, None);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    for part in says.iter().chain(&["help: "]) {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(stdout(&output), "", "{args:?}");
}

#[test]
fn raw_text_rejects_conversation_flags() {
    let cases: [(&[&str], &str); 8] = [
        (&["-sys", "Be brief."], "--system-prompt"),
        (&["-sysf", "gone.txt"], "--system-prompt-file"),
        (&["--chat-template", "chatml"], "--chat-template"),
        (&["--chat-template-file", "gone.jinja"], "--chat-template-file"),
        (&["--chat-template-kwargs", "{}"], "--chat-template-kwargs"),
        (&["--reasoning", "off"], "--reasoning"),
        (&["--reasoning-budget", "0"], "--reasoning-budget"),
        (&["-st"], "--single-turn"),
    ];
    for (given, flag) in cases {
        let message = format!("{flag} applies to conversations");
        let says = [message.as_str(), "--chat", "-cnv"];
        check_usage(&[&["run", "-p", "x"][..], given].concat(), &says);
        check_usage(&[&["-no-cnv", "-p", "x"][..], given].concat(), &says);
    }
    let asks_nothing =
        ["run", "-p", "x", "-n", "1", "--reasoning", "auto", "--reasoning-budget", "-1"];
    check_done(&thermocline(&asks_nothing, None));
    let once = ["run", "--chat", "-p", "x", "-n", "1", "-sys", "y", "--chat-template", "chatml"];
    check_done(&thermocline(&once, None));
    check_done(&thermocline(&["-cnv", "-p", "x", "-n", "1", "-sys", "y"], None));
}

#[test]
fn conversation_flags_in_the_environment_only_give_a_note() {
    let env = [("THERMOCLINE_ARG_CHAT_TEMPLATE", "chatml")];
    let args = ["run", "-p", "A cat", "-n", "4", "--temp", "0"];
    let noted = with_env(&args, None, &env);
    check_done(&noted);
    let text = stderr(&noted);
    assert!(text.contains("note: --chat-template, set by the environment,"), "{text}");
    assert_eq!(stdout(&noted), stdout(&thermocline(&args, None)));
}

#[test]
fn the_command_line_overrides_the_environment() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{{ messages[0].content }}").unwrap();
    let path = file.path().to_str().unwrap();
    let cases: [(&[&str], &str, &str); 6] = [
        (&["--chat-template", "chatml"], "CHAT_TEMPLATE_FILE", "gone.jinja"),
        (&["--chat-template-file", path], "CHAT_TEMPLATE", "magic"),
        (&["--chat-template-file", path], "CHAT_TEMPLATE_FILE", "gone.jinja"),
        (&["--reasoning", "on"], "THINK_BUDGET", "0"),
        (&["--reasoning-budget", "0"], "REASONING", "on"),
        // The command `chat` starts a conversation whatever the environment says.
        (&[], "CONVERSATION", "off"),
    ];
    for (more, name, value) in cases {
        let name = format!("THERMOCLINE_ARG_{name}");
        let env = [(name.as_str(), value)];
        let args = [&["chat", "-p", "A cat", "-n", "12", "--temp", "0"][..], more].concat();
        let output = with_env(&args, None, &env);
        check_done(&output);
        let alone = chat(&[&["-p", "A cat"][..], more].concat(), None);
        assert_eq!(stdout(&output), stdout(&alone), "{more:?} and {env:?}");
    }
    // If two flags on the command line contradict each other, the last one wins.
    let last =
        chat(&["-p", "A cat", "--chat-template-file", "gone", "--chat-template", "chatml"], None);
    let alone = chat(&["-p", "A cat", "--chat-template", "chatml"], None);
    assert_eq!(stdout(&last), stdout(&alone));
    let last =
        chat(&["-p", "A cat", "--chat-template", "chatml", "--chat-template-file", "gone"], None);
    assert_eq!(last.status.code(), Some(1), "{}", stderr(&last));
    let raw = ["run", "-p", "A cat", "-n", "4", "--temp", "0"];
    let named = with_env(&raw, None, &[("THERMOCLINE_ARG_CONVERSATION", "on")]);
    assert_eq!(stdout(&named), stdout(&thermocline(&raw, None)));
}

#[test]
fn contradictory_flags_are_rejected() {
    check_usage(
        &["run", "--chat", "-cnv", "-p", "x"],
        &["--chat answers one", "-cnv starts a conversation"],
    );
    check_usage(&["run", "--chat", "-no-cnv", "-p", "x"], &["--chat answers one", "-no-cnv"]);
    check_usage(&["chat", "-no-cnv"], &["-no-cnv disables it"]);
    for command in ["bench", "info", "perplexity"] {
        check_usage(&[command, "-cnv"], &["unknown flag '-cnv'"]);
    }
    let reasoning = ["chat", "-p", "x", "--reasoning", "on", "--reasoning-budget", "0"];
    check_usage(&reasoning, &["--reasoning on", "--reasoning-budget 0"]);
    let both = [("THERMOCLINE_ARG_REASONING", "on"), ("THERMOCLINE_ARG_THINK_BUDGET", "0")];
    assert_eq!(with_env(&["chat", "-p", "x"], None, &both).status.code(), Some(2));
}
