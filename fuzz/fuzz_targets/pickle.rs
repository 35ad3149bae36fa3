//! Reads arbitrary bytes as a PyTorch checkpoint, and as the pickle of a checkpoint: each read must
//! succeed or return an error.
#![no_main]

mod archive;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = thermocline::convert::tensors("x.bin", bytes.to_vec());
    let _ = thermocline::convert::tensors(
        "x.bin",
        archive::archive(&[("a/data.pkl", bytes), ("a/data/0", &[1; 64])]),
    );
});
