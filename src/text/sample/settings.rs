//! The numeric settings by name, for flags and requests.

use super::config::{Mirostat, SamplerConfig};

/// A setting whose value is a 32-bit float.
#[derive(Clone, Copy, Debug)]
pub struct NumberSetting {
    /// Field of a request, as in llama-server.
    pub name: &'static str,
    /// The flag without `--`, as in llama.cpp.
    pub flag: &'static str,
    /// Least and greatest value that flags and requests may set.
    pub range: [f32; 2],
    /// Returns the value.
    pub get: fn(&SamplerConfig) -> f32,
    /// Sets the value.
    pub set: fn(&mut SamplerConfig, f32),
}

/// A setting whose value is an integer.
#[derive(Clone, Copy, Debug)]
pub struct IntegerSetting {
    /// Field of a request, as in llama-server.
    pub name: &'static str,
    /// The flag without `--`, as in llama.cpp; empty if there is none.
    pub flag: &'static str,
    /// Least and greatest valid value.
    pub range: [i64; 2],
    /// Returns the value; -1 for all tokens.
    pub get: fn(&SamplerConfig) -> i64,
    /// Sets the value.
    pub set: fn(&mut SamplerConfig, i64),
}

const ANY: [f32; 2] = [f32::MIN, f32::MAX];
const ABOVE_0: [f32; 2] = [f32::MIN_POSITIVE, f32::MAX];
const PROBABILITY: [f32; 2] = [0.0, 1.0];

/// The greatest number of tokens that a setting takes, as in llama.cpp.
const MAX_COUNT: i64 = 0x7fff_ffff;

macro_rules! number {
    ($name:literal, $flag:literal, $range:expr, $field:ident) => {
        NumberSetting {
            name: $name,
            flag: $flag,
            range: $range,
            get: |config| config.$field,
            set: |config, value| config.$field = value,
        }
    };
}

/// A number of tokens. A negative value sets `$other`.
macro_rules! count {
    ($name:literal, $flag:literal, $least:expr, $field:ident, $other:expr) => {
        IntegerSetting {
            name: $name,
            flag: $flag,
            range: [$least, MAX_COUNT],
            get: |config| match config.$field {
                usize::MAX => -1,
                n => i64::try_from(n).unwrap_or(i64::MAX),
            },
            set: |config, value| config.$field = usize::try_from(value).unwrap_or($other),
        }
    };
}

/// All settings of type [`NumberSetting`].
pub const NUMBERS: [NumberSetting; 18] = [
    number!("temperature", "temp", ANY, temp),
    number!("dynatemp_range", "dynatemp-range", ANY, dynatemp_range),
    number!("dynatemp_exponent", "dynatemp-exp", ANY, dynatemp_exponent),
    number!("top_p", "top-p", PROBABILITY, top_p),
    number!("min_p", "min-p", PROBABILITY, min_p),
    number!("typical_p", "typical", PROBABILITY, typical_p),
    number!("top_n_sigma", "top-nsigma", ANY, top_n_sigma),
    number!("xtc_probability", "xtc-probability", PROBABILITY, xtc_probability),
    number!("xtc_threshold", "xtc-threshold", PROBABILITY, xtc_threshold),
    number!("repeat_penalty", "repeat-penalty", ABOVE_0, repeat_penalty),
    number!("presence_penalty", "presence-penalty", ANY, presence_penalty),
    number!("frequency_penalty", "frequency-penalty", ANY, frequency_penalty),
    number!("dry_multiplier", "dry-multiplier", ANY, dry_multiplier),
    NumberSetting {
        // As in llama.cpp, values below 1 change nothing.
        set: |config, value| config.dry_base = if value < 1.0 { config.dry_base } else { value },
        ..number!("dry_base", "dry-base", ANY, dry_base)
    },
    number!("mirostat_tau", "mirostat-ent", ANY, mirostat_tau),
    number!("mirostat_eta", "mirostat-lr", ANY, mirostat_eta),
    number!("adaptive_target", "adaptive-target", [f32::MIN, 1.0], adaptive_target),
    number!("adaptive_decay", "adaptive-decay", [0.0, 0.99], adaptive_decay),
];

/// All settings of type [`IntegerSetting`]. The seed is not among them: it may be random.
pub const INTEGERS: [IntegerSetting; 6] = [
    count!("top_k", "top-k", -MAX_COUNT, top_k, 0),
    count!("min_keep", "", 0, min_keep, 0),
    count!("repeat_last_n", "repeat-last-n", -1, repeat_last_n, usize::MAX),
    count!("dry_allowed_length", "dry-allowed-length", 0, dry_allowed_length, 0),
    count!("dry_penalty_last_n", "dry-penalty-last-n", -1, dry_penalty_last_n, usize::MAX),
    IntegerSetting {
        name: "mirostat",
        flag: "mirostat",
        range: [0, 2],
        get: |config| match config.mirostat {
            Mirostat::Off => 0,
            Mirostat::V1 => 1,
            Mirostat::V2 => 2,
        },
        set: |config, value| {
            config.mirostat = match value {
                1 => Mirostat::V1,
                2 => Mirostat::V2,
                _ => Mirostat::Off,
            }
        },
    },
];

impl NumberSetting {
    /// Whether samplers can compute with a value. Beyond [`NumberSetting::accepts`], these are
    /// probabilities outside of 0 to 1, which llama.cpp's own tests have.
    pub(super) fn is_usable(&self, value: f32) -> bool {
        self.accepts(value) || value.is_finite() && self.range == PROBABILITY
    }

    /// Whether flags and requests may set a value.
    #[must_use]
    pub fn accepts(&self, value: f32) -> bool {
        let [least, most] = self.range;
        value.is_finite() && (least..=most).contains(&value)
    }

    /// The valid values, for messages.
    #[must_use]
    pub fn expected(&self) -> String {
        match self.range {
            [f32::MIN, f32::MAX] => "a finite number".to_owned(),
            [f32::MIN, most] => format!("a number of at most {most}"),
            [_, f32::MAX] => "a number above 0".to_owned(),
            [least, most] => format!("a number from {least} to {most}"),
        }
    }
}

impl IntegerSetting {
    /// Whether a value is valid.
    #[must_use]
    pub fn accepts(&self, value: i64) -> bool {
        let [least, most] = self.range;
        (least..=most).contains(&value)
    }

    /// The valid values, for messages.
    #[must_use]
    pub fn expected(&self) -> String {
        match self.range {
            [least, MAX_COUNT] if least < -1 => "a whole number".to_owned(),
            [least, MAX_COUNT] => format!("a whole number, {least} or more"),
            [least, most] => format!("a whole number from {least} to {most}"),
        }
    }
}
