//! Any bytes as a PyTorch checkpoint, and as the pickle inside of one: read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// An archive with one member, `a/data.pkl`.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let name = b"a/data.pkl";
    let len = (pickle.len() as u32).to_le_bytes();
    let sizes = [len, len].concat();
    let name_len = (name.len() as u16).to_le_bytes();
    let local = [b"PK\x03\x04", &[0; 14][..], &sizes, &name_len, &[0; 2], name, pickle].concat();
    let entry = [b"PK\x01\x02\0\0", &[0; 14][..], &sizes, &name_len, &[0; 16], name].concat();
    let (start, size) = ((local.len() as u32).to_le_bytes(), (entry.len() as u32).to_le_bytes());
    [&local[..], &entry, b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &size, &start, &[0; 2]].concat()
}

fuzz_target!(|bytes: &[u8]| {
    let _ = thermocline::convert::tensors("x.bin", bytes.to_vec());
    let _ = thermocline::convert::tensors("x.bin", archive(bytes));
});
