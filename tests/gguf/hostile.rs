//! A corpus of malformed files, each with text that its message must contain.

use super::small_bytes;
use thermocline::gguf::{Container, File, TensorType};

/// Bytes of a container, appended field by field without the writer.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(n_tensors: u64, n_entries: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(3).u64(n_tensors).u64(n_entries)
    }
    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }
    fn u32(self, number: u32) -> Raw {
        self.bytes(&number.to_le_bytes())
    }
    fn u64(self, number: u64) -> Raw {
        self.bytes(&number.to_le_bytes())
    }
    fn text(self, text: &[u8]) -> Raw {
        self.u64(text.len() as u64).bytes(text)
    }
    /// Appends a key and the type of its value; the caller appends the value.
    fn key(self, key: &str, ty: u32) -> Raw {
        self.text(key.as_bytes()).u32(ty)
    }
    fn tensor(self, name: &str, shape: &[u64], ty: u32, offset: u64) -> Raw {
        let named = self.text(name.as_bytes()).u32(shape.len() as u32);
        shape.iter().fold(named, |raw, &n| raw.u64(n)).u32(ty).u64(offset)
    }
    /// Pads to the data section and appends `n` bytes of it.
    fn data(mut self, n: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 1);
        self
    }
}

/// A file whose only value is arrays nested `depth` deep; the innermost is an empty array of u8.
fn nested(depth: usize) -> Raw {
    let outer = (1..depth).fold(Raw::new(0, 1).key("deep", 9), |raw, _| raw.u32(9).u64(1));
    outer.u32(0).u64(0)
}

#[track_caller]
fn check(raw: Raw, expected: &str) {
    let message = File::from_vec(raw.0, "bad.gguf").unwrap_err().to_string();
    assert!(message.starts_with("bad.gguf: "), "{message:?} does not name the file");
    assert!(message.contains(expected), "{message:?} lacks {expected:?}");
}

