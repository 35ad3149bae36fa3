//! What to write instead of an unknown command or flag.

use super::failure::Failure;
use super::foreign::{FOREIGN_COMMANDS, FOREIGN_FLAGS, OTHER_FLAGS, UNSUPPORTED};
use super::llama;
use super::words::{self, Table};
use clap::Command;

/// Order in which a message lists the commands that have a flag.
const COMMAND_ORDER: [&str; 6] = ["run", "chat", "serve", "bench", "perplexity", "quantize"];

/// How many of them it names.
const MAX_OWNERS: usize = 4;

/// The failure of a word that is not a command.
pub(super) fn unknown_command(cli: &Command, word: &str) -> Failure {
    let failure = Failure::usage(format!("unknown command '{word}'"));
    if let Some((_, help)) = FOREIGN_COMMANDS.iter().find(|(names, _)| names.contains(&word)) {
        return failure.help(*help);
    }
    match nearest(word, commands(cli)) {
        Some(command) => failure.help(format!("did you mean `thermocline {command}`?")),
        None => failure.help(
            "`thermocline --help` lists the commands; a model is a GGUF file or USER/REPO on Hugging Face, a prompt with spaces needs quotes",
        ),
    }
}

/// Whether a word is a command of a similar program.
pub(super) fn is_foreign_command(word: &str) -> bool {
    FOREIGN_COMMANDS.iter().any(|(names, _)| names.contains(&word))
}

/// Whether a word is close to a command's name, or a command of a similar program.
pub(super) fn resembles_command(cli: &Command, word: &str) -> bool {
    nearest(word, commands(cli)).is_some()
        || FOREIGN_COMMANDS.iter().any(|(names, _)| names[0] == word && names[0].contains('-'))
}

fn commands(cli: &Command) -> impl Iterator<Item = &str> {
    cli.get_subcommands().map(Command::get_name)
}

/// The failure of a flag that `command` does not have.
pub(super) fn unknown_flag(cli: &Command, command: &str, flag: &str) -> Failure {
    let regular = flag.replace('_', "-");
    let mut foreign = FOREIGN_FLAGS.iter();
    let is_given = |names: &[&str]| names.contains(&regular.as_str());
    if let Some((.., why)) = foreign.find(|(of, names, _)| *of == command && is_given(names)) {
        return Failure::usage(format!("{flag}: {why}"));
    }
    if let Some((_, why)) = UNSUPPORTED.iter().find(|(names, _)| is_given(names)) {
        return Failure::usage(format!("{flag}: {why}"));
    }
    let failure = Failure::usage(format!("unknown flag '{flag}'"));
    let owners = owners(cli, &regular);
    if let [first, ..] = owners[..] {
        let (shown, others) = owners.split_at(owners.len().min(MAX_OWNERS));
        let names: Vec<String> = shown.iter().map(|name| format!("`thermocline {name}`")).collect();
        let more = match others.len() {
            0 => String::new(),
            n => format!(" and {n} more commands"),
        };
        let help = match first {
            "serve" => format!(
                "it is a flag of the HTTP server: thermocline serve -m model.gguf {flag}; see `thermocline serve --help`"
            ),
            _ => format!("it is a flag of {}{more}, not of `{command}`", names.join(", ")),
        };
        return failure.help(help);
    }
    if let Some((_, help)) = OTHER_FLAGS.iter().find(|(names, _)| is_given(names)) {
        return failure.help(*help);
    }
    if llama::find(&regular).is_some() {
        return failure.help(format!("llama.cpp has this flag, but `{command}` does not"));
    }
    let own = cli.find_subcommand(command).into_iter();
    let own = own.flat_map(Command::get_arguments).flat_map(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases)
    });
    let mut own: Vec<String> = own.map(|long| format!("--{long}")).collect();
    own.extend(words::short_names(|long| own.contains(&format!("--{long}"))));
    let known = if llama::applies_to(command.as_ref()) { llama::names() } else { Vec::new() };
    let names = || own.iter().map(String::as_str).chain(["--version", "--help"]);
    let found = nearest(&regular, names()).or_else(|| begun(&regular, names()));
    match found.or_else(|| nearest(&regular, known)) {
        Some(name) => failure.help(format!("did you mean {name}?")),
        None => failure.help(format!("see `thermocline {command} --help`")),
    }
}

