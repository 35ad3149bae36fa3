//! The first four bytes: the container's format, or a guess at the actual format.

use std::fmt;

/// The two container formats. They differ in their magic and in the ids of integer types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Container {
    /// GGUF as in llama.cpp.
    Gguf,
    /// PowerInfer's variant, with the magic `PWRI`. No key marks a model for sparse inference, only
    /// the magic.
    PowerInfer,
}

impl Container {
    /// The first four bytes of such a file.
    pub fn magic(self) -> [u8; 4] {
        match self {
            Container::Gguf => *b"GGUF",
            Container::PowerInfer => *b"PWRI",
        }
    }

    /// The container whose magic begins `bytes`; `None` for any other file.
    pub(super) fn detect(bytes: &[u8]) -> Option<Container> {
        [Container::Gguf, Container::PowerInfer]
            .into_iter()
            .find(|container| bytes.starts_with(&container.magic()))
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Container::Gguf => "GGUF",
            Container::PowerInfer => "PowerInfer GGUF",
        })
    }
}

/// Magic bytes of files that people pass instead of a GGUF file.
const BEGINNINGS: &[(&[u8], &str)] = &[
    (b"lmgg", "an unversioned ggml file from before GGUF (2023); get a GGUF file of the model"),
    (b"fmgg", "a ggml file (`ggmf`) from before GGUF (2023); get a GGUF file of the model"),
    (b"tjgg", "a ggml file (`ggjt`) from before GGUF (2023); get a GGUF file of the model"),
    (b"algg", "a ggml adapter (`ggla`) from before GGUF (2023)"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint; convert the model to GGUF"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program"),
    (b"\x89HDF", "an HDF5 file; convert the model to GGUF"),
    (b"version https://git-lfs", "a Git LFS pointer; run `git lfs pull` to get the file itself"),
    (b"<!DOCTYPE", "a web page; the download did not return the file itself"),
    (b"<!doctype", "a web page; the download did not return the file itself"),
    (b"<html", "a web page; the download did not return the file itself"),
];

/// What a file of another kind is and what to do, such as a Git LFS pointer or a web page; `None` if
/// it has no known beginning.
#[must_use]
pub fn known_kind(bytes: &[u8]) -> Option<&'static str> {
    let known = BEGINNINGS.iter().find(|(beginning, _)| bytes.starts_with(beginning));
    known.map(|(_, name)| *name)
}

/// Describes a file that is not a container.
pub(super) fn describe(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(64)];
    if let Some(name) = known_kind(head) {
        return name.to_owned();
    }
    if head.len() > 8 && head[8] == b'{' && head[4..8] == [0; 4] {
        return "a safetensors file; convert the model to GGUF".to_owned();
    }
    if head.len() > 1 && head[0] == 0x80 && (2..=5).contains(&head[1]) {
        return "a Python pickle; convert the model to GGUF".to_owned();
    }
    if head.iter().all(|&byte| byte == 0) {
        return "zeros, perhaps an unfinished download".to_owned();
    }
    if head.starts_with(b"{") {
        return "JSON text".to_owned();
    }
    if head.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e | 0x80..)) {
        let first: String = String::from_utf8_lossy(head).chars().take(24).collect();
        return format!("text that begins with {first:?}");
    }
    format!("the bytes {:02x?}", &head[..head.len().min(4)])
}
