//! What can be wrong with a vocabulary or a request.

use crate::gguf;

/// Why a tokenizer cannot be built, or a text or id not be turned into the other.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value of the file has the wrong type.
    #[error(transparent)]
    Metadata(#[from] gguf::Error),
    /// A key that every vocabulary has is missing.
    #[error("{key} is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A kind of vocabulary that is not built.
    #[error("tokenizer.ggml.model is `{model}`; known are {known}")]
    UnknownModel {
        /// What the file says.
        model: String,
        /// All known names, with commas.
        known: String,
    },
    /// A pre-tokenizer that is not built.
    #[error("tokenizer.ggml.pre is `{name}`; known are {known}")]
    UnknownPre {
        /// What the file says.
        name: String,
        /// All known names, with commas.
        known: String,
    },
    /// A list that must have one entry per token has not.
    #[error("{key} has {found} entries for {expected} tokens")]
    Length {
        /// The key.
        key: &'static str,
        /// Entries of the list.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// No token, or more than ids can count.
    #[error("tokenizer.ggml.tokens has {found} entries; 1 to 2147483647 make a vocabulary")]
    TokenCount {
        /// Number of tokens.
        found: usize,
    },
    /// Two tokens with the same text.
    #[error("tokenizer.ggml.tokens has `{text}` twice, as {first} and {second}")]
    Duplicate {
        /// The text.
        text: String,
        /// Its first id.
        first: u32,
        /// Its second id.
        second: u32,
    },
    /// A score that has no place in an order.
    #[error("tokenizer.ggml.scores: token {id} has the score {score}")]
    BadScore {
        /// The token.
        id: u32,
        /// Its score.
        score: f32,
    },
    /// A token that is too long to be looked for at each place of a text.
    #[error("tokenizer.ggml.tokens: token {id} has {bytes} bytes; at most {limit} can be")]
    LongToken {
        /// The token.
        id: u32,
        /// Length of its text.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },
    /// More text than a table of tokens can hold.
    #[error("tokenizer.ggml.tokens has {bytes} bytes of text; at most {limit} can be")]
    TokenText {
        /// Length of all tokens together.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },
    /// A table of replacements that leads out of itself.
    #[error("tokenizer.ggml.precompiled_charsmap: its {bytes} bytes point out of themselves")]
    BadCharsmap {
        /// Length of the table.
        bytes: usize,
    },
    /// A byte token whose text is not `<0x00>` to `<0xFF>`.
    #[error("tokenizer.ggml.token_type calls {id} a byte, but its text is `{text}`")]
    BadByte {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A merge that is not two tokens which together are a token.
    #[error("tokenizer.ggml.merges: entry {index}, `{merge}`, is not made of known tokens")]
    BadMerge {
        /// Place in the list.
        index: usize,
        /// The line.
        merge: String,
    },
    /// A special token is to be added that the file does not name.
    #[error("{flag} is true, but {key} names no token")]
    NoSpecial {
        /// The key that asks for the token.
        flag: &'static str,
        /// The key that should name it.
        key: &'static str,
    },
    /// An id outside the vocabulary.
    #[error("token id {id} does not exist; there are {n_vocab}")]
    NoSuchId {
        /// The id.
        id: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
    /// The text is too long to encode at once.
    #[error("the text has {bytes} bytes; at most {limit} are encoded at once")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The greatest length.
        limit: usize,
    },
}

/// Something odd that a tokenizer works in spite of; worth a line to the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// No pre-tokenizer is named.
    #[error(
        "tokenizer.ggml.pre is missing; text is split in a default way, which may cost quality"
    )]
    MissingPre,
    /// The file wants no begin token, but the model needs one; llama.cpp adds it too.
    #[error("tokenizer.ggml.add_bos_token is false, but the pre-tokenizer is {pre}; it is added")]
    BeginAdded {
        /// Name of the pre-tokenizer.
        pre: String,
    },
    /// A special token is not in the vocabulary; llama.cpp ignores such a key, and so do we.
    #[error("{key} is {id}, but there are {n_vocab} tokens; the key is ignored")]
    BadSpecialId {
        /// The key.
        key: &'static str,
        /// The id that it gives.
        id: u32,
        /// Number of tokens.
        n_vocab: usize,
    },
}
