//! What we shall do: the arguments, resolved and typed, one struct for each command.
//!
//! Everything that can be wrong with a command line alone is found here, before a file is opened for its weights.
//! Text files are read here, so that the commands see text.

mod bench;
mod model;
mod perplexity;
mod run;
mod text;

pub(crate) use bench::{BenchOptions, CacheType, Subject, Synthetic};
pub(crate) use model::{Computation, ModelOptions, Sparsity};
pub(crate) use perplexity::{PerplexityOptions, Reference};
pub(crate) use run::{Keep, Length, RunOptions};
pub(crate) use text::{TokenizeOptions, read_file, read_stdin};
