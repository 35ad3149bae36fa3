//! Builds nearly valid inputs: archives, and files with some bytes changed.

/// Maximum number of bytes that one change sets.
const VALUE: usize = 8;

/// Decodes the fuzzer's input. The first byte selects one of `files`. The other bytes change this
/// file, with eleven bytes per change: offset, number of bytes, new bytes. If the first byte
/// selects no file, the other bytes are the file.
pub fn changed(files: &[Vec<u8>], input: &[u8]) -> Option<Vec<u8>> {
    let (&which, rest) = input.split_first()?;
    let Some(file) = files.get(usize::from(which)) else { return Some(rest.to_vec()) };
    let mut bytes = file.clone();
    for change in rest.chunks_exact(3 + VALUE) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len().max(1);
        let n = [1, 2, 4, VALUE][usize::from(change[2]) % 4].min(bytes.len() - at);
        bytes[at..at + n].copy_from_slice(&change[3..3 + n]);
    }
    Some(bytes)
}

/// A zip archive of uncompressed members, without alignment.
#[allow(dead_code)] // only some targets use archives
pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut local, mut entries) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let start = (local.len() as u32).to_le_bytes();
        let len = (bytes.len() as u32).to_le_bytes();
        let sizes = [len, len].concat();
        let name_len = (name.len() as u16).to_le_bytes();
        let name = name.as_bytes();
        local.extend(
            [b"PK\x03\x04", &[0; 14][..], &sizes, &name_len, &[0; 2], name, bytes].concat(),
        );
        let head = [b"PK\x01\x02\0\0", &[0; 14][..], &sizes, &name_len, &[0; 12], &start].concat();
        entries.extend([&head[..], name].concat());
    }
    let (start, size) = ((local.len() as u32).to_le_bytes(), (entries.len() as u32).to_le_bytes());
    let n = (members.len() as u16).to_le_bytes();
    let end = [b"PK\x05\x06", &[0; 4][..], &n, &n, &size, &start, &[0; 2]].concat();
    [local, entries, end].concat()
}
