//! README and the pages of `docs/`: every shell block runs, and every flag they name exists.
//!
//! A block of language `sh` runs as one script, in a folder per page that holds a small model under
//! the names the pages use (`FIXTURES`). A comment in the line above the fence, which Markdown
//! hides, is a directive for the block:
//!
//! - `<!-- not run: REASON -->`: the block does not run here;
//! - `<!-- test: env NAME=VALUE ... -->`: it runs with these variables, which make it fast enough;
//! - `<!-- test: prints -->`: its standard output is the `text` block that follows.
//!
//! docs/measurements is not tested: its commands take hours and need models of gigabytes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Names of files that commands in the documentation use, and their contents.
#[cfg(unix)]
const FIXTURES: &str = "model.gguf and instruct.gguf: the built-in model; text.txt: a part of its held-out text; HF_DIR: a tiny checkpoint; config.json: the shape of a model of 1.2 billion parameters";

/// Flags of other programs that the pages name.
const FOREIGN_FLAGS: &[&str] = &[
    "--build",
    "--example",
    "--git",
    "--gpus",
    "--install",
    "--local-dir",
    "--locked",
    "--no-default-features",
    "--now",
    "--release",
    "--target",
    "--twice",
    "--workspace",
];

#[derive(Debug)]
struct Block {
    page: String,
    /// Line of the fence, from 1.
    line: usize,
    language: String,
    text: String,
    directive: Option<String>,
}

impl Block {
    /// The directive without `prefix`; `None` for another directive.
    fn after(&self, prefix: &str) -> Option<&str> {
        self.directive.as_deref()?.strip_prefix(prefix).map(str::trim)
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// README and the pages for users, by path from the root.
fn pages() -> Vec<(String, String)> {
    let mut pages = vec!["README.md".to_owned()];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.sort();
    let read = |path: String| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path, text)
    };
    pages.into_iter().map(read).collect()
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open: Option<Block> = None;
    let mut above = "";
    for (i, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                let comment = above.strip_prefix("<!-- ").and_then(|c| c.strip_suffix(" -->"));
                open = Some(Block {
                    page: page.to_owned(),
                    line: i + 1,
                    language: language.to_owned(),
                    text: String::new(),
                    directive: comment.map(str::to_owned),
                });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => block.text += &format!("{line}\n"),
            (None, None) => (),
        }
        above = line;
    }
    assert!(open.is_none(), "{page}: a block is not closed");
    found
}

/// Problems of the blocks of a page, as lines.
fn faults(page: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for block in blocks(page, text) {
        let at = format!("{}:{}", block.page, block.line);
        if !["sh", "text", "rust"].contains(&block.language.as_str()) {
            faults.push(format!(
                "{at}: a block of language {:?}: use sh, text or rust",
                block.language
            ));
        }
        let Some(directive) = &block.directive else { continue };
        let known = block.after("not run:").is_some_and(|reason| reason.len() >= 10)
            || block.after("test: env ").is_some()
            || directive == "test: prints";
        if !known || block.language != "sh" {
            faults.push(format!("{at}: `{directive}` is not a directive of tests/docs.rs"));
        }
    }
    for (i, line) in text.lines().enumerate() {
        let command = ["    thermocline ", "    target/", "    cargo "];
        if command.iter().any(|start| line.starts_with(start)) {
            faults.push(format!(
                "{page}:{}: a command in an indented block never runs: fence it as sh",
                i + 1
            ));
        }
    }
    faults
}

