//! The settings that `/set` changes: sampling and answer length, under the names of the flags.

use crate::sample::{INTEGERS, NUMBERS, SamplerConfig};

/// Settings that can be changed between turns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) sampler: SamplerConfig,
    /// Maximum number of tokens of an answer; `None` for no limit.
    pub(crate) n_predict: Option<usize>,
    /// Whether speeds are shown after each answer.
    pub(crate) timings: bool,
}

/// Names that are not flags of numeric sampling settings.
const OTHERS: [&str; 3] = ["seed", "predict", "timings"];

/// Parses a number. -1 becomes the inner `None`: no limit, a random seed, or all tokens.
fn parse_or_minus_1<T: std::str::FromStr>(value: &str) -> Option<Option<T>> {
    match value {
        "-1" => Some(None),
        _ => value.parse().ok().map(Some),
    }
}

fn or_minus_1<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-1".to_owned(), |value| value.to_string())
}

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let numbers = NUMBERS.iter().map(|setting| setting.flag);
    let integers = INTEGERS.iter().map(|setting| setting.flag);
    numbers.chain(integers).filter(|name| !name.is_empty()).chain(OTHERS)
}

impl Settings {
    /// Every key with its value, on one line.
    pub(crate) fn settings_line(&self) -> String {
        let pairs: Vec<_> = names().map(|name| format!("{name} {}", self.value(name))).collect();
        pairs.join(", ")
    }

    fn value(&self, name: &str) -> String {
        if let Some(setting) = NUMBERS.iter().find(|setting| setting.flag == name) {
            return (setting.get)(&self.sampler).to_string();
        }
        if let Some(setting) = INTEGERS.iter().find(|setting| setting.flag == name) {
            return (setting.get)(&self.sampler).to_string();
        }
        match name {
            "seed" => or_minus_1(self.sampler.seed),
            "timings" => if self.timings { "on" } else { "off" }.to_owned(),
            _ => or_minus_1(self.n_predict),
        }
    }

    /// Returns a copy with one setting changed; the key may be written as a flag, or with `_`.
    ///
    /// # Errors
    /// A message for the user about an unknown key or an invalid value.
    pub(crate) fn with_value(&self, key: &str, value: &str) -> Result<Settings, String> {
        let name = key.trim_start_matches('-').replace('_', "-");
        let name = match name.as_str() {
            "temperature" => "temp",
            "num-predict" => "predict",
            name => name,
        };
        let Some(name) = names().find(|known| *known == name) else {
            let help = match name {
                "num-ctx" | "ctx-size" => "-c sets the context when the program starts",
                "stop" | "reverse-prompt" => "-r sets stop strings when the program starts",
                _ => "/help lists the keys",
            };
            return Err(format!("unknown setting '{key}'; {help}"));
        };
        let mut changed = self.clone();
        match changed.set(name, value) {
            Ok(()) => Ok(changed),
            Err(expected) => Err(format!("invalid value '{value}' for {name}: must be {expected}")),
        }
    }

    /// Sets a value, or returns the valid values.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if let Some(setting) = NUMBERS.iter().find(|setting| setting.flag == name) {
            let number = value.parse::<f32>().ok().filter(|value| setting.accepts(*value));
            (setting.set)(&mut self.sampler, number.ok_or_else(|| setting.expected())?);
        } else if let Some(setting) = INTEGERS.iter().find(|setting| setting.flag == name) {
            let number = value.parse::<i64>().ok().filter(|value| setting.accepts(*value));
            (setting.set)(&mut self.sampler, number.ok_or_else(|| setting.expected())?);
        } else if name == "seed" {
            let seed = parse_or_minus_1::<u32>(value).ok_or("a whole number, -1 or more")?;
            // As in llama.cpp, the greatest number asks for a random seed too.
            self.sampler.seed = seed.filter(|seed| *seed != u32::MAX);
        } else if name == "timings" {
            self.timings = match value {
                "on" | "true" | "1" => true,
                "off" | "false" | "0" => false,
                _ => return Err("on or off".to_owned()),
            };
        } else {
            let n = parse_or_minus_1::<u32>(value).ok_or("a whole number, -1 or more")?;
            self.n_predict = n.map(|n| n as usize);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { sampler: SamplerConfig::default(), n_predict: None, timings: false }
    }

    #[test]
    fn each_key_can_be_set_and_is_shown() {
        for name in names() {
            let value = match NUMBERS.iter().find(|setting| setting.flag == name) {
                Some(setting) if !setting.accepts(2.0) => "0.5",
                None if name == "timings" => "on",
                Some(_) | None => "2",
            };
            let line = settings().with_value(name, value).unwrap().settings_line();
            assert!(line.contains(&format!("{name} {value}")), "{name}: {line}");
        }
        let flag = settings().with_value("--top_k", "7").unwrap();
        assert_eq!(flag.sampler.top_k, 7);
        assert_eq!(settings().with_value("temperature", "0").unwrap().sampler.temp, 0.0);
        assert_eq!(settings().with_value("seed", "-1").unwrap().sampler.seed, None);
        assert!(settings().settings_line().contains("seed -1"));
    }

    #[test]
    fn unknown_keys_and_invalid_values_are_reported() {
        assert!(settings().with_value("tfs", "2").unwrap_err().contains("'tfs'"));
        assert!(settings().with_value("mirostat", "3").is_err());
        assert!(settings().with_value("adaptive-target", "1.5").is_err());
        assert_eq!(
            settings().with_value("temp", "warm").unwrap_err(),
            "invalid value 'warm' for temp: must be a finite number"
        );
        assert!(settings().with_value("top-k", "x").is_err());
        let error = settings().with_value("top-p", "2").unwrap_err();
        assert!(error.ends_with("must be a number from 0 to 1"), "{error}");
    }
}
