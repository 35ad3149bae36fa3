//! `/infill`: fills a gap between two texts, for models with fill-in-the-middle tokens.

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;

use super::completion;
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::limits;
use crate::served::ServedModel;
use crate::state::App;

/// Maximum size of the texts around a gap and of the other files together, in bytes.
const MAX_BYTES: usize = 8 << 20;

/// A gap and the texts around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) prefix: String,
    pub(crate) suffix: String,
    /// Beginning of the text in the gap, which the model continues.
    pub(crate) middle: String,
    /// Names and texts of other files.
    pub(crate) files: Vec<(String, String)>,
}

impl Gap {
    fn read(fields: &mut Fields) -> Result<Gap> {
        let prefix = fields.string("input_prefix")?;
        let suffix = fields.string("input_suffix")?;
        let missing = |name: &str| ApiError::field(name, "is missing");
        let prefix = prefix.ok_or_else(|| missing("input_prefix"))?;
        let suffix = suffix.ok_or_else(|| missing("input_suffix"))?;
        let middle = fields.string("prompt")?.unwrap_or_default();
        let mut files = Vec::new();
        for (i, file) in fields.list("input_extra")?.into_iter().flatten().enumerate() {
            let name = file.get("filename").map_or(Some("tmp"), Value::as_str);
            let text = file.get("text").and_then(Value::as_str);
            let (Some(name), Some(text)) = (name, text) else {
                let at = format!("input_extra[{i}]");
                return Err(ApiError::field(&at, "needs `text` and `filename` as strings"));
            };
            files.push((name.to_owned(), text.to_owned()));
        }
        Ok(Gap { prefix, suffix, middle, files })
    }

    /// The prompt in llama-server's order: other files, BOS, prefix token, prefix, beginning of the
    /// text in the gap, suffix token, suffix, middle token. The answer follows.
    ///
    /// # Errors
    /// 501 for a model without tokens for prefix, suffix and middle; 400 for invalid texts.
    pub(crate) fn prompt(&self, served: &ServedModel) -> Result<Vec<u32>> {
        let tokenizer = &served.tokenizer;
        let special = *tokenizer.special();
        let (Some(pre), Some(suf), Some(mid)) = (special.fim_pre, special.fim_suf, special.fim_mid)
        else {
            let message = "this model cannot fill gaps: its vocabulary has no tokens for prefix, suffix and middle";
            return Err(ApiError::not_supported(message));
        };
        let bytes = self.files.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>();
        if bytes + self.prefix.len() + self.suffix.len() > MAX_BYTES {
            return Err(ApiError::invalid(format!("the texts have more than {MAX_BYTES} bytes")));
        }
        let tokens = |text: &str, special: bool| {
            let ids = tokenizer.encode(text, false, special);
            ids.map_err(|e| ApiError::invalid(format!("the texts cannot be tokenized: {e}")))
        };
        let encode = |text: &str| tokens(text, false);
        let mut ids = Vec::new();
        match special.fim_rep {
            Some(repository) if special.fim_sep.is_some() => {
                ids.push(repository);
                ids.extend(encode("myproject\n")?);
            }
            _ => {}
        }
        for (name, text) in &self.files {
            match special.fim_sep {
                Some(separator) => {
                    ids.push(separator);
                    ids.extend(encode(&format!("{name}\n"))?);
                }
                None => ids.extend(encode("\n\n--- snippet ---\n\n")?),
            }
            ids.extend(encode(text)?);
        }
        if let Some(separator) = special.fim_sep {
            ids.push(separator);
            ids.extend(encode("filename\n")?);
        }
        ids.extend(tokenizer.bos().filter(|_| tokenizer.adds_bos()));
        ids.push(pre);
        ids.extend(encode(&self.prefix)?);
        ids.extend(tokens(&self.middle, true)?);
        ids.push(suf);
        ids.extend(encode(&self.suffix)?);
        ids.push(mid);
        Ok(ids)
    }
}

pub(crate) async fn fill(State(app): State<App>, request: Request) -> Result<Response> {
    let mut fields = limits::fields(&app, request).await?;
    let served = app.served()?;
    let gap = Gap::read(&mut fields)?;
    let prompt = {
        let served = served.clone();
        limits::blocking(move || gap.prompt(&served)).await?
    };
    completion::respond(app, served, fields, Some(prompt)).await
}
