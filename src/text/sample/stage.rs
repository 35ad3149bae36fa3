//! The stages of the sampling chain and their names.

use std::fmt;

use super::error::Error;

/// One stage of the sampling chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Repeat, presence and frequency penalties over the recent tokens.
    Penalties,
    /// Lower the logits of tokens that would continue a repeated sequence (DRY).
    Dry,
    /// Ban tokens more than `top_n_sigma` standard deviations below the highest logit.
    TopNSigma,
    /// Keep the `top_k` most likely tokens.
    TopK,
    /// Keep the tokens whose surprise is closest to the entropy.
    TypicalP,
    /// Keep the shortest list of most likely tokens that holds `top_p` of the probability.
    TopP,
    /// Keep the tokens at least `min_p` times as likely as the most likely token.
    MinP,
    /// At random, drop all tokens above a threshold except the least likely of them.
    Xtc,
    /// Divide the logits by `temp`; if it is 0 or negative, keep only the best token.
    Temperature,
    /// Prefer tokens near a target probability. Acts after all other stages.
    AdaptiveP,
}

/// Name, letter and other names without `_` and `-`.
const NAMES: [(Stage, &str, char, &[&str]); 10] = [
    (Stage::Penalties, "penalties", 'e', &[]),
    (Stage::Dry, "dry", 'd', &[]),
    (Stage::TopNSigma, "top_n_sigma", 's', &["topnsigma"]),
    (Stage::TopK, "top_k", 'k', &["topk"]),
    (Stage::TypicalP, "typ_p", 'y', &["typp", "typ", "typicalp", "typical"]),
    (Stage::TopP, "top_p", 'p', &["topp", "nucleus"]),
    (Stage::MinP, "min_p", 'm', &["minp"]),
    (Stage::Xtc, "xtc", 'x', &[]),
    (Stage::Temperature, "temperature", 't', &["temp"]),
    (Stage::AdaptiveP, "adaptive_p", 'a', &["adaptivep"]),
];

impl Stage {
    /// llama.cpp's default order.
    pub const DEFAULT_CHAIN: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// All stages.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(stage, ..)| *stage)
    }

    /// The name in `--samplers`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(stage, ..)| *stage == self).map_or("", |(_, name, ..)| *name)
    }

    /// Parses a chain such as `penalties;top_k;temperature`, with llama.cpp's names and spellings.
    ///
    /// # Errors
    /// [`Error::UnknownStage`] or [`Error::UnsupportedStage`], with the word.
    pub fn parse_names(names: &str) -> Result<Vec<Self>, Error> {
        let words = names.split(';').map(str::trim).filter(|w| !w.is_empty());
        let chain = words.map(|word| {
            let plain = word.to_ascii_lowercase().replace(['-', '_'], "");
            let is_named = |(_, name, _, others): &&(Self, &str, char, &[&str])| {
                *name == plain || others.contains(&plain.as_str())
            };
            match NAMES.iter().find(is_named) {
                Some((stage, ..)) => Ok(*stage),
                None if plain == "infill" => Err(Error::UnsupportedStage { name: word.into() }),
                None => Err(Error::UnknownStage { name: word.into() }),
            }
        });
        chain.collect()
    }

    /// Parses a chain of one-letter names such as `ekpmt`.
    ///
    /// # Errors
    /// As [`Stage::parse_names`].
    pub fn parse_letters(letters: &str) -> Result<Vec<Self>, Error> {
        let chain = letters.chars().map(|letter| {
            let found = NAMES.iter().find(|(_, _, known, _)| *known == letter);
            match found {
                Some((stage, ..)) => Ok(*stage),
                None if letter == 'i' => Err(Error::UnsupportedStage { name: "infill".into() }),
                None => Err(Error::UnknownStage { name: letter.into() }),
            }
        });
        chain.collect()
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_letters_match_llama_cpp() {
        let names = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        assert_eq!(Stage::parse_names(names).unwrap(), Stage::DEFAULT_CHAIN);
        assert_eq!(Stage::parse_letters("edskypmxt").unwrap(), Stage::DEFAULT_CHAIN);
        let short = "topk;Top-K;top-n-sigma;typical;nucleus;minp;temp;adaptive-p";
        let stages = Stage::parse_names(short).unwrap();
        let expected = Stage::parse_letters("kksypmta").unwrap();
        assert_eq!(stages, expected);
        assert!(Stage::parse_names("top_k;magic").is_err());
        assert!(Stage::parse_letters("kz").is_err());
        for unsupported in [Stage::parse_names("infill"), Stage::parse_letters("i")] {
            assert!(matches!(unsupported, Err(Error::UnsupportedStage { .. })));
        }
    }
}
