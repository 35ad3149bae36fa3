#![allow(unsafe_code, reason = "an environment variable is set")]
//! The `thermocline` command.

fn main() -> std::process::ExitCode {
    // A layer of Mesa asks a Wayland server which card is the default, to put it first, and where
    // there is no server two lines of complaint stand on standard error. The order here is our own.
    #[cfg(target_os = "linux")]
    // SAFETY: the only thread so far; nothing reads the environment at the same time.
    unsafe {
        std::env::set_var("NODEVICE_SELECT", "1");
    }
    thermocline::cli::main()
}
