//! Builds zip archives.

/// A zip archive of uncompressed members, without alignment.
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