/// The commands that have the flag, the most used first.
fn owners<'a>(cli: &'a Command, flag: &str) -> Vec<&'a str> {
    let has = |name: &&str| {
        let command = cli.find_subcommand(name).into_iter().collect();
        let table = Table { commands: command, llama: false };
        let positive = flag.strip_prefix("--no-").map(|name| format!("--{name}"));
        table.find_own_flag(flag).is_some()
            || positive.is_some_and(|flag| table.find_own_flag(&flag).is_some())
    };
    let rank = |name: &&str| COMMAND_ORDER.iter().position(|known| known == name);
    let mut owners: Vec<&str> = commands(cli).filter(has).collect();
    owners.sort_by_key(|name| rank(name).unwrap_or(COMMAND_ORDER.len()));
    owners
}

/// The shortest name that begins with `word`.
fn begun<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names.filter(|name| word.len() > 3 && name.starts_with(word)).min_by_key(|name| name.len())
}

/// The name that needs the fewest edits to become `word`, if they are few.
pub(super) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = |text: &str| text.trim_start_matches('-').chars().count();
    // A third of the letters may be wrong, but never all of a short word.
    let allowed = (length(word) / 3).max(1);
    let close = |name: &&str| {
        let edits = edits(word, name);
        (edits <= allowed && edits < length(name)).then_some(edits)
    };
    let names = names.into_iter().filter_map(|name| close(&name).map(|edits| (edits, name)));
    names.min_by_key(|(edits, _)| *edits).map(|(_, name)| name)
}

/// The number of letters to insert, remove, replace or swap with their neighbour.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::super::args::Cli;
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn edits_count_letters() {
        assert_eq!(edits("chta", "chat"), 1);
        assert_eq!(edits("", "run"), 3);
        assert_eq!(edits("sitting", "kitten"), 3);
        assert_eq!(nearest("xyzzy", ["chat", "run"]), None);
        assert_eq!(nearest("a", ["b"]), None, "a replaced single letter is another word");
    }

    #[test]
    fn commands_of_other_programs_have_a_sentence() {
        let help = |word: &str| unknown_command(&Cli::command(), word).help.unwrap();
        let cases = [
            ("llama-server", "`thermocline serve`"),
            ("get", "`thermocline pull USER/REPO`"),
            ("inspect", "`thermocline info`"),
            ("version", "--version"),
            ("ps", "only while a command runs"),
            ("chta", "did you mean `thermocline chat`?"),
            ("quantizee", "did you mean `thermocline quantize`?"),
            ("zzzzzz", "`thermocline --help`"),
        ];
        for (word, says) in cases {
            assert!(help(word).contains(says), "{word}: {}", help(word));
        }
        let cli = Cli::command();
        for (names, _) in FOREIGN_COMMANDS {
            for name in names {
                assert!(cli.find_subcommand(name).is_none(), "{name} is a command now");
            }
        }
    }

    #[test]
    fn unknown_flags_name_the_command_that_has_them_or_a_similar_flag() {
        let help =
            |command: &str, flag: &str| unknown_flag(&Cli::command(), command, flag).help.unwrap();
        let cases = [
            ("run", "--port", "thermocline serve -m model.gguf --port"),
            ("run", "--no-webui", "thermocline serve"),
            ("run", "--chunks", "`thermocline perplexity`"),
            ("bench", "-cnv", "`thermocline run`, `thermocline chat`"),
            ("quantize", "--control-vector", "llama.cpp has this flag"),
            ("run", "--verion", "did you mean --version?"),
            ("run", "--top_kk", "did you mean --top-k?"),
            ("run", "--tempreture", "did you mean --temperature?"),
            ("run", "--n-predct", "did you mean --n-predict?"),
            ("run", "-nlg", "did you mean -ngl?"),
            ("run", "--context", "did you mean --context-shift?"),
            ("run", "--no-such-flag", "see `thermocline run --help`"),
            ("run", "--gpulayers", "write -ngl N"),
            ("serve", "--max_model_len", "write -c N"),
            ("pull", "--local-dir", "HF_HUB_CACHE"),
        ];
        for (command, flag, says) in cases {
            let found = help(command, flag);
            assert!(found.contains(says), "{flag}: {found}");
        }
    }
}
