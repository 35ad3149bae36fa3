//! `-h`: the most used flags of a command on one screen. `--help` has all of them.

use clap::Command;

/// The flags of `run` and `chat`, the most used first.
const TEXT: &[&str] = &[
    "model",
    "hf-repo",
    "prompt",
    "file",
    "predict",
    "ctx-size",
    "system-prompt",
    "conversation",
    "single-turn",
    "chat-template",
    "reasoning",
    "temp",
    "top-k",
    "top-p",
    "min-p",
    "repeat-penalty",
    "seed",
    "reverse-prompt",
    "json-schema",
    "threads",
    "n-gpu-layers",
    "vram-budget",
    "ram-budget",
    "device",
    "sparsity",
    "json",
    "verbose",
];

const SERVE: &[&str] = &[
    "model",
    "hf-repo",
    "host",
    "port",
    "parallel",
    "ctx-size",
    "predict",
    "api-key",
    "alias",
    "chat-template",
    "reasoning",
    "cors-origins",
    "embeddings",
    "reranking",
    "metrics",
    "webui",
    "temp",
    "threads",
    "n-gpu-layers",
    "vram-budget",
    "ram-budget",
    "device",
    "sparsity",
    "verbose",
];

const BENCH: &[&str] = &[
    "model",
    "hf-repo",
    "n-prompt",
    "n-gen",
    "pg",
    "n-depth",
    "repetitions",
    "threads",
    "n-gpu-layers",
    "vram-budget",
    "backend",
    "batch-size",
    "ubatch-size",
    "cache-type-k",
    "cache-type-v",
    "parallel",
    "mmap",
    "no-kv-offload",
    "synthetic",
    "sparsity",
    "check",
    "plot",
    "output",
    "progress",
];

const EMBED: &[&str] = &[
    "model",
    "hf-repo",
    "prompt",
    "file",
    "pooling",
    "embd-normalize",
    "embd-output-format",
    "embd-separator",
    "cls-separator",
    "ctx-size",
    "threads",
    "n-gpu-layers",
    "vram-budget",
    "device",
    "verbose",
];

/// The flags of the other commands that run a model.
const MODEL: &[&str] = &[
    "model",
    "hf-repo",
    "file",
    "prompt",
    "chunks",
    "output",
    "in-file",
    "process-output",
    "against",
    "kl-divergence",
    "kl-divergence-base",
    "tokens",
    "kind",
    "rank",
    "import",
    "out",
    "plot",
    "compare",
    "restart",
    "shape",
    "assume",
    "svg",
    "json",
    "ctx-size",
    "threads",
    "n-gpu-layers",
    "vram-budget",
    "ram-budget",
    "device",
    "sparsity",
    "verbose",
];

/// The flags that `-h` lists; `None` for all of them.
fn listed(command: &str) -> Option<&'static [&'static str]> {
    match command {
        "run" | "chat" => Some(TEXT),
        "serve" => Some(SERVE),
        "bench" => Some(BENCH),
        "embed" => Some(EMBED),
        "perplexity" | "imatrix" | "predictor" | "profile" | "plan" => Some(MODEL),
        _ => None,
    }
}

/// `cli` with a short `-h`: one line per flag, without environment variables and lists of values.
pub(super) fn short_help(cli: Command) -> Command {
    cli.mut_subcommands(|command| {
        let listed = listed(command.get_name());
        let footer = listed.map(|_| {
            format!(
                "`thermocline {} --help` lists all flags and explains them.",
                command.get_name()
            )
        });
        let command = command.mut_args(|arg| {
            let has_value = arg.get_action().takes_values();
            let arg = arg.hide_env(true).hide_possible_values(has_value);
            let Some(listed) = listed else { return arg };
            match listed.iter().position(|long| arg.get_long() == Some(long)) {
                Some(place) => arg.help_heading(None::<&str>).display_order(place),
                None => arg.hide_short_help(true),
            }
        });
        match footer {
            Some(footer) => command.after_help(footer),
            None => command,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::cli;
    use super::*;

    #[test]
    fn short_help_fits_a_screen_and_begins_with_the_model() {
        for command in short_help(cli()).get_subcommands_mut() {
            let name = command.get_name().to_owned();
            let text = command.render_help().to_string();
            assert!(text.lines().count() <= 40, "{name}: {}\n{text}", text.lines().count());
            assert!(!text.contains("THERMOCLINE_ARG_"), "{name}");
            let Some(listed) = listed(&name) else { continue };
            let first = text.lines().find(|line| line.trim_start().starts_with('-')).unwrap();
            assert!(first.contains("--model"), "{name}: {first}");
            assert!(text.contains("--help` lists all"), "{name}");
            if listed != MODEL {
                for long in listed {
                    assert!(text.contains(&format!("--{long}")), "{name}: {long}");
                }
            }
        }
    }

    #[test]
    fn short_help_has_a_line_for_each_flag() {
        for command in short_help(cli()).get_subcommands_mut() {
            for arg in command.get_arguments() {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() <= 80, "{} {}: {help}", command.get_name(), arg.get_id());
                assert!(!help.ends_with('.'), "{} {}: {help}", command.get_name(), arg.get_id());
            }
        }
    }
}
