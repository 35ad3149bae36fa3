//! The files that are written: rows of any length, inputs that stay, parts that come all at once.

use std::fs;
use std::path::Path;

use hal::format::Format;
use thermocline::convert::{self, Limit};
use thermocline::gguf::{Container, File, TensorType, Writer};

use super::{going, quantization};

/// A file of tensors of F32, each value its own number.
fn file_of(path: &Path, tensors: &[(&str, &[u64])]) {
    let mut writer = Writer::new(Container::Gguf);
    writer.set("general.architecture", "llama").unwrap();
    for (name, shape) in tensors {
        writer.declare(name, shape, TensorType::F32).unwrap();
    }
    let mut data = writer.create(path).unwrap();
    for (name, shape) in tensors {
        let n = shape.iter().product::<u64>();
        let bytes: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
        data.write(name, &bytes).unwrap();
    }
    data.finish().unwrap();
}

#[test]
fn rows_of_any_length_are_copied() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    // A row of 12 MiB is longer than what is made at once; others have no bytes at all.
    let tensors: [(&str, &[u64]); 4] =
        [("long.weight", &[3 << 20, 2]), ("none", &[0]), ("rows.weight", &[0, 7]), ("last", &[3])];
    file_of(&path("in.gguf"), &tensors);
    convert::split(&path("in.gguf"), &path("part"), Limit::Tensors(2), false, &going).unwrap();
    convert::merge(&path("part-00001-of-00002.gguf"), &path("out.gguf"), false, &going).unwrap();
    assert!(fs::read(path("in.gguf")).unwrap() == fs::read(path("out.gguf")).unwrap());
    quantization(&path("in.gguf"), &path("small.gguf"), "Q8_0").run(&going).unwrap();
    let small = File::open(&path("small.gguf")).unwrap();
    let long = small.tensor("long.weight").unwrap();
    assert_eq!((long.ty, small.tensor("rows.weight").unwrap().n_bytes()), (TensorType::Q8_0, 0));
    let (n, mut last) = (Format::Q8_0.row_bytes(32).unwrap(), [0.0; 32]);
    let bytes = small.bytes(long).unwrap();
    Format::Q8_0.dequantize(&bytes[bytes.len() - n..], &mut last);
    assert!((last[31] - (6 << 20) as f32).abs() < (6 << 20) as f32 / 100.0, "{}", last[31]);
}
