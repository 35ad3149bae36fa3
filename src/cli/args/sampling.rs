//! Sampling flags.

use super::{boolish, whole};
use crate::cli::failure::Failure;
use crate::cli::parse;
use crate::cli::texts::escaped;
use crate::sample::{self, INTEGERS, Mirostat, NUMBERS, SamplerConfig, Stage};
use clap::Args;
use clap::builder::TypedValueParser;
use std::error::Error;
use std::fmt::Display;

/// The sampling flags of llama.cpp.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Samplers in order, separated by ';'
    #[arg(long, value_name = "NAMES", env = "THERMOCLINE_ARG_SAMPLERS")]
    #[arg(conflicts_with = "sampling_seq", value_parser = |names: &str| chain(Stage::parse_names(names)))]
    pub(crate) samplers: Option<Chain>,
    /// Samplers as single letters; default: edskypmxt
    #[arg(
        long,
        value_name = "LETTERS",
        env = "THERMOCLINE_ARG_SAMPLING_SEQ",
        alias = "sampler-seq",
        value_parser = |letters: &str| chain(Stage::parse_letters(letters))
    )]
    pub(crate) sampling_seq: Option<Chain>,
    /// Random seed; -1 for a random one
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_SEED", default_value = "-1")]
    #[arg(value_parser = whole::<i64>(-1..=i64::from(u32::MAX)).map(seed))]
    pub(crate) seed: Seed,
    /// Temperature; 0 always picks the most likely token
    #[arg(
        long,
        value_name = "X",
        env = "THERMOCLINE_ARG_TEMP",
        alias = "temperature",
        default_value_t = 0.8,
        value_parser = number("temp")
    )]
    pub(crate) temp: f32,
    /// Keep the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOP_K", default_value = "40")]
    #[arg(value_parser = integer("top-k").map(|n| usize::try_from(n).unwrap_or(0)))]
    pub(crate) top_k: usize,
    /// Keep the most likely tokens up to this total probability; 1 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_TOP_P", default_value_t = 0.95)]
    #[arg(value_parser = number("top-p"))]
    pub(crate) top_p: f32,
    /// Drop tokens below this fraction of the top probability; 0 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_MIN_P", default_value_t = 0.05)]
    #[arg(value_parser = number("min-p"))]
    pub(crate) min_p: f32,
    /// Keep the locally typical tokens up to this total probability; 1 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_TYPICAL", default_value_t = 1.0)]
    #[arg(alias = "typical-p", value_parser = number("typical"))]
    pub(crate) typical: f32,
    /// Keep tokens within X standard deviations of the top logit; -1 keeps all
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_TOP_NSIGMA", default_value_t = -1.0)]
    #[arg(alias = "top-n-sigma", value_parser = number("top-nsigma"))]
    pub(crate) top_nsigma: f32,
    /// Chance to drop tokens above --xtc-threshold, except the least likely; 0: never
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_XTC_PROBABILITY", default_value_t = 0.0)]
    #[arg(value_parser = number("xtc-probability"))]
    pub(crate) xtc_probability: f32,
    /// Minimum probability of the tokens that --xtc-probability drops
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_XTC_THRESHOLD", default_value_t = 0.1)]
    #[arg(value_parser = number("xtc-threshold"))]
    pub(crate) xtc_threshold: f32,
    /// Vary the temperature by up to X with the entropy; 0 disables
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_DYNATEMP_RANGE", default_value_t = 0.0)]
    #[arg(value_parser = number("dynatemp-range"))]
    pub(crate) dynatemp_range: f32,
    /// Exponent of the entropy for --dynatemp-range
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_DYNATEMP_EXP", default_value_t = 1.0)]
    #[arg(value_parser = number("dynatemp-exp"))]
    pub(crate) dynatemp_exp: f32,
    /// Penalty for repeated tokens; 1 disables it
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_REPEAT_PENALTY", default_value_t = 1.0)]
    #[arg(value_parser = number("repeat-penalty"))]
    pub(crate) repeat_penalty: f32,
    /// Number of recent tokens to penalise; 0 disables, -1 is all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_REPEAT_LAST_N", default_value = "64")]
    #[arg(value_parser = integer("repeat-last-n").map(window))]
    pub(crate) repeat_last_n: usize,
    /// Penalty for each token that has already occurred
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_PRESENCE_PENALTY", default_value_t = 0.0)]
    #[arg(value_parser = number("presence-penalty"))]
    pub(crate) presence_penalty: f32,
    /// Penalty for each earlier occurrence of a token
    #[arg(
        long,
        value_name = "X",
        env = "THERMOCLINE_ARG_FREQUENCY_PENALTY",
        default_value_t = 0.0,
        value_parser = number("frequency-penalty")
    )]
    pub(crate) frequency_penalty: f32,
    /// DRY: penalty for tokens that continue a repetition; 0 disables
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_DRY_MULTIPLIER", default_value_t = 0.0)]
    #[arg(value_parser = number("dry-multiplier"))]
    pub(crate) dry_multiplier: f32,
    /// DRY: factor of the penalty for each further repeated token
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_DRY_BASE", default_value_t = 1.75)]
    #[arg(value_parser = number("dry-base"))]
    pub(crate) dry_base: f32,
    /// DRY: longest repetition without a penalty, in tokens
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_DRY_ALLOWED_LENGTH", default_value = "2")]
    #[arg(value_parser = integer("dry-allowed-length").map(|n| usize::try_from(n).unwrap_or(0)))]
    pub(crate) dry_allowed_length: usize,
    /// DRY: number of recent tokens to search; 0 disables, -1 is all
    #[arg(
        long,
        value_name = "N",
        env = "THERMOCLINE_ARG_DRY_PENALTY_LAST_N",
        default_value = "64"
    )]
    #[arg(value_parser = integer("dry-penalty-last-n").map(window))]
    pub(crate) dry_penalty_last_n: usize,
    /// DRY: text that interrupts a repetition; may be repeated; none: no text
    ///
    /// The first replaces the defaults: a line break, `:`, `"` and `*`. Escapes such as \n are
    /// replaced.
    #[arg(long, value_name = "TEXT", env = "THERMOCLINE_ARG_DRY_SEQUENCE_BREAKER")]
    pub(crate) dry_sequence_breaker: Vec<String>,
    /// Mirostat: 1, or 2 for version 2.0; 0 disables
    ///
    /// Replaces all samplers except the temperature.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_MIROSTAT", default_value = "0")]
    #[arg(value_parser = integer("mirostat"))]
    pub(crate) mirostat: i64,
    /// Learning rate (eta) of --mirostat
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_MIROSTAT_LR", default_value_t = 0.1)]
    #[arg(value_parser = number("mirostat-lr"))]
    pub(crate) mirostat_lr: f32,
    /// Target surprise (tau) of --mirostat in bits
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_MIROSTAT_ENT", default_value_t = 5.0)]
    #[arg(value_parser = number("mirostat-ent"))]
    pub(crate) mirostat_ent: f32,
    /// Prefer tokens near this probability; needs the sampler adaptive_p
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_ADAPTIVE_TARGET", default_value_t = -1.0)]
    #[arg(value_parser = number("adaptive-target"))]
    pub(crate) adaptive_target: f32,
    /// Decay of the average for --adaptive-target, 0 to 0.99; 0 reacts fastest
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_ADAPTIVE_DECAY", default_value_t = 0.9)]
    #[arg(value_parser = number("adaptive-decay"))]
    pub(crate) adaptive_decay: f32,
    /// Bias of a token's logit: 15043+1, 15043-1, 2-inf
    #[arg(short, long, value_name = "ID±BIAS", env = "THERMOCLINE_ARG_LOGIT_BIAS", value_parser = parse::logit_bias)]
    #[arg(value_delimiter = ',')]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Ban EOS and the other end-of-generation tokens
    #[arg(long, env = "THERMOCLINE_ARG_IGNORE_EOS", value_parser = boolish())]
    pub(crate) ignore_eos: bool,
}