#[test]
fn commands_are_in_runnable_blocks() {
    let faults: Vec<String> = pages().iter().flat_map(|(page, text)| faults(page, text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let bad = [
        ("```\nx\n```", "language"),
        ("<!-- not run: no -->\n```sh\nx\n```", "not a directive"),
        ("<!-- test: prints -->\n```text\nx\n```", "not a directive"),
        ("    thermocline info", "indented"),
    ];
    for (text, says) in bad {
        assert!(faults_of(text).contains(says), "{text}");
    }
    assert_eq!(faults_of("<!-- not run: needs a GPU -->\n```sh\nx\n```"), "");
}

fn faults_of(text: &str) -> String {
    faults("a.md", text).join("\n")
}

/// Adds every Markdown file below `folder` to `found`.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            documents(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Documents outside of `docs/` whose links must resolve too.
const OTHER_DOCUMENTS: [&str; 7] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "scripts/README.md",
    "assets/README.md",
    "assets/NOTICES.md",
];

#[test]
fn links_resolve_and_the_index_is_complete() {
    let mut files = vec![];
    documents(&root().join("docs"), &mut files);
    let n_pages = files.len();
    files.extend(OTHER_DOCUMENTS.map(|name| root().join(name)));
    let mut linked = BTreeSet::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("http")) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = file.parent().unwrap();
            let aim = if path.is_empty() { file.clone() } else { folder.join(path) };
            assert!(aim.exists(), "{}: the link {target} leads nowhere", file.display());
            if !heading.is_empty() {
                let wanted = heading.replace('-', " ");
                // An anchor has the heading's letters, digits and hyphens.
                let anchored = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
                let has = |line: &str| {
                    let heading = line.trim_start_matches('#').trim().to_lowercase();
                    heading.chars().filter(anchored).collect::<String>().replace('-', " ") == wanted
                };
                let aimed = fs::read_to_string(&aim).unwrap();
                let found = aimed.lines().any(|line| line.starts_with('#') && has(line));
                assert!(found, "{}: {target} has no such heading", file.display());
            }
            if file.ends_with("docs/README.md") {
                linked.insert(aim.canonicalize().unwrap());
            }
        }
    }
    let index = files[..n_pages].iter().filter(|file| !file.ends_with("docs/README.md"));
    let folders = |file: &&PathBuf| !file.starts_with(root().join("docs/measurements"));
    for file in index.filter(folders) {
        let there = linked.contains(&file.canonicalize().unwrap());
        assert!(there, "docs/README.md has no link to {}", file.display());
    }
}

#[test]
fn the_code_of_the_library_page_is_that_of_an_example() {
    let page = fs::read_to_string(root().join("docs/library.md")).unwrap();
    let example = fs::read_to_string(root().join("examples/generate.rs")).unwrap();
    let known: BTreeSet<&str> = example.lines().map(str::trim).collect();
    let code = blocks("docs/library.md", &page).into_iter().find(|block| block.language == "rust");
    for line in code.expect("a block of Rust").text.lines().map(str::trim) {
        assert!(known.contains(line), "examples/generate.rs has no line `{line}`");
    }
}

/// Adds the text of every source file below `folder` to `all`, with lines joined as the compiler
/// joins those of a string that is continued.
fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(path).unwrap();
            let mut lines = text.split("\\\n");
            all.push_str(lines.next().unwrap_or_default());
            lines.for_each(|line| all.push_str(line.trim_start()));
        }
    }
}

#[test]
fn messages_of_the_troubleshooting_page_exist() {
    let mut all = String::new();
    sources(&root().join("src"), &mut all);
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let mut n_found = 0;
    for row in rows {
        // Every second part is between backquotes.
        for message in row.split('`').step_by(2) {
            // Between two messages stands what varies, and words of the table.
            if message.contains("...") || message.trim().len() < 8 {
                continue;
            }
            assert!(all.contains(message.trim_end()), "no source has the message `{message}`");
            n_found += 1;
        }
    }
    assert!(n_found >= 10, "only {n_found} messages were found");
}

fn flags(text: &str) -> BTreeSet<String> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("--") {
        let starts = at == 0 || !text[..at].ends_with(part);
        let rest: String = text[at..].chars().take_while(|c| part(*c)).collect();
        if starts && rest.as_bytes().get(2).is_some_and(u8::is_ascii_lowercase) {
            found.insert(rest);
        }
    }
    found
}

#[test]
fn flags_of_the_pages_exist() {
    let help = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_thermocline"));
        let output = command.env_clear().args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let top = help(&["--help"]);
    let list = top.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let commands: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run") && commands.contains(&"bench"), "{commands:?}");
    let mut known: BTreeSet<String> = FOREIGN_FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
    known.extend(flags(&top));
    for command in commands.into_iter().filter(|name| *name != "help") {
        known.extend(flags(&help(&[command, "--help"])));
    }
    let mut lost = Vec::new();
    // The page on llama.cpp names flags that are refused, and has a test of its own.
    for (page, text) in pages().into_iter().filter(|(page, _)| page != "docs/llama-cpp.md") {
        lost.extend(flags(&text).difference(&known).map(|flag| format!("{page}: {flag}")));
    }
    assert!(lost.is_empty(), "flags that no --help has:\n{}", lost.join("\n"));
}

