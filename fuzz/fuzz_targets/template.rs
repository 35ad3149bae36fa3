//! Any text as a chat template: compiled or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|source: &str| {
    let _ = thermocline::chat::Template::compile(source);
});
