//! Flags that constrain the text: a JSON schema or a grammar.

use crate::cli::failure::Failure;
use crate::cli::texts::read_file;
use clap::Args;
use constrain::Grammar;
use serde_json::Value;
use std::path::PathBuf;

/// llama.cpp's flags about structured output. The last one given overrides the others.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Structured output")]
pub(crate) struct ConstraintArgs {
    /// Write JSON that is valid for this schema; {} is any object
    #[arg(short, long, value_name = "JSON")]
    #[arg(overrides_with_all = ["json_schema_file", "grammar", "grammar_file"])]
    pub(crate) json_schema: Option<String>,
    /// Read the JSON schema from a file (-jf)
    #[arg(long, value_name = "FILE")]
    #[arg(overrides_with_all = ["json_schema", "grammar", "grammar_file"])]
    pub(crate) json_schema_file: Option<PathBuf>,
    /// Write text that follows this grammar in llama.cpp's format, GBNF
    #[arg(long, value_name = "GBNF")]
    #[arg(overrides_with_all = ["json_schema", "json_schema_file", "grammar_file"])]
    pub(crate) grammar: Option<String>,
    /// Read the GBNF grammar from a file
    #[arg(long, value_name = "FILE")]
    #[arg(overrides_with_all = ["json_schema", "json_schema_file", "grammar"])]
    pub(crate) grammar_file: Option<PathBuf>,
}

impl ConstraintArgs {
    /// Replaces file flags with the files' texts.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(super) fn resolve(mut self) -> Result<Self, Failure> {
        if let Some(path) = self.json_schema_file.take() {
            self.json_schema = Some(read_file(&path)?);
        }
        if let Some(path) = self.grammar_file.take() {
            self.grammar = Some(read_file(&path)?);
        }
        Ok(self)
    }

    /// The grammar, if there is one.
    ///
    /// # Errors
    /// A schema that is not JSON.
    pub(crate) fn grammar(&self) -> Result<Option<Grammar>, Failure> {
        if let Some(text) = &self.json_schema {
            let schema: Value = serde_json::from_str(text).map_err(|e| {
                Failure::usage("--json-schema is not JSON").caused_by(&e).help(
                    r#"write it as {"type": "object", "properties": {"name": {"type": "string"}}}"#,
                )
            })?;
            // llama.cpp documents {} as any object.
            let is_empty = schema.as_object().is_some_and(serde_json::Map::is_empty);
            return Ok(Some(if is_empty {
                Grammar::JsonObject
            } else {
                Grammar::JsonSchema(schema)
            }));
        }
        let text = self.grammar.as_ref().filter(|text| !text.trim().is_empty());
        Ok(text.cloned().map(Grammar::Gbnf))
    }
}
