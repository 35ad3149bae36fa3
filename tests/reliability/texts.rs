//! Control characters on a terminal, and texts without an end.

use super::*;

/// A prompt that would set the title and the clipboard of a terminal.
const PROMPT: &str = "\u{1b}]0;title\u{7}\u{1b}]52;c;aGk=\u{7}Once";

#[test]
fn a_terminal_gets_pictures_of_control_characters_and_a_pipe_gets_them_unchanged() {
    let folder = Folder::new();
    fs::write(folder.path("prompt"), PROMPT).unwrap();
    let args = "run -m story.gguf -f prompt -n 4 --temp 0 --color off --no-perf";
    let piped = folder.run(&args.split(' ').collect::<Vec<_>>());
    assert!(piped.stdout.starts_with(PROMPT.as_bytes()));
    let on_terminal = |args: &str| {
        let line = format!("{} {args}", env!("CARGO_BIN_EXE_thermocline"));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).current_dir(folder.0.path());
        command.env("XDG_CACHE_HOME", folder.path("xdg")).env("THERMOCLINE_ARG_BACKEND", "cpu");
        command.stdin(Stdio::null()).output().ok().map(|output| output.stdout)
    };
    let Some(shown) = on_terminal(args) else {
        return println!("skipped: there is no `script` of util-linux");
    };
    let shown = String::from_utf8_lossy(&shown).into_owned();
    assert!(shown.contains("␛]0;title␇␛]52;c;aGk=␇Once"), "{shown:?}");
    assert!(!shown.contains("\u{1b}]"), "{shown:?}");
    let raw = |args: &str| {
        String::from_utf8_lossy(&on_terminal(&format!("{args} --raw")).unwrap()).into_owned()
    };
    assert!(raw(args).contains(PROMPT), "{:?}", raw(args));
    // `tokenize` too shows a token that is a control character.
    let tokens = "tokenize -m story.gguf -f prompt";
    let shown = String::from_utf8_lossy(&on_terminal(tokens).unwrap()).into_owned();
    assert!(shown.contains("'␛'") && !shown.contains("'\u{1b}'"), "{shown:?}");
    assert!(raw(tokens).contains("'\u{1b}'"), "{:?}", raw(tokens));
}

#[test]
fn a_text_without_an_end_is_refused_with_the_limit() {
    let folder = Folder::new();
    // Sparse, so that it takes no space.
    let file = fs::File::create(folder.path("endless")).unwrap();
    file.set_len((1 << 30) + 1).unwrap();
    let system = ["-sysf", "endless", "--chat", "-p", "Hi"];
    for flags in [&["-f", "endless"][..], &system] {
        let args = [&["run", "-m", "story.gguf", "-n", "1"], flags].concat();
        let output = folder.run(&args);
        assert_eq!(output.status.code(), Some(1), "{flags:?} {}", stderr(&output));
        assert!(stderr(&output).contains("it has more than 1.00 GiB"), "{}", stderr(&output));
    }
}
