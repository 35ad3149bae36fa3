//! Any bytes as one of PowerInfer's files of counts: numbers, or refused.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use thermocline::gguf::Bytes;

fuzz_target!(|bytes: &[u8]| {
    let _ = thermocline::convert::vector(Path::new("activation_0.pt"), &Bytes::from(bytes.to_vec()));
});