#[test]
fn other_files_are_recognised() {
    let cases: &[(&[u8], &str)] = &[
        (b"", "is empty (0 bytes)"),
        (b"Once upon a time", "text that begins with \"Once upon a time\""),
        (b"{\"model\": 1}", "JSON"),
        (b"GGU", "text that begins with \"GGU\""),
        (b"tjgg\x03\0\0\0", "`ggjt`"),
        (b"lmgg\0\0\0\0", "unversioned ggml"),
        (b"PK\x03\x04\0\0", "zip archive, perhaps a PyTorch checkpoint"),
        (b"\x80\x02}q\0", "Python pickle"),
        (b"\x10\0\0\0\0\0\0\0{\"a\":1}", "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (b"<!DOCTYPE html>", "web page"),
        (&[0; 100], "zeros"),
        (b"\x7fELF\x02\x01", "found a program"),
        (b"\x01\x02\xfe\xff\x02", "the bytes [01, 02, fe, ff]"),
    ];
    for (bytes, expected) in cases {
        check(Raw(bytes.to_vec()), expected);
    }
    check(Raw(b"Once".to_vec()), "expected the magic `GGUF` or `PWRI`, found text");
}

#[test]
fn other_versions_are_refused() {
    let header = |version: u32| Raw(b"GGUF".to_vec()).u32(version).u64(0).u64(0);
    check(header(1), "has GGUF version 1, expected 2 or 3; version 1 is from 2023");
    check(header(0), "has GGUF version 0");
    check(header(4), "has GGUF version 4, expected 2 or 3");
    check(header(3_u32.swap_bytes()), "is a big-endian GGUF file");
    for version in [2, 3] {
        assert_eq!(File::from_vec(header(version).0, "good").unwrap().version(), version);
    }
}

#[test]
fn counts_are_checked_against_the_file_size() {
    check(Raw::new(u64::MAX, 0), "the tensor table has a count of 18446744073709551615");
    check(
        Raw::new(0, u64::MAX),
        "the metadata has a count of 18446744073709551615, which needs at least 239807672958224170995 bytes, found 0",
    );
    check(
        Raw::new(1, 0),
        "the tensor table has a count of 1, which needs at least 32 bytes, found 8",
    );
    let array = |ty: u32, n: u64| Raw::new(0, 1).key("list", 9).u32(ty).u64(n).bytes(&[0; 16]);
    for (ty, size) in [(0, 1), (3, 2), (4, 4), (7, 1), (8, 8), (9, 12), (12, 8)] {
        let n = 16 / size + 1;
        let least = n * size;
        let expected = format!("has a count of {n}, which needs at least {least} bytes, found 16");
        check(array(ty, n), &expected);
        check(array(ty, u64::MAX), "key `list` has a count of 18446744073709551615");
    }
}

#[test]
fn bad_metadata_is_named() {
    let raw = || Raw::new(0, 1);
    check(
        raw().u64(1 << 20).bytes(&[0; 9]),
        "key number 0 has a name of 1048576 bytes, expected at most 65535",
    );
    check(
        raw().u64(60).bytes(&[b'k'; 9]),
        "truncated inside key number 0: expected at least 92 bytes, found 41",
    );
    check(raw().text(b"\xff\xfe").u32(0).u32(0), "key number 0 has a name that is not UTF-8");
    check(raw().key("odd", 13).u64(0), "key `odd` has the value type 13, expected 0 to 12");
    check(raw().key("odd", 9).u32(99).u64(0), "key `odd` has the value type 99");
    check(raw().key("flag", 7).bytes(&[2]), "key `flag` has the bool 2, expected 0 or 1");
    check(raw().key("flags", 9).u32(7).u64(2).bytes(&[1, 3]), "bool 3");
    check(
        raw().key("name", 8).u64(u64::MAX),
        "truncated inside key `name`: expected at least 18446744073709551615 bytes, found 48",
    );
    check(raw().key("number", 10).u32(1), "truncated inside key `number`");
    let twice = Raw::new(0, 2).key("same", 4).u32(1).key("same", 4).u32(2);
    check(twice, "key `same` occurs twice in the metadata");
    check(nested(5), "key `deep` nests arrays deeper than 4 levels");
    check(nested(100_000), "key `deep` nests arrays deeper than 4 levels");
    File::from_vec(nested(4).0, "deep enough").unwrap();
}

#[test]
fn bad_alignment_is_named() {
    let aligned = |n: u32| Raw::new(0, 1).key("general.alignment", 4).u32(n);
    check(
        aligned(0),
        "key `general.alignment` should hold a power of two up to 2147483648, found 0",
    );
    check(aligned(48), "found 48");
    check(Raw::new(0, 1).key("general.alignment", 10).u64(1 << 63), "found 9223372036854775808");
    check(Raw::new(0, 1).key("general.alignment", 8).text(b"32"), "found the string `32`");
    // The largest alignment is valid, but the data offset after it is not.
    File::from_vec(aligned(1 << 31).0, "no data").unwrap();
    let far = Raw::new(1, 1).key("general.alignment", 4).u32(1 << 31).tensor("t", &[1], 0, 0);
    check(far.data(64), "tensor `t` ends beyond the file: expected at least 2147483652 bytes");
}

#[test]
fn bad_tensors_are_named() {
    let raw = || Raw::new(1, 0);
    let tensor = |shape: &[u64], ty| raw().tensor("t", shape, ty, 0).data(64);
    check(tensor(&[1; 5], 0), "tensor `t` has 5 dimensions, expected 1 to 4");
    check(tensor(&[], 0).bytes(&[0; 64]), "tensor `t` has 0 dimensions");
    check(raw().text(b"t").u32(u32::MAX).bytes(&[1; 99]), "4294967295 dimensions");
    check(
        tensor(&[u64::MAX, 2], 0),
        "tensor `t` of shape [18446744073709551615, 2] has more values",
    );
    check(tensor(&[1 << 62, 1], 0), "64 bits can count");
    check(tensor(&[0, 1 << 40, 1 << 40], 0), "64 bits can count");
    check(
        tensor(&[33], 2),
        "tensor `t` has rows of 33 values, expected a multiple of 32 for type Q4_0",
    );
    check(tensor(&[32], 12), "expected a multiple of 256 for type Q4_K");
    check(
        tensor(&[17], 0),
        "tensor `t` ends beyond the file: expected at least 132 bytes, found 128",
    );
    check(raw().tensor("t", &[1], 0, 64).data(64), "expected at least 132 bytes, found 128");
    check(
        raw().tensor("t", &[1], 0, u64::MAX - 31).data(64),
        "18446744073709551652 bytes, found 128",
    );
    check(
        raw().tensor("t", &[1], 0, 8).data(64),
        "tensor `t` starts at data offset 8, expected a multiple of the alignment 32",
    );
    check(raw().u64(1 << 40).bytes(&[0; 64]), "tensor number 0 has a name of 1099511627776 bytes");
    check(raw().text(b"\xc0").bytes(&[0; 64]), "tensor number 0 has a name that is not UTF-8");
    let two = |second: &str, offset| {
        Raw::new(2, 0).tensor("a", &[9], 0, 0).tensor(second, &[1], 0, offset)
    };
    check(
        two("b", 32).data(64),
        "tensors `a` and `b` overlap: the first ends at byte 132, the second starts at 128",
    );
    check(two("b", 0).data(64), "overlap");
    check(two("a", 64).data(96), "tensor `a` occurs twice");
    File::from_vec(two("b", 64).data(68).0, "apart").unwrap();
}

/// The sparse file takes no disk space, but its header claims gigabytes.
#[test]
fn header_size_is_limited() {
    let len = 8 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    let text = Raw::new(0, 1).key("long", 8).u64(len);
    let array = Raw::new(0, 1).key("long", 9).u32(0).u64(len);
    for raw in [text, array] {
        std::fs::write(&path, &raw.0).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(len + raw.0.len() as u64).unwrap();
        let message = File::open(&path).unwrap_err().to_string();
        let expected = "key `long` lies beyond the first 268435456 bytes";
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}

#[test]
fn an_unknown_type_only_affects_its_tensor() {
    let raw = Raw::new(3, 1).key("k", 4).u32(5);
    let raw = raw.tensor("old", &[32], 4, 0).tensor("new", &[32], 200, 0);
    let file = File::from_vec(raw.tensor("known", &[2], 0, 32).data(64).0, "m.gguf").unwrap();
    assert_eq!(file.metadata().u32("k").unwrap(), Some(5));
    assert_eq!(file.bytes(file.tensor("known").unwrap()).unwrap().len(), 8);
    let new = file.tensor("new").unwrap();
    assert_eq!((new.ty, new.n_bytes(), new.n_elements()), (TensorType::Unknown(200), 0, 32));
    let message = file.bytes(new).unwrap_err().to_string();
    assert_eq!(message, "m.gguf: tensor `new` has the unknown type id 200");
    let message = file.slice(file.tensor("old").unwrap()).unwrap_err().to_string();
    assert!(message.contains("id 4, which was removed from the format"), "{message}");
}

#[test]
fn powerinfer_ids_are_read_by_its_own_table() {
    let mut raw = Raw::new(2, 0).tensor("i", &[2], 18, 0).tensor("b", &[2], 30, 32).data(64).0;
    raw[..4].copy_from_slice(b"PWRI");
    let file = File::from_vec(raw.clone(), "p").unwrap();
    assert_eq!(file.container(), Container::PowerInfer);
    assert_eq!(file.tensor("i").unwrap().ty, TensorType::I32);
    assert_eq!(file.tensor("b").unwrap().ty, TensorType::Unknown(30));
    raw[..4].copy_from_slice(b"GGUF");
    check(Raw(raw), "tensor `i` has rows of 2 values, expected a multiple of 256 for type IQ3_XXS");
}

#[test]
fn every_truncation_is_detected() {
    let whole = small_bytes(Container::Gguf);
    let file = File::from_vec(whole.clone(), "whole").unwrap();
    let last = file.tensor("ids").unwrap();
    let end = (last.offset() + last.n_bytes()) as usize;
    for len in 0..end {
        let cut = File::from_vec(whole[..len].to_vec(), "cut").unwrap_err().to_string();
        assert!(cut.starts_with("cut: "), "{cut}");
    }
    // Padding after the last tensor may be missing: some writers leave it out.
    File::from_vec(whole[..end].to_vec(), "unpadded").unwrap();
}
