//! Perplexity of a model on a text, and divergence between two runs.
//!
//! Here: [`Chunks`] (the tokens that count), [`perplexity`], [`against_engine`] and
//! [`against_file`] (Kullback-Leibler divergence), [`LogitsWriter`] and [`LogitsReader`]
//! (llama.cpp's file of probabilities). Not here: options, text.
//!
//! Source: the protocol and the file format of llama.cpp's llama-perplexity, so that results are
//! comparable.

mod chunks;
mod error;
mod logits;
mod score;
mod statistics;

pub use chunks::Chunks;
pub use error::{Error, Result};
pub use logits::{LogitsReader, LogitsWriter};
pub use score::{against_engine, against_file, against_logits, logits, perplexity};
pub use statistics::{Comparison, Mean, Perplexity, Reference};
