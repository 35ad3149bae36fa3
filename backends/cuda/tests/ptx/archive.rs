//! The units of the archive that ships.

use std::io::Read as _;

use ruzstd::decoding::StreamingDecoder;

const MANIFEST: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels-cuda/ptx.manifest"));
const PACKED: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels-cuda/ptx.zst"));

/// The text of each unit, in the order of the manifest.
pub(crate) fn units() -> Vec<String> {
    let (mut found, mut begin, mut frame) = (Vec::new(), 0, &b""[..]);
    let mut bytes = Vec::new();
    let mut at = 0;
    for line in MANIFEST.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<usize>().expect("a size");
        match words[..] {
            ["file", _, size] => {
                frame = &PACKED[begin..begin + number(size)];
                begin += frame.len();
                bytes.clear();
                at = 0;
                let mut decoder = StreamingDecoder::new(frame).expect("a frame");
                decoder.read_to_end(&mut bytes).expect("an undamaged frame");
            }
            ["unit", _, _, size, ..] => {
                let text = &bytes[at..at + number(size)];
                at += text.len();
                found.push(String::from_utf8(text.to_vec()).expect("PTX is ASCII"));
            }
            _ => {}
        }
    }
    assert_eq!(begin, PACKED.len(), "the manifest names all of the archive");
    assert!(frame.len() > 1, "the manifest names units");
    found
}