/// Samplers in order.
pub(crate) type Chain = Vec<Stage>;

/// A seed; `None` for a random one.
pub(crate) type Seed = Option<u32>;

fn chain(parsed: Result<Chain, sample::Error>) -> Result<Chain, Failure> {
    parsed.map_err(|e| {
        let known: Vec<_> = Stage::all().map(Stage::name).collect();
        Failure::usage(e.to_string()).help(format!("supported samplers: {}", known.join(";")))
    })
}

/// In llama.cpp, both -1 and `u32::MAX` ask for a random seed.
fn seed(n: i64) -> Seed {
    u32::try_from(n).ok().filter(|seed| *seed != u32::MAX)
}

/// A number of recent tokens; -1 is all.
fn window(n: i64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

type Invalid = Box<dyn Error + Send + Sync>;

/// Parses the number of a flag and checks its range.
fn number(flag: &'static str) -> impl Fn(&str) -> Result<f32, Invalid> + Clone {
    move |text| {
        let value: f32 = text.trim().parse().map_err(|_| format!("'{text}' is not a number"))?;
        let setting = NUMBERS.iter().find(|setting| setting.flag == flag);
        match setting.filter(|setting| !setting.accepts(value)) {
            None => Ok(value),
            Some(setting) => Err(out_of_range(flag, value, &setting.expected())),
        }
    }
}

/// Parses the integer of a flag and checks its range.
fn integer(flag: &'static str) -> impl Fn(&str) -> Result<i64, Invalid> + Clone {
    move |text| {
        let setting = INTEGERS.iter().find(|setting| setting.flag == flag);
        let value = text.trim().parse::<i64>().ok();
        match (value, setting) {
            (Some(value), Some(setting)) if setting.accepts(value) => Ok(value),
            (Some(value), None) => Ok(value),
            (_, Some(setting)) => Err(out_of_range(flag, text, &setting.expected())),
            (None, None) => Err(out_of_range(flag, text, "a whole number")),
        }
    }
}

fn out_of_range(flag: &str, value: impl Display, expected: &str) -> Invalid {
    Failure::usage(format!("invalid value {value} for --{flag}: must be {expected}")).into()
}

impl SamplingArgs {
    /// Replaces escapes in the sequence breakers if `escape` is set, and checks flags that depend
    /// on others. Call it once: escapes would be replaced twice.
    ///
    /// # Errors
    /// Escapes that produce invalid UTF-8; --adaptive-target without its sampler.
    pub(crate) fn resolve(mut self, escape: bool) -> Result<Self, Failure> {
        let breakers = self.dry_sequence_breaker.into_iter().map(|text| escaped(text, escape));
        self.dry_sequence_breaker = breakers.collect::<Result<_, _>>()?;
        if self.adaptive_target >= 0.0 && !self.chain().contains(&Stage::AdaptiveP) {
            let names: Vec<_> = self.chain().iter().map(|stage| stage.name()).collect();
            return Err(Failure::usage("--adaptive-target needs the sampler adaptive_p")
                .help(format!("add it: --samplers '{};adaptive_p'", names.join(";"))));
        }
        Ok(self)
    }

    fn chain(&self) -> Chain {
        let chain = self.samplers.as_ref().or(self.sampling_seq.as_ref());
        chain.cloned().unwrap_or_else(|| Stage::DEFAULT_CHAIN.to_vec())
    }

    /// The sequence breakers that flags set, if any. As in llama.cpp, `none` drops those before it.
    fn breakers(&self) -> Option<Vec<String>> {
        let given = &self.dry_sequence_breaker;
        let after = given.iter().rposition(|text| text == "none").map_or(0, |none| none + 1);
        (!given.is_empty()).then(|| given[after..].to_vec())
    }

    /// The configuration of the sampler. Token ids are checked later, against the vocabulary.
    pub(crate) fn config(&self) -> SamplerConfig {
        let mut config = SamplerConfig {
            temp: self.temp,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            top_n_sigma: self.top_nsigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            dry_multiplier: self.dry_multiplier,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            mirostat: match self.mirostat {
                0 => Mirostat::Off,
                1 => Mirostat::V1,
                _ => Mirostat::V2,
            },
            mirostat_tau: self.mirostat_ent,
            mirostat_eta: self.mirostat_lr,
            adaptive_target: self.adaptive_target,
            adaptive_decay: self.adaptive_decay,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            chain: self.chain(),
            ..SamplerConfig::default()
        };
        // As in llama.cpp, bases below 1 change nothing.
        if self.dry_base >= 1.0 {
            config.dry_base = self.dry_base;
        }
        if let Some(breakers) = self.breakers() {
            config.dry_sequence_breakers = breakers;
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Parsed {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn parse(words: &str) -> Result<SamplerConfig, Failure> {
        let words = std::iter::once("test").chain(words.split(' ').filter(|word| !word.is_empty()));
        let parsed = Parsed::try_parse_from(words).unwrap_or_else(|e| panic!("{e}"));
        Ok(parsed.sampling.resolve(true)?.config())
    }

    #[test]
    fn every_numeric_setting_has_its_flag_and_default() {
        let default = SamplerConfig::default();
        assert_eq!(parse("").unwrap(), default);
        for setting in &NUMBERS {
            let config = parse(&format!("--{}=0.975", setting.flag))
                .or_else(|_| parse(&format!("--{}=0.975 --samplers=adaptive_p", setting.flag)));
            let (value, expected) = ((setting.get)(&config.unwrap()), (setting.get)(&default));
            let expected = if setting.flag == "dry-base" { expected } else { 0.975 };
            assert_eq!(value, expected, "{}", setting.flag);
        }
        for setting in INTEGERS.iter().filter(|setting| !setting.flag.is_empty()) {
            let config = parse(&format!("--{}=1", setting.flag)).unwrap();
            assert_eq!((setting.get)(&config), 1, "{}", setting.flag);
        }
        assert_eq!(parse("--dry-base=2.5").unwrap().dry_base, 2.5);
        assert_eq!(parse("--dry-penalty-last-n=-1").unwrap().dry_penalty_last_n, usize::MAX);
    }

    #[test]
    fn every_setting_has_the_bounds_of_requests() {
        for (flag, wrong) in [("top-p", "2"), ("min-p", "-0.1"), ("temp", "inf")] {
            assert!(number(flag)(wrong).is_err(), "--{flag} {wrong}");
        }
        for setting in INTEGERS.iter().filter(|setting| !setting.flag.is_empty()) {
            let [least, most] = setting.range;
            assert!(integer(setting.flag)(&least.to_string()).is_ok(), "{}", setting.flag);
            let error = integer(setting.flag)(&(most + 1).to_string()).unwrap_err().to_string();
            assert!(error.contains(&setting.expected()), "{error}");
        }
    }

    #[test]
    fn breakers_replace_the_default_ones() {
        let breakers = |words: &str| parse(words).unwrap().dry_sequence_breakers;
        assert_eq!(breakers("--dry-sequence-breaker=\\n --dry-sequence-breaker=x"), ["\n", "x"]);
        assert!(breakers("--dry-sequence-breaker=none").is_empty());
        let mixed = "--dry-sequence-breaker=a --dry-sequence-breaker=none --dry-sequence-breaker=b";
        assert_eq!(breakers(mixed), ["b"]);
    }

    #[test]
    fn adaptive_p_needs_its_sampler() {
        let failure = parse("--adaptive-target=0.5").unwrap_err();
        assert!(failure.message.contains("adaptive_p"), "{failure:?}");
        let config = parse("--adaptive-target=0.5 --sampling-seq=kta").unwrap();
        assert_eq!(config.chain.last(), Some(&Stage::AdaptiveP));
    }
}
