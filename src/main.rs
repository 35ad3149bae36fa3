#![allow(unsafe_code, reason = "set_var is unsafe")]
//! The `thermocline` command.

#[global_allocator]
static ALLOCATOR: thermocline::cli::Allocator = thermocline::cli::Allocator;

fn main() -> std::process::ExitCode {
    // Mesa's device-select layer asks the Wayland server for the default GPU and prints two warnings
    // if no server runs. Thermocline orders the GPUs itself, so this variable disables the layer.
    #[cfg(target_os = "linux")]
    // SAFETY: no other thread has started, so nothing reads the environment at the same time.
    unsafe {
        std::env::set_var("NODEVICE_SELECT", "1");
    }
    thermocline::cli::main()
}
