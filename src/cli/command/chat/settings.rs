//! The settings that `/set` changes: sampling and answer length, under the names of the flags.

use crate::sample::SamplerConfig;

/// Settings that can be changed between turns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) sampler: SamplerConfig,
    /// Maximum number of tokens of an answer; `None` for no limit.
    pub(crate) n_predict: Option<usize>,
}

type Get = fn(&Settings) -> String;
type Set = fn(&mut Settings, &str) -> Option<()>;

/// Name, getter, setter.
const SETTINGS: [(&str, Get, Set); 10] = [
    ("temp", |s| s.sampler.temp.to_string(), |s, v| parse_into(&mut s.sampler.temp, v)),
    ("top-k", |s| s.sampler.top_k.to_string(), |s, v| parse_into(&mut s.sampler.top_k, v)),
    ("top-p", |s| s.sampler.top_p.to_string(), |s, v| parse_into(&mut s.sampler.top_p, v)),
    ("min-p", |s| s.sampler.min_p.to_string(), |s, v| parse_into(&mut s.sampler.min_p, v)),
    (
        "repeat-penalty",
        |s| s.sampler.repeat_penalty.to_string(),
        |s, v| parse_into(&mut s.sampler.repeat_penalty, v),
    ),
    (
        "repeat-last-n",
        |s| or_minus_1((s.sampler.repeat_last_n != usize::MAX).then_some(s.sampler.repeat_last_n)),
        |s, v| {
            s.sampler.repeat_last_n = parse_or_minus_1(v)?.unwrap_or(usize::MAX);
            Some(())
        },
    ),
    (
        "presence-penalty",
        |s| s.sampler.presence_penalty.to_string(),
        |s, v| parse_into(&mut s.sampler.presence_penalty, v),
    ),
    (
        "frequency-penalty",
        |s| s.sampler.frequency_penalty.to_string(),
        |s, v| parse_into(&mut s.sampler.frequency_penalty, v),
    ),
    (
        "seed",
        |s| or_minus_1(s.sampler.seed),
        |s, v| {
            s.sampler.seed = parse_or_minus_1(v)?;
            Some(())
        },
    ),
    (
        "predict",
        |s| or_minus_1(s.n_predict),
        |s, v| {
            s.n_predict = parse_or_minus_1(v)?;
            Some(())
        },
    ),
];

fn parse_into<T: std::str::FromStr>(place: &mut T, value: &str) -> Option<()> {
    *place = value.parse().ok()?;
    Some(())
}

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
    SETTINGS.iter().map(|(name, ..)| *name)
}

impl Settings {
    /// Every key with its value, on one line.
    pub(crate) fn settings_line(&self) -> String {
        let pairs: Vec<_> =
            SETTINGS.iter().map(|(name, get, _)| format!("{name} {}", get(self))).collect();
        pairs.join(", ")
    }

    /// Returns a copy with one setting changed; the key may be written as a flag, or with `_`. The
    /// sampler checks the range of a number later.
    ///
    /// # Errors
    /// A message for the user about an unknown key or an invalid value.
    pub(crate) fn with_value(&self, key: &str, value: &str) -> Result<Settings, String> {
        let name = key.trim_start_matches('-').replace('_', "-");
        let name = if name == "temperature" { "temp" } else { &name };
        let Some((name, _, set)) = SETTINGS.iter().find(|(known, ..)| *known == name) else {
            let known: Vec<_> = names().collect();
            return Err(format!("unknown setting '{key}', expected one of {}", known.join(", ")));
        };
        let mut changed = self.clone();
        match set(&mut changed, value) {
            Some(()) => Ok(changed),
            None => Err(format!("invalid value '{value}' for {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { sampler: SamplerConfig::default(), n_predict: None }
    }

    #[test]
    fn each_key_can_be_set_and_is_shown() {
        for name in names() {
            let set = settings().with_value(name, "3").unwrap();
            assert!(
                set.settings_line().contains(&format!("{name} 3")),
                "{name}: {}",
                set.settings_line()
            );
        }
        let flag = settings().with_value("--top_k", "7").unwrap();
        assert_eq!(flag.sampler.top_k, 7);
        assert_eq!(settings().with_value("temperature", "0").unwrap().sampler.temp, 0.0);
        assert_eq!(settings().with_value("seed", "-1").unwrap().sampler.seed, None);
        assert!(settings().settings_line().contains("seed -1"));
    }

    #[test]
    fn unknown_keys_and_invalid_values_are_reported() {
        assert!(settings().with_value("mirostat", "2").unwrap_err().contains("'mirostat'"));
        assert_eq!(
            settings().with_value("temp", "warm").unwrap_err(),
            "invalid value 'warm' for temp"
        );
        assert!(settings().with_value("top-k", "-1").is_err());
    }
}
