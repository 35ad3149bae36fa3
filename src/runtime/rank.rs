//! The prompt of ranking models.

use gguf::Metadata;

use text::tokenizer::{Error, Tokenizer};

/// How a ranking model reads a query and a document.
#[derive(Clone, Debug)]
pub struct RankPrompt {
    /// A text with `{query}` and `{document}`; `None` if special tokens separate the two.
    template: Option<String>,
    /// The token between query and document, if there is no template.
    separator: Option<u32>,
}

impl RankPrompt {
    /// Reads the keys of a model file. A template that is not a string counts as absent.
    #[must_use]
    pub fn from_metadata(metadata: &Metadata, tokenizer: &Tokenizer) -> RankPrompt {
        let template = metadata.str("tokenizer.chat_template.rerank").ok().flatten();
        RankPrompt {
            template: template.map(str::to_owned),
            separator: tokenizer.special().sep.filter(|_| tokenizer.adds_sep()),
        }
    }

    /// The tokens of a query and a document, the same as in llama-server.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn ids(
        &self,
        query: &str,
        document: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, Error> {
        if let Some(template) = &self.template {
            // Placeholders in the query or the document are not replaced.
            let parts = template.split("{query}").map(|part| part.replace("{document}", document));
            return tokenizer.encode(&parts.collect::<Vec<_>>().join(query), false, true);
        }
        let end = tokenizer.eos().filter(|_| tokenizer.adds_eos());
        let mut ids: Vec<u32> =
            tokenizer.bos().filter(|_| tokenizer.adds_bos()).into_iter().collect();
        ids.extend(tokenizer.encode(query, false, false)?);
        ids.extend(end.into_iter().chain(self.separator));
        ids.extend(tokenizer.encode(document, false, false)?);
        ids.extend(end);
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::tokenizer::Vocab;

    #[test]
    fn without_a_template_special_tokens_separate_the_texts() {
        let file = crate::embedded::file().unwrap();
        let mut vocab = Vocab::from_metadata(file.metadata()).unwrap();
        (vocab.add_bos, vocab.add_eos) = (Some(true), Some(true));
        let tokenizer = Tokenizer::new(vocab).unwrap();
        let [bos, eos] = [tokenizer.bos(), tokenizer.eos()].map(Option::unwrap);
        let [one, two] = ["A cat.", "A dog."].map(|t| tokenizer.encode(t, false, false).unwrap());
        let mut prompt = RankPrompt { template: None, separator: Some(300) };
        let ids = |prompt: &RankPrompt| prompt.ids("A cat.", "A dog.", &tokenizer).unwrap();
        assert_eq!(ids(&prompt), [&[bos][..], &one, &[eos, 300], &two, &[eos]].concat());
        prompt.template = Some("{document}: {query}".to_owned());
        assert_eq!(ids(&prompt), tokenizer.encode("A dog.: A cat.", false, true).unwrap());
        let strange = prompt.ids("{document}", "{query}", &tokenizer).unwrap();
        assert_eq!(strange, tokenizer.encode("{query}: {document}", false, true).unwrap());
    }
}
