//! Errors and warnings of the tokenizer.

/// Why a tokenizer cannot be built, or a text or id cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value of the file has the wrong type.
    #[error(transparent)]
    Metadata(#[from] gguf::Error),
    /// A key that every vocabulary needs is missing.
    #[error("{key} is missing")]
    Missing {
        /// The metadata key.
        key: &'static str,
    },
    /// An unsupported kind of vocabulary.
    #[error("tokenizer.ggml.model is `{model}`, which is not supported; supported: {known}")]
    UnknownModel {
        /// The value in the file.
        model: String,
        /// All supported names, comma-separated.
        known: String,
    },
    /// An unsupported pre-tokenizer.
    #[error("tokenizer.ggml.pre is `{name}`, which is not supported; supported: {known}")]
    UnknownPre {
        /// The value in the file.
        name: String,
        /// All supported names, comma-separated.
        known: String,
    },
    /// A list does not have one entry per token.
    #[error("{key} has {found} entries for {expected} tokens")]
    Length {
        /// The metadata key.
        key: &'static str,
        /// Entries of the list.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// No tokens, or more than fit in ids.
    #[error("tokenizer.ggml.tokens has {found} entries, expected 1 to 2147483647")]
    TokenCount {
        /// Number of tokens.
        found: usize,
    },
    /// Two tokens with the same text.
    #[error("tokenizer.ggml.tokens has `{text}` twice, as tokens {first} and {second}")]
    Duplicate {
        /// The text.
        text: String,
        /// First id with this text.
        first: u32,
        /// Second id with this text.
        second: u32,
    },
    /// A score that is NaN.
    #[error("tokenizer.ggml.scores: the score of token {id} is {score}")]
    BadScore {
        /// Id of the token.
        id: u32,
        /// Score of the token.
        score: f32,
    },
    /// A token that is too long.
    #[error("tokenizer.ggml.tokens: token {id} has {bytes} bytes, expected at most {limit}")]
    LongToken {
        /// Id of the token.
        id: u32,
        /// Length of its text in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Too much text in all tokens together.
    #[error("tokenizer.ggml.tokens has {bytes} bytes of text, expected at most {limit}")]
    TokenText {
        /// Length of all tokens together, in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A table of replacements with an inconsistent size or an index out of range.
    #[error("tokenizer.ggml.precompiled_charsmap: an index is outside of its {bytes} bytes")]
    BadCharsmap {
        /// Length of the table in bytes.
        bytes: usize,
    },
    /// A byte token whose text is not `<0x00>` to `<0xFF>`.
    #[error("tokenizer.ggml.token_type marks token {id} as a byte, but its text is `{text}`")]
    BadByte {
        /// Id of the token.
        id: u32,
        /// Text of the token.
        text: String,
    },
    /// A vocabulary that spells unknown text in bytes lacks one.
    #[error("tokenizer.ggml.tokens has no token for the byte 0x{byte:02X}")]
    NoByte {
        /// The byte.
        byte: u8,
    },
    /// A merge that is not two tokens whose concatenation is a token.
    #[error("tokenizer.ggml.merges: entry {index}, `{merge}`, does not consist of known tokens")]
    BadMerge {
        /// Index in the list.
        index: usize,
        /// The text of the entry.
        merge: String,
    },
    /// A special token is requested that the file does not define.
    #[error("{flag} is true, but {key} names no token")]
    NoSpecial {
        /// The key that requests the token.
        flag: &'static str,
        /// The key that should define it.
        key: &'static str,
    },
    /// An id outside the vocabulary.
    #[error("token id {id} does not exist; the vocabulary has {n_vocab} tokens")]
    NoSuchId {
        /// The id.
        id: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
    /// The text is too long to encode at once.
    #[error("the text has {bytes} bytes; at most {limit} are encoded at once")]
    TooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

/// A problem of the vocabulary that the tokenizer tolerates.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// No pre-tokenizer is given.
    #[error(
        "tokenizer.ggml.pre is missing; using the default pre-tokenizer, which may reduce quality"
    )]
    MissingPre,
    /// The file disables the BOS token, but the model needs one; llama.cpp adds it too.
    #[error(
        "tokenizer.ggml.add_bos_token is false, but the pre-tokenizer {pre} needs a BOS token; adding it"
    )]
    BosAdded {
        /// Name of the pre-tokenizer.
        pre: String,
    },
    /// A special token is not in the vocabulary; the key is ignored, as in llama.cpp.
    #[error("{key} is {id}, but the vocabulary has {n_vocab} tokens; the key is ignored")]
    BadSpecialId {
        /// The metadata key.
        key: &'static str,
        /// Value of the key.
        id: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
}