#[cfg(unix)]
mod run {
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use thermocline::embedded;

    use super::{Block, FIXTURES, Path, PathBuf, blocks, fs, pages, root};
    use crate::convert::make;

    /// Stands in for `cargo run` and `cargo build` in README, without building the program a second
    /// time.
    const CARGO: &str = "#!/bin/sh
case \"$1 $2\" in
'run --release') shift 2; exec thermocline \"$@\" ;;
'build --release') exit 0 ;;
*) echo \"this cargo only runs and builds\" >&2; exit 1 ;;
esac
";

    /// `config.json` of a published shape, for `plan --shape`: small, so that it fits any machine.
    const SHAPE: &str = r#"{
"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
"max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 16,
"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "vocab_size": 128256
}"#;

    fn folder(at: &Path) -> PathBuf {
        let folder = at.join("work");
        fs::create_dir(&folder).unwrap();
        for name in ["model.gguf", "instruct.gguf"] {
            fs::write(folder.join(name), embedded::BYTES).unwrap();
        }
        fs::write(folder.join("config.json"), SHAPE).unwrap();
        let text = fs::read_to_string(root().join("assets/reference/eval.txt")).unwrap();
        fs::write(folder.join("text.txt"), text.chars().take(20_000).collect::<String>()).unwrap();
        let weights = make::safetensors(&make::weights());
        let checkpoint = make::folder(at, &make::config(), "model.safetensors", &weights);
        fs::rename(checkpoint, folder.join("HF_DIR")).unwrap();
        folder
    }

    /// A folder with `thermocline` and a stand-in for `cargo`, for the beginning of PATH.
    fn programs(at: &Path) -> PathBuf {
        let bin = at.join("bin");
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_thermocline"), bin.join("thermocline"))
            .unwrap();
        fs::write(bin.join("cargo"), CARGO).unwrap();
        fs::set_permissions(bin.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
        bin
    }

    /// Runs a block; returns its standard output.
    fn run(block: &Block, home: &Path, folder: &Path, bin: &Path) -> String {
        let mut command = Command::new("bash");
        command.args(["-e", "-u", "-o", "pipefail", "-c", &block.text]);
        command.env_clear().current_dir(folder).stdin(Stdio::null());
        command
            .env("HOME", home)
            .env("THERMOCLINE_ARG_PROBE_SIZE", "16")
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
        for setting in block.after("test: env ").unwrap_or_default().split_whitespace() {
            let (name, value) = setting.split_once('=').expect("NAME=VALUE");
            command.env(name, value);
        }
        let begin = Instant::now();
        let output = command.output().unwrap();
        println!("{}:{}: {:.1} s", block.page, block.line, begin.elapsed().as_secs_f64());
        assert!(
            output.status.success(),
            "{}:{}: {} (the folder has {FIXTURES})\n{}\n{}",
            block.page,
            block.line,
            output.status,
            block.text,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn every_command_of_the_pages_runs() {
        let mut n_run = 0;
        for (page, text) in pages() {
            let scratch = tempfile::tempdir().unwrap();
            let (folder, bin) = (folder(scratch.path()), programs(scratch.path()));
            let blocks = blocks(&page, &text);
            for (i, block) in blocks.iter().enumerate().filter(|(_, block)| block.language == "sh")
            {
                if let Some(reason) = block.after("not run:") {
                    println!("{page}:{}: not run: {reason}", block.line);
                    continue;
                }
                let printed = run(block, scratch.path(), &folder, &bin);
                n_run += 1;
                if block.after("test: prints").is_some() {
                    let expected = blocks.get(i + 1).filter(|next| next.language == "text");
                    let expected = &expected.expect("a text block with the output").text;
                    assert_eq!(printed.trim(), expected.trim(), "{page}:{}", block.line);
                }
            }
        }
        assert!(n_run >= 10, "only {n_run} blocks were found");
    }
}
