//! The built-in model, which runs if the user names no file: its bytes and its licence notices.
//! `assets/README.md` describes how the model was made.

/// The model's name in errors and in `info`.
pub const NAME: &str = "the built-in story model";

/// Licences and origins of the model.
pub const NOTICES: &str = include_str!("../../assets/NOTICES.md");

/// Aligns the file to 64 bytes, because tensors in a memory-mapped file are aligned too.
#[repr(C, align(64))]
struct AlignedBytes<T: ?Sized>(T);

const MODEL: &AlignedBytes<[u8]> =
    &AlignedBytes(*include_bytes!(concat!(env!("OUT_DIR"), "/tinystories-relu-f16.gguf")));

/// The GGUF file, byte for byte.
pub static BYTES: &[u8] = &MODEL.0;

/// Opens the built-in model file.
///
/// # Errors
/// Errors of [`gguf::File::from_static`], if the program was built with a damaged file.
pub fn file() -> Result<gguf::File, gguf::Error> {
    gguf::File::from_static(BYTES, NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_small_aligned_and_sparse() {
        assert!(BYTES.len() < 12_000_000, "{} bytes", BYTES.len());
        assert!(BYTES.as_ptr().addr().is_multiple_of(64));
        let file = file().unwrap();
        let activation = file.metadata().str("llama.hidden_activation").unwrap();
        assert_eq!(activation, Some("relu"));
        assert_eq!(file.metadata().str("general.name").unwrap(), Some("Llama-tinystories-relu"));
    }

    #[test]
    fn the_notices_name_every_source() {
        for words in ["Built with Llama", "CDLA-Sharing-1.0", "Erik Hyrkas", "CC-BY", "AS IS"] {
            assert!(NOTICES.contains(words), "{words}");
        }
    }
}
