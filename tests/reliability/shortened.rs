//! A mapped file that another process shortens or overwrites: exit code 3 and a message, not a bare
//! signal or an output of mixed bytes.

use std::io::Read;
use std::os::unix::fs::FileExt;

use super::*;

#[track_caller]
fn check(folder: &Folder, output: &Output, file: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(3), "{:?} {text}", output.status);
    let error = "the file was shortened or cannot be read while in use";
    let line = text.lines().find(|line| line.contains(error));
    assert!(line.is_some_and(|line| line.contains(file)), "{text}");
    assert!(text.lines().any(|line| line.starts_with("help: ")), "{text}");
    assert_eq!(folder.parts(), [""; 0]);
}

/// Starts a long text and waits for its first byte.
fn start_text(folder: &Folder, more: &[&str]) -> Child {
    let args = ["run", "-p", "Once", "-n", "100000", "--ignore-eos", "-t", "2", "-c", "256"];
    let mut child =
        folder.start(&[&args[..], &["-m", "story.gguf", "--context-shift"], more].concat());
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

#[test]
fn during_a_run() {
    let folder = Folder::new();
    let child = start_text(&folder, &["--no-repack"]);
    shorten(&folder.path("story.gguf"));
    check(&folder, &child.wait_with_output().unwrap(), "story.gguf");
}

#[test]
fn a_repack_cache_during_a_run() {
    let folder = Folder::new();
    let cache = ["--repack-cache", "cache"];
    let first = ["run", "-p", "Once", "-n", "1", "-m", "story.gguf"];
    assert!(folder.run(&[&first[..], &cache].concat()).status.success());
    let child = start_text(&folder, &cache);
    let file = fs::read_dir(folder.path("cache")).unwrap().next().unwrap().unwrap().path();
    shorten(&file);
    check(&folder, &child.wait_with_output().unwrap(), "cache");
}

#[test]
fn during_quantize_and_merge_whose_outputs_are_removed() {
    let folder = Folder::new();
    let model = folder.path("story.gguf");
    for args in [
        &["quantize", "story.gguf", "out.gguf", "q4_k_m"][..],
        &["merge", "story.gguf", "out.gguf"],
    ] {
        // The process may be done before the file is shortened.
        let mut tries = 0..20;
        let output = loop {
            fs::write(&model, embedded::BYTES).unwrap();
            let _ = fs::remove_file(folder.path("out.gguf"));
            let mut child = folder.start(args);
            wait_until("an output is begun", || {
                !folder.parts().is_empty() || child.try_wait().unwrap().is_some()
            });
            shorten(&model);
            let output = child.wait_with_output().unwrap();
            if !output.status.success() || tries.next().is_none() {
                break output;
            }
        };
        check(&folder, &output, "story.gguf");
        assert!(!folder.path("out.gguf").exists());
    }
}

/// Changes the last byte of a file in place.
fn overwrite(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[1], file.metadata().unwrap().len() - 1).unwrap();
}

/// The result of `merge` for a file with a large tensor, to which `change` is done meanwhile.
fn merge_while(folder: &Folder, change: fn(&Path)) -> Output {
    let model = folder.path("large.gguf");
    let make = || {
        let mut writer = gguf::Writer::new(gguf::Container::Gguf);
        writer.set("general.architecture", gguf::Value::from("llama")).unwrap();
        writer.declare("w", &[1 << 24], gguf::TensorType::F32).unwrap();
        let mut data = writer.create(&model).unwrap();
        data.write("w", &vec![0; 64 << 20]).unwrap();
        data.finish().unwrap();
    };
    let mut tries = 0..20;
    loop {
        make();
        let _ = fs::remove_file(folder.path("out.gguf"));
        let mut child = folder.start(&["merge", "large.gguf", "out.gguf"]);
        wait_until("an output is begun", || {
            !folder.parts().is_empty() || child.try_wait().unwrap().is_some()
        });
        change(&model);
        let output = child.wait_with_output().unwrap();
        if !output.status.success() || tries.next().is_none() {
            break output;
        }
    }
}

/// The system itself reads the mapping for a large write: an error of the call, not a signal.
#[test]
fn during_the_copy_of_a_large_tensor() {
    let folder = Folder::new();
    let output = merge_while(&folder, shorten);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("the file was shortened or cannot be read while in use"), "{text}");
    assert_eq!(folder.parts(), [""; 0]);
}

#[test]
fn a_file_that_is_overwritten_while_it_is_copied() {
    let folder = Folder::new();
    let output = merge_while(&folder, overwrite);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("large.gguf: the file was written to while in use"), "{text}");
    assert!(text.contains("help: start again"), "{text}");
    assert_eq!(folder.parts(), [""; 0]);
    assert!(!folder.path("out.gguf").exists());
}

#[test]
fn a_signal_from_another_process_still_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let folder = Folder::new();
    let child = start_text(&folder, &[]);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::BUS).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(7 + 3 * i32::from(cfg!(target_os = "macos"))));
}
