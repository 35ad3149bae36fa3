//! Models by name, and the commands that manage them.

use super::{CommonArgs, boolish};
use clap::Args;
use hub::ModelName;

/// A model on Hugging Face or at a URL: the same flags for every command that opens a model.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct HubArgs {
    /// Model on Hugging Face: USER/REPO[:QUANT] (-hf, -hfr)
    ///
    /// It is downloaded once, into the cache that Hugging Face's tools share. QUANT defaults to
    /// Q4_K_M, then Q8_0, then Q4_0, then the first file.
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_HF_REPO", value_parser = model_name)]
    pub(crate) hf_repo: Option<ModelName>,
    /// GGUF file of the repository, instead of a quantisation (-hff)
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_HF_FILE")]
    pub(crate) hf_file: Option<String>,
    /// Token for gated and private models (-hft); default: HF_TOKEN
    #[arg(long, value_name = "TOKEN", env = "THERMOCLINE_ARG_HF_TOKEN")]
    pub(crate) hf_token: Option<String>,
    /// URL of a GGUF file to download (-mu)
    #[arg(long, value_name = "URL", env = "THERMOCLINE_ARG_MODEL_URL")]
    pub(crate) model_url: Option<String>,
    /// Use only models that are downloaded already
    #[arg(long, env = "THERMOCLINE_ARG_OFFLINE", value_parser = boolish())]
    pub(crate) offline: bool,
}

fn model_name(text: &str) -> Result<ModelName, String> {
    ModelName::parse(text)
        .ok_or_else(|| "write USER/REPO or USER/REPO:QUANT, such as a/b:Q4_K_M".to_owned())
}

/// Download models by name.
#[derive(Args, Clone, Debug)]
pub(crate) struct PullArgs {
    /// USER/REPO[:QUANT], or the URL of a GGUF file
    #[arg(value_name = "MODEL")]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// List the downloaded models.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListArgs {
    /// Print one JSON array
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Delete downloaded models.
#[derive(Args, Clone, Debug)]
pub(crate) struct RmArgs {
    /// USER/REPO:QUANT, or USER/REPO for all models of the repository
    #[arg(value_name = "MODEL", required = true, value_parser = model_name)]
    pub(crate) names: Vec<ModelName>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
