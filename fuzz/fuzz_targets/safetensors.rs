//! Reads arbitrary bytes as a safetensors file: the read must succeed or return an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = thermocline::convert::tensors("x.safetensors", bytes.to_vec());
});
