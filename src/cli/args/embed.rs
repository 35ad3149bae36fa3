//! `thermocline embed`.

use super::choice::{Choice, choice, one_of};
use super::serve::POOLINGS;
use super::{CommonArgs, ModelArgs, boolish, whole};
use crate::cli::failure::Failure;
use crate::cli::texts::{escaped, piped_text, read_prompt};
use clap::Args;
use scheduler::Pooling;
use std::path::PathBuf;

/// Print the embeddings of texts, like llama-embedding, or the scores of a ranking model.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Embeddings")]
pub(crate) struct EmbedArgs {
    /// A text, or several separated by line breaks; may be repeated
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Vec<String>,
    /// File with a text in each line; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// How the states of a text become its embedding; default: as the file says
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_POOLING", value_parser = one_of(&POOLINGS))]
    pub(crate) pooling: Option<Pooling>,
    /// Normalisation: -1 none, 0 largest value 32760, 2 length 1, other: p-norm
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_EMBD_NORMALIZE", default_value = "2")]
    #[arg(value_parser = whole::<i32>(-1..))]
    pub(crate) embd_normalize: i32,
    /// Form of the output; default: text with similarities
    #[arg(long, value_name = "FORM", env = "THERMOCLINE_ARG_EMBD_OUTPUT_FORMAT", value_parser = one_of(&FORMS))]
    pub(crate) embd_output_format: Option<Form>,
    /// What separates texts; default: line breaks
    #[arg(
        long,
        value_name = "TEXT",
        env = "THERMOCLINE_ARG_EMBD_SEPARATOR",
        default_value = "\\n"
    )]
    pub(crate) embd_separator: String,
    /// What separates query and document for a ranking model; default: a tab
    #[arg(long, value_name = "TEXT", env = "THERMOCLINE_ARG_CLS_SEPARATOR", default_value = "\\t")]
    pub(crate) cls_separator: String,
    /// Process the escapes \n, \t, \", \\ and \xHH in texts (--no-escape)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_ESCAPE", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) escape: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A list of lists.
    Array,
    /// OpenAI's JSON.
    Json,
    /// The same with all similarities.
    JsonWithSimilarities,
    /// A line for each embedding.
    Raw,
}

static FORMS: [Choice<Form>; 4] = [
    choice("array", "Lists: [[0.1,0.2],[0.3,0.4]]", Form::Array),
    choice("json", "OpenAI's JSON", Form::Json),
    choice("json+", "OpenAI's JSON with cosine similarities", Form::JsonWithSimilarities),
    choice("raw", "A line for each embedding, values separated by spaces", Form::Raw),
];

impl EmbedArgs {
    /// The texts to embed.
    ///
    /// # Errors
    /// No text was given, or its file cannot be read.
    pub(crate) fn texts(&self) -> Result<Vec<String>, Failure> {
        let given = match &self.file {
            Some(path) => vec![read_prompt(path)?],
            None if !self.prompt.is_empty() => {
                let texts = self.prompt.iter().cloned();
                texts.map(|text| escaped(text, self.escape)).collect::<Result<_, _>>()?
            }
            None => vec![piped_text()?.ok_or_else(|| {
                let help = "pass it as a word, with -f FILE, or on standard input";
                Failure::usage("no text to embed").help(help)
            })?],
        };
        let separator = escaped(self.embd_separator.clone(), true)?;
        if separator.is_empty() {
            return Ok(given);
        }
        Ok(given.iter().flat_map(|text| text.split(&separator)).map(str::to_owned).collect())
    }

    /// What separates query and document.
    ///
    /// # Errors
    /// Escapes that are not UTF-8.
    pub(crate) fn pair_separator(&self) -> Result<String, Failure> {
        escaped(self.cls_separator.clone(), true)
    }
}
