//! Reads files of PowerInfer's activation counts with some bytes changed, arbitrary bytes, and
//! files with arbitrary bytes as the pickle. Each read must return numbers or an error.
#![no_main]

mod archive;
mod made;

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use thermocline::gguf::Bytes;

/// A `torch.save` checkpoint of five numbers in a storage of class `class`, each `size` bytes.
fn file(class: &str, size: usize) -> Vec<u8> {
    let text =
        |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let pickle = [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        format!("ctorch\n{class}\n").into_bytes(),
        text("0"),
        text("cpu"),
        b"K\x05tQK\x00(K\x05t(K\x01t\x89ccollections\nOrderedDict\n)RtR.".to_vec(),
    ];
    archive::archive(&[("a/data.pkl", &pickle.concat()), ("a/data/0", &vec![1; 5 * size])])
}

static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let classes = [
        ("LongStorage", 8),
        ("IntStorage", 4),
        ("FloatStorage", 4),
        ("DoubleStorage", 8),
        ("HalfStorage", 2),
    ];
    classes.iter().map(|(class, size)| file(class, *size)).collect()
});

fn read(bytes: Vec<u8>) -> Option<Vec<f64>> {
    thermocline::convert::vector(Path::new("activation_0.pt"), &Bytes::from(bytes)).ok()
}

fuzz_target!(
    init: {
        for file in FILES.iter() {
            assert_eq!(read(file.clone()).map(|numbers| numbers.len()), Some(5), "an unchanged file must be readable");
        }
    },
    |bytes: &[u8]| {
        if let Some(file) = made::changed(&FILES, bytes) {
            let _ = read(file);
        }
        let _ = read(archive::archive(&[("a/data.pkl", bytes), ("a/data/0", &[1; 64])]));
    }
);
