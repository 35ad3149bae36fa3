//! Calls that fail, by the library of `scripts/inject_faults`, and Ctrl-C before a model is loaded.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Runs of the program in which call number 1, 2, ... of a kind fails, until there are no more,
/// with their numbers; none, with the reason printed, without a compiler.
fn with_failing(folder: &Folder, call: &str, error: i32) -> Vec<(u32, Output)> {
    let (library, hit) = (folder.path("fault.so"), folder.path("hit"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/inject_faults.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-w", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).arg("-ldl");
    if !cfg!(target_os = "linux") || !compiler.status().is_ok_and(|status| status.success()) {
        println!("skipped: this needs Linux and a C compiler");
        return Vec::new();
    }
    let run = |n: u32| {
        let _ = fs::remove_file(&hit);
        let words = ["run", "-m", "story.gguf", "-p", "Once", "-n", "4", "-t", "2"];
        let mut command = folder.command(&words);
        command.env("LD_PRELOAD", &library).env("FAULT_HIT", &hit).env("RUST_BACKTRACE", "1");
        command.env("FAULT_CALL", call).env("FAULT_N", n.to_string());
        let output = command.env("FAULT_ERRNO", error.to_string()).output().unwrap();
        hit.exists().then_some((n, output))
    };
    (1..30).map_while(run).collect()
}

#[test]
fn a_system_without_random_numbers_still_generates() {
    let no_such_call = rustix::io::Errno::NOSYS.raw_os_error();
    for (n, output) in with_failing(&Folder::new(), "random", no_such_call) {
        assert!(output.status.success(), "{n}: {}", stderr(&output));
    }
}

/// The standard library panics where the stack of a thread for signals is refused.
#[test]
fn a_thread_without_memory_for_its_signals_is_out_of_memory() {
    let no_memory = rustix::io::Errno::NOMEM.raw_os_error();
    let ended = with_failing(&Folder::new(), "advise", no_memory);
    for (n, output) in &ended {
        let text = stderr(output);
        let expected = matches!(output.status.code(), Some(0 | 4)) && !text.contains("panicked");
        assert!(expected, "{n}: {:?} {text}", output.status);
    }
    let refused = |output: &Output| stderr(output).contains("memory to start another thread");
    assert!(ended.is_empty() || ended.iter().any(|(_, output)| refused(output)));
}

/// A model of hundreds of layers takes a while to repack, and a gigabyte takes a while to read.
#[test]
fn ctrl_c_ends_loading_at_once() {
    let folder = Folder::new();
    let spec = "256x300x256x4/2:Q8_0:silu";
    let made = ["bench", "--synthetic", spec, "-p", "1", "-n", "1", "-r", "1", "--probe-size", "1"];
    let made = folder.run(&[&made[..], &["--write", "deep.gguf"]].concat());
    assert!(folder.path("deep.gguf").exists(), "{}", stderr(&made));
    let run = ["run", "-m", "deep.gguf", "-p", "Once", "-n", "-1", "--repack-cache", "packs"];
    let bench = ["bench", "-m", "story.gguf", "-p", "1", "-n", "1", "-r", "1"];
    let bench = [&bench[..], &["--probe-size", "1024"]].concat();
    for (args, delay) in [(&run[..], 100), (&run, 200), (&run, 400), (&bench, 150), (&bench, 400)] {
        let child = folder.start(args);
        thread::sleep(Duration::from_millis(delay));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let pressed = Instant::now();
        let output = child.wait_with_output().unwrap();
        let took = pressed.elapsed();
        // By the signal itself, if it comes before the handlers are installed.
        let code = output.status.code();
        assert!(matches!(code, Some(130) | None), "{args:?} {delay}: {code:?} {}", stderr(&output));
        assert!(took < Duration::from_millis(600), "{args:?} {delay} ms: ended after {took:?}");
        assert_eq!(folder.parts(), [""; 0], "{delay}");
    }
}
