//! Builds nearly valid inputs: files with some bytes changed.

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
