//! Signals that end a process which writes, and what killed processes leave.

use std::time::SystemTime;

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Starts a command and waits until it writes.
fn start_writer(folder: &Folder, args: &[&str]) -> Child {
    let mut child = folder.start(args);
    wait_until("an output is begun", || {
        assert!(child.try_wait().unwrap().is_none(), "{args:?} ended early");
        !folder.parts().is_empty()
    });
    child
}

/// Whether this process, and so each command that it starts, ignores a signal: a shell starts `command &` so.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn each_signal_ends_a_writer_as_ctrl_c_does() {
    let folder = Folder::new();
    // Slow writers: a text without an end, and a training.
    let trace = ["run", "-p", "Once", "-n", "-1", "--ignore-eos", "-c", "256", "--context-shift"];
    let trace = [&trace[..], &["-m", "story.gguf", "--trace", "trace"]].concat();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        if is_ignored(signal) {
            println!("skipped: {signal:?} is ignored here, so the commands ignore it too");
            continue;
        }
        let mut child = start_writer(&folder, &trace);
        // It prints, so its handlers are installed.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{signal:?} {}", stderr(&output));
        assert_eq!(folder.parts(), [""; 0], "{signal:?}");
    }
    assert!(folder.path("trace").exists(), "the steps so far are kept");
}

#[test]
fn a_caller_that_ignores_hangups_is_obeyed() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_thermocline");
    let mut command = Command::new("nohup");
    command.args([program, "run", "-p", "Once", "-n", "400", "--ignore-eos", "-c", "512"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("XDG_CACHE_HOME", folder.path("xdg")).env("THERMOCLINE_ARG_BACKEND", "cpu");
    let mut child = command.spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn leftovers_of_dead_processes_are_removed_when_the_output_is_written_again() {
    let folder = Folder::new();
    let mut child = Command::new("true").spawn().unwrap();
    let (dead, alive) = (child.id(), std::process::id());
    child.wait().unwrap();
    let old = SystemTime::now() - Duration::from_secs(6 * 60);
    for (name, written) in [
        (format!("{dead}-0.out.gguf.part"), old),
        (format!("{dead}-1.out.gguf.part"), SystemTime::now()),
        (format!("{dead}-0.other.gguf.part"), old),
        (format!("{alive}-0.out.gguf.part"), old),
    ] {
        fs::write(folder.path(&name), "half").unwrap();
        let file = fs::File::options().append(true).open(folder.path(&name)).unwrap();
        file.set_modified(written).unwrap();
    }
    let mut stays = folder.parts();
    stays.retain(|name| *name != format!("{dead}-0.out.gguf.part"));
    assert!(folder.run(&["merge", "story.gguf", "out.gguf"]).status.success());
    let mut left = folder.parts();
    left.sort();
    stays.sort();
    assert_eq!(left, stays, "only an old file of this output whose writer is dead was removed");
}

#[test]
fn a_measurement_that_is_stopped_says_so() {
    let folder = Folder::new();
    let bench = ["bench", "-m", "story.gguf", "-p", "4", "-n", "200", "-r", "10000"];
    let mut child = folder.start(&bench);
    // It prints the result of the first test, so its handlers are installed.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = stderr(&output);
    assert_eq!((output.status.code(), text.contains("note: stopped")), (Some(130), true), "{text}");
}
