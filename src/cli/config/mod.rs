//! What we shall do: the arguments, resolved and typed, one struct for each command.
//!
//! Everything that can be wrong with a command line alone is found here, before a file is opened
//! for its weights. Text files are read here, so that the commands see text.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod convert;
pub(crate) mod device;
pub(crate) mod model;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod predictor;
pub(crate) mod processor;
pub(crate) mod profile;
pub(crate) mod run;
pub(crate) mod text;

pub(crate) use bench::BenchOptions;
pub(crate) use perplexity::PerplexityOptions;
pub(crate) use plan::PlanOptions;
pub(crate) use predictor::PredictorOptions;
pub(crate) use profile::ProfileOptions;
pub(crate) use run::RunOptions;
pub(crate) use text::TokenizeOptions;
