//! The `thermocline` command.

fn main() -> std::process::ExitCode {
    thermocline::cli::main()
}
