//! Compiles arbitrary text as a chat template: the compilation must succeed or return an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|source: &str| {
    let _ = thermocline::chat::Template::compile(source);
});
