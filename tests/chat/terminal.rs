//! A conversation in a terminal, run in tmux.

use std::path::Path;
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use thermocline::gguf::Value;

use super::built_in_with;

/// Even a busy machine answers within this time.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A separate tmux server, which ends with the test.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn start(folder: &Path) -> Option<Terminal> {
        Command::new("tmux").arg("-V").output().ok()?;
        let socket = folder.join("socket").to_str()?.to_owned();
        let terminal = Terminal { socket };
        let size = ["-x", "100", "-y", "200"];
        let shell = format!("env HOME={} PS1='ready ' bash --norc", folder.display());
        let started = terminal
            .tmux(&[&["-f", "/dev/null", "new-session", "-d"], &size[..], &[&shell]].concat());
        started.status.success().then_some(terminal)
    }

    fn tmux(&self, args: &[&str]) -> Output {
        Command::new("tmux").args(["-S", &self.socket]).args(args).output().unwrap()
    }

    fn type_line(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn press_key(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p", "-J", "-S", "-"]).stdout)
            .into_owned()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, seen: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !seen(&self.screen()) {
            assert!(start.elapsed() < TIMEOUT, "no {what} in:\n{}", self.screen());
            sleep(Duration::from_millis(100));
        }
    }

    #[track_caller]
    fn wait_for_shell(&self) {
        self.wait_for("shell", |screen| screen.trim_end().ends_with("ready"));
    }

    /// Waits for an empty prompt after at least `n` earlier ones.
    #[track_caller]
    fn wait_for_prompt(&self, n: usize) {
        let prompts = |screen: &str| screen.lines().filter(|line| line.starts_with('>')).count();
        self.wait_for("prompt", |screen| {
            prompts(screen) > n
                && screen.trim_end().lines().last().is_some_and(|l| l.trim_end() == ">")
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Writes the built-in model with a chat template to `path`.
fn write_instruct_model(path: &Path) {
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let template = Value::String(template.into());
    built_in_with(path, &[("tokenizer.chat_template", template)]);
}

#[test]
fn a_terminal_and_a_template_start_a_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let Some(terminal) = Terminal::start(folder.path()) else {
        println!("skipped: tmux is not installed, or cannot start");
        return;
    };
    let model = folder.path().join("model.gguf");
    write_instruct_model(&model);
    terminal.wait_for_shell();
    let program = env!("CARGO_BIN_EXE_thermocline");
    // The command line names no command. The answers would never end by themselves.
    terminal.type_line(&format!(
        "{program} -m {} --ignore-eos --context-shift --backend cpu --repack-cache off",
        model.display()
    ));
    terminal.wait_for_prompt(0);
    let length = |terminal: &Terminal| terminal.screen().trim_end().len();
    for (n, message) in ["Tell me a story.", "/regen"].into_iter().enumerate() {
        let before = length(&terminal);
        terminal.type_line(message);
        terminal.wait_for("answer", |screen| screen.trim_end().len() > before + 150);
        terminal.press_key("C-c");
        terminal.wait_for_prompt(n + 1);
    }
    terminal.type_line("/stats");
    terminal.wait_for("counts", |screen| screen.contains("| 1 question |"));
    terminal.wait_for_prompt(3);
    terminal.tmux(&["send-keys", "-l", "half a line"]);
    terminal.press_key("C-c");
    terminal.wait_for_prompt(4);
    // A dropped line does not count: only two presses at an empty line exit.
    terminal.press_key("C-c");
    terminal.wait_for("hint how to exit", |screen| {
        screen.contains("press Ctrl-C again to exit, or Ctrl-D")
    });
    terminal.type_line("/nonsense");
    terminal.wait_for("error message", |screen| screen.contains("unknown command /nonsense"));
    terminal.wait_for_prompt(6);
    terminal.press_key("C-d");
    terminal.wait_for_shell();
    terminal.type_line("echo code $?");
    terminal.wait_for("exit", |screen| screen.lines().any(|line| line.starts_with("code 0")));
    let history = folder.path().join(".local/state/thermocline/chat_history");
    if cfg!(target_os = "linux") {
        assert!(std::fs::read_to_string(history).unwrap().contains("Tell me a story."));
    }
}

#[test]
fn a_stopped_single_turn_exits_as_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let Some(terminal) = Terminal::start(folder.path()) else {
        println!("skipped: tmux is not installed, or cannot start");
        return;
    };
    terminal.wait_for_shell();
    let program = env!("CARGO_BIN_EXE_thermocline");
    terminal.type_line(&format!(
        "{program} chat -st --ignore-eos --context-shift --backend cpu --repack-cache off -p Hello 2>/dev/null"
    ));
    terminal.wait_for("answer", |screen| screen.trim_end().len() > 400);
    terminal.press_key("C-c");
    terminal.wait_for_shell();
    terminal.type_line("echo code $?");
    terminal.wait_for("exit", |screen| screen.lines().any(|line| line.starts_with("code 130")));
}

/// Lines that arrive together, as without bracketed paste, are each answered.
#[test]
fn lines_that_arrive_together_are_all_answered() {
    let folder = tempfile::tempdir().unwrap();
    let Some(terminal) = Terminal::start(folder.path()) else {
        println!("skipped: tmux is not installed, or cannot start");
        return;
    };
    terminal.wait_for_shell();
    let program = env!("CARGO_BIN_EXE_thermocline");
    terminal.type_line(&format!("{program} chat -n 4 --backend cpu --repack-cache off"));
    terminal.wait_for_prompt(0);
    terminal.tmux(&["set-buffer", "line one\nline two\nline three\n"]);
    terminal.tmux(&["paste-buffer"]);
    terminal.wait_for_prompt(3);
    terminal.type_line("/stats");
    terminal.wait_for("counts", |screen| screen.contains("| 3 questions |"));
}
