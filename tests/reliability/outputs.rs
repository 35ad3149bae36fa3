//! What outputs may replace: regular files that the run does not read.

use std::os::unix::fs::{FileTypeExt, symlink};

use super::*;

const TEXT: &str = "One day a cat saw a big red ball. ";

/// Commands that write `OUT`, with the model `MODEL`.
const WRITERS: [&[&str]; 11] = [
    &["quantize", "MODEL", "OUT", "q8_0", "--force"],
    &["merge", "MODEL", "OUT", "--force"],
    &["run", "-m", "MODEL", "-n", "1", "--trace", "OUT"],
    &["bench", "-m", "MODEL", "-p", "1", "-n", "1", "-r", "1", "--plot", "OUT"],
    &["plan", "-m", "MODEL", "--svg", "OUT"],
    &["profile", "-m", "MODEL", "--tokens", "64", "--plot", "OUT"],
    &["perplexity", "-m", "MODEL", "-f", "text", "-c", "32", "--kl-divergence-base", "OUT"],
    &["imatrix", "-m", "MODEL", "-f", "text", "-c", "32", "-o", "OUT"],
    &["imatrix", "-m", "MODEL", "-f", "text", "-c", "32", "-o", "OUT", "--output-format", "dat"],
    &["profile", "-m", "MODEL", "--tokens", "64", "--out", "OUT"],
    &["run", "-m", "MODEL", "-n", "1", "--log-file", "OUT"],
];

fn words<'a>(line: &[&'a str], model: &'a str, output: &'a str) -> Vec<&'a str> {
    let word = |word: &&'a str| match *word {
        "MODEL" => model,
        "OUT" => output,
        word => word,
    };
    line.iter().map(word).collect()
}

fn folder() -> Folder {
    let folder = Folder::new();
    fs::write(folder.path("text"), TEXT.repeat(40)).unwrap();
    folder
}

#[test]
fn the_model_of_a_run_stays() {
    let folder = folder();
    let model = folder.path("story.gguf");
    symlink(&model, folder.path("soft")).unwrap();
    fs::hard_link(&model, folder.path("hard")).unwrap();
    // Also if another name than `-m` leads to it, such as a part of a split model.
    for line in WRITERS {
        for output in ["story.gguf", "soft", "hard"] {
            let ran = folder.run(&words(line, "story.gguf", output));
            let text = stderr(&ran);
            assert!(matches!(ran.status.code(), Some(1 | 2)), "{line:?} {output}: {text}");
            assert!(text.contains("error: "), "{line:?} {output}: {text}");
            assert!(fs::read(&model).unwrap() == embedded::BYTES, "{line:?} {output}");
            assert!(gguf::is_same_file(&model, &folder.path(output)), "{line:?} {output}");
        }
    }
    let ran = folder.run(&words(WRITERS[2], "story.gguf", "hard"));
    assert!(stderr(&ran).contains("both names lead to one file"), "{}", stderr(&ran));
    assert_eq!(folder.parts(), [""; 0]);
}

#[test]
fn the_text_of_a_run_and_parts_of_its_model_stay() {
    let folder = folder();
    let text = fs::read(folder.path("text")).unwrap();
    for line in [WRITERS[6], WRITERS[7]] {
        let ran = folder.run(&words(line, "story.gguf", "text"));
        assert_eq!(ran.status.code(), Some(2), "{}", stderr(&ran));
        assert!(fs::read(folder.path("text")).unwrap() == text);
    }
    let split = ["split", "story.gguf", "part", "--split-max-size", "1M"];
    assert!(folder.run(&split).status.success());
    let first = fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut parts: Vec<String> = first.map(|name| name.into_string().unwrap()).collect();
    parts.retain(|name| name.starts_with("part-"));
    parts.sort();
    let before = fs::read(folder.path(&parts[1])).unwrap();
    for line in &WRITERS[..10] {
        let ran = folder.run(&words(line, &parts[0], &parts[1]));
        assert!(!ran.status.success(), "{line:?}");
        assert!(fs::read(folder.path(&parts[1])).unwrap() == before, "{line:?}");
    }
}

#[test]
fn pipes_sockets_and_folders_stay() {
    let folder = folder();
    let made = std::process::Command::new("mkfifo").arg(folder.path("pipe")).status();
    assert!(made.unwrap().success());
    let _listener = std::os::unix::net::UnixListener::bind(folder.path("socket")).unwrap();
    fs::create_dir(folder.path("folder")).unwrap();
    for line in [0, 1, 6, 7, 8, 9].map(|i| WRITERS[i]) {
        for output in ["pipe", "socket", "folder"] {
            let ran = folder.run(&words(line, "story.gguf", output));
            assert!(
                matches!(ran.status.code(), Some(1 | 2)),
                "{line:?} {output}: {}",
                stderr(&ran)
            );
        }
    }
    let kind = |name: &str| fs::symlink_metadata(folder.path(name)).unwrap().file_type();
    assert!(kind("pipe").is_fifo() && kind("socket").is_socket() && kind("folder").is_dir());
    assert_eq!(folder.parts(), [""; 0]);
}
