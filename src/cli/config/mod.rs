//! Options: the arguments, resolved and typed, one struct for each command.
//!
//! All errors of a command line alone are found here, before a model file is opened. Text files
//! are read here, so that the commands get text.

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
