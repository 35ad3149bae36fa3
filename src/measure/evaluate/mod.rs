//! Perplexity of a model on a text, and divergence between two runs.
//!
//! [`Chunks`] splits a text into the tokens to predict. [`perplexity`] scores them;
//! [`compare_with_engine`] and [`compare_with_file`] compute the Kullback-Leibler divergence.
//! [`Collected`] collects an importance matrix on the same chunks. [`LogitsWriter`] and
//! [`LogitsReader`] handle llama.cpp's file of probabilities. The caller
//! parses options and tokenizes the text.
//!
//! Source: the protocol and the file format of llama.cpp's llama-perplexity, so that results are
//! comparable.

mod choices;
mod chunks;
mod error;
mod importance;
mod logits;
mod score;
mod statistics;

pub use choices::trace_choices;
pub use chunks::Chunks;
pub use error::{Error, Result};
pub use importance::{Collected, Collection, check_importance};
pub use logits::{LogitsReader, LogitsWriter};
pub use score::{compare_with_engine, compare_with_file, compare_with_logits, logits, perplexity};
pub use statistics::{Comparison, Mean, Perplexity, Reference};
