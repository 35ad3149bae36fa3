//! The sampling chain.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::adaptive::AdaptiveP;
use super::breakers::Breakers;
use super::candidates::Candidates;
use super::config::SamplerConfig;
use super::constraint::TokenMask;
use super::dry::Dry;
use super::error::Error;
use super::history::History;
use super::mirostat::Mirostat;
use super::stage::Stage;
use super::xtc::Xtc;
use crate::tokenizer::Tokenizer;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Chooses one token from each row of logits.
///
/// A sampler adds the biases, applies the stages in order, and draws. The draws of a seed are the
/// same on every platform: the generator is ChaCha12 keyed with the seed, with one 64-bit word per
/// token, and the order of the candidates is defined. XTC has a second stream of numbers, also with
/// one word per token.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    n_vocab: usize,
    seed: u32,
    rng: ChaCha12Rng,
    xtc_rng: ChaCha12Rng,
    history: History,
    breakers: Arc<Breakers>,
    dry: Option<Dry>,
    mirostat: Option<Mirostat>,
    adaptive: Option<AdaptiveP>,
    pub(super) candidates: Candidates,
}

impl Sampler {
    /// A sampler for the tokens of `tokenizer`, with a random seed if `config` has none.
    ///
    /// # Errors
    /// [`Error::BadValue`] and [`Error::BiasOutOfRange`] if `config` is invalid.
    pub fn new(config: &SamplerConfig, tokenizer: &Tokenizer) -> Result<Self, Error> {
        let mut breakers = Breakers::default();
        if config.uses_dry() {
            breakers = Breakers::new(&config.dry_sequence_breakers, tokenizer);
        }
        Self::with_breakers(config, tokenizer.n_vocab(), breakers)
    }

    /// A sampler for rows of `n_vocab` logits.
    ///
    /// # Errors
    /// As [`Sampler::new`].
    pub(super) fn with_breakers(
        config: &SamplerConfig,
        n_vocab: usize,
        breakers: Breakers,
    ) -> Result<Self, Error> {
        config.check(n_vocab)?;
        let seed = config.seed.unwrap_or_else(random_seed);
        Ok(Self {
            history: History::new(config.repeat_last_n),
            breakers: Arc::new(breakers),
            dry: Dry::new(config),
            mirostat: Mirostat::new(config),
            adaptive: AdaptiveP::new(config),
            config: config.clone(),
            n_vocab,
            seed,
            rng: generator(seed, 0),
            xtc_rng: generator(seed, 1),
            candidates: Candidates::default(),
        })
    }

    /// A copy, including the history, whose random generators start with another seed.
    #[must_use]
    pub fn with_seed(&self, seed: u32) -> Self {
        let (rng, xtc_rng) = (generator(seed, 0), generator(seed, 1));
        Self { seed, rng, xtc_rng, ..self.clone() }
    }

    /// The seed in use: a sampler with the same seed repeats the draws.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// The options of this sampler.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Adds a token of the prompt or a chosen one to the history, which penalties and DRY consider.
    /// Adaptive-p averages only the tokens that it chose.
    pub fn accept(&mut self, token: u32) {
        self.history.push(token);
        if let Some(dry) = &mut self.dry {
            dry.push(token);
        }
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.accept(token);
        }
    }

    /// Clears the history and the state of mirostat and adaptive-p, before an unrelated text. The
    /// random generators are not reset.
    pub fn clear_history(&mut self) {
        self.history = History::new(self.config.repeat_last_n);
        self.dry = Dry::new(&self.config);
        self.mirostat = Mirostat::new(&self.config);
        self.adaptive = AdaptiveP::new(&self.config);
    }

    /// Chooses a token. Call [`Sampler::accept`] to add it to the history.
    ///
    /// shape: `logits [n_vocab]`
    ///
    /// # Errors
    /// [`Error::WrongLength`], [`Error::NotANumber`] for a NaN or plus infinity anywhere in the
    /// row, [`Error::AllBanned`] if every token is banned.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, Error> {
        self.sample_from(logits, None)
    }

    /// As [`Sampler::sample`], but chooses only among the tokens in `allowed`, if given. Other
    /// tokens are dropped before the first stage.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_from(
        &mut self,
        logits: &[f32],
        allowed: Option<&TokenMask>,
    ) -> Result<u32, Error> {
        let (given, n_vocab) = (logits.len(), self.n_vocab);
        if given != n_vocab {
            return Err(Error::WrongLength { given, n_vocab });
        }
        let bad = |l: &f32| l.is_nan() || *l == f32::INFINITY;
        if let Some((token, &value)) = (0u32..).zip(logits).find(|(_, logit)| bad(logit)) {
            return Err(Error::NotANumber { token, value });
        }
        self.candidates.fill(logits);
        if let Some(allowed) = allowed {
            self.candidates.retain(|token| allowed.contains(token));
        }
        let (u, chance) = (uniform(&mut self.rng), uniform(&mut self.xtc_rng));
        self.choose(u, chance)
    }

    /// Chooses among the candidates: `u` decides the draw and `chance` whether XTC acts. Both are
    /// in `0..1`.
    ///
    /// # Errors
    /// [`Error::AllBanned`].
    pub(super) fn choose(&mut self, u: f64, chance: f64) -> Result<u32, Error> {
        for &(token, bias) in &self.config.logit_bias {
            self.candidates.edit([token], |_, logit| logit + bias);
        }
        let list = &mut self.candidates;
        let at = if let Some(mirostat) = &mut self.mirostat {
            list.temperature(self.config.temp);
            mirostat.choose(list, self.n_vocab, u)
        } else {
            for i in 0..self.config.chain.len() {
                self.apply(self.config.chain[i], chance);
            }
            match &mut self.adaptive {
                Some(adaptive) => adaptive.choose(&mut self.candidates, u),
                None => self.candidates.draw(u),
            }
        };
        at.map(|at| self.candidates.list[at].id).ok_or(Error::AllBanned)
    }

    /// The distribution from which the latest token was drawn: the tokens that all stages kept,
    /// best first, each with the natural logarithm of its probability.
    pub fn logprobs(&self) -> Vec<(u32, f32)> {
        self.candidates.logprobs()
    }

    fn apply(&mut self, stage: Stage, chance: f64) {
        let (config, list) = (&self.config, &mut self.candidates);
        let min_keep = config.min_keep;
        match stage {
            Stage::Penalties => {
                let neutral = config.repeat_penalty == 1.0
                    && config.presence_penalty == 0.0
                    && config.frequency_penalty == 0.0;
                if !neutral {
                    list.edit(self.history.tokens(), |token, logit| {
                        self.history.penalise(token, logit, config)
                    });
                }
            }
            Stage::Dry => {
                if let Some(dry) = &mut self.dry {
                    dry.apply(config, &self.breakers, list);
                }
            }
            Stage::TopNSigma => list.top_n_sigma(config.top_n_sigma),
            Stage::TopK => list.top_k(config.top_k),
            Stage::TypicalP => list.typical(config.typical_p, min_keep),
            Stage::TopP => list.top_p(config.top_p, min_keep),
            Stage::MinP => list.min_p(config.min_p, min_keep),
            Stage::Xtc => {
                let (probability, threshold) = (config.xtc_probability, config.xtc_threshold);
                list.xtc(&Xtc { probability, threshold, min_keep }, chance);
            }
            Stage::Temperature => {
                let (range, exponent) = (config.dynatemp_range, config.dynatemp_exponent);
                list.dynamic_temperature(config.temp, range, exponent);
            }
            // Replaces the draw in `choose`, wherever it is in the chain.
            Stage::AdaptiveP => {}
        }
    }
}

/// A seed from the standard library's keys, which the system need not have a call for.
fn random_seed() -> u32 {
    RandomState::new().hash_one(()) as u32
}

/// The generator of a seed. Streams of a seed are independent.
fn generator(seed: u32, stream: u64) -> ChaCha12Rng {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha12Rng::from_seed(key);
    rng.set_stream(stream);
    rng
}

/// A number in `0..1`.
fn uniform(rng: &mut ChaCha12Rng) -> f64 {
    #[allow(clippy::cast_precision_loss)] // an f64 holds 53 bits exactly
    let u = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    u
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(config: SamplerConfig, n_vocab: usize) -> Sampler {
        Sampler::with_breakers(&config, n_vocab, Breakers::default()).unwrap()
    }

    fn seeded(seed: u32) -> SamplerConfig {
        SamplerConfig { seed: Some(seed), ..SamplerConfig::default() }
    }

    #[test]
    fn greedy_breaks_ties_by_the_lowest_id() {
        let config = SamplerConfig { temp: 0.0, ..SamplerConfig::default() };
        let mut s = sampler(config, 5);
        assert_eq!(s.sample(&[0.0, 2.0, 1.0, 2.0, -1.0]), Ok(1));
    }

    #[test]
    fn a_mask_limits_the_choice() {
        let config = SamplerConfig { temp: 0.0, ..SamplerConfig::default() };
        let mut s = sampler(config, 5);
        let mut allowed = TokenMask::none(5);
        assert_eq!(s.sample_from(&[0.0; 5], Some(&allowed)), Err(Error::AllBanned));
        allowed.insert(0);
        allowed.insert(4);
        assert_eq!(s.sample_from(&[0.0, 2.0, 1.0, 2.0, 1.5], Some(&allowed)), Ok(4));
    }

    #[test]
    fn without_its_stage_the_temperature_is_not_applied() {
        let config = SamplerConfig { temp: 0.0, chain: vec![], ..seeded(1) };
        let mut s = sampler(config, 2);
        let drawn: Vec<_> = (0..64).map(|_| s.sample(&[0.0, 0.1]).unwrap()).collect();
        assert!(drawn.contains(&0) && drawn.contains(&1));
    }

    #[test]
    fn the_seed_determines_the_draws() {
        let logits: Vec<f32> = (0..500u16).map(|i| f32::from(i % 17) * 0.1).collect();
        let draw = |seed| {
            let mut s = sampler(seeded(seed), logits.len());
            (0..32).map(|_| s.sample(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(42), draw(42));
        assert_ne!(draw(42), draw(43));
    }

    #[test]
    fn the_draws_of_a_seed_are_pinned() {
        // A change of these tokens changes every seeded text: record it in the changelog.
        let config = SamplerConfig { chain: vec![], ..seeded(7) };
        let mut s = sampler(config, 1000);
        let drawn: Vec<_> = (0..4).map(|_| s.sample(&[0.0; 1000]).unwrap()).collect();
        assert_eq!(drawn, PINNED);
    }
    const PINNED: [u32; 4] = [828, 920, 55, 533];

    #[test]
    fn draws_follow_the_probabilities() {
        let p = [0.5f32, 0.3, 0.15, 0.05];
        let logits = p.map(f32::ln);
        let config = SamplerConfig { temp: 1.0, top_p: 1.0, min_p: 0.0, ..seeded(3) };
        let mut s = sampler(config, 4);
        let mut counts = [0u32; 4];
        for _ in 0..20_000 {
            counts[s.sample(&logits).unwrap() as usize] += 1;
        }
        for (count, p) in counts.iter().zip(p) {
            let share = f64::from(*count) / 20_000.0;
            assert!((share - f64::from(p)).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn logprobs_are_those_after_the_stages() {
        let logits = [0.5f32, 0.05, 0.3, 0.15].map(f32::ln);
        let config = SamplerConfig { top_k: 3, top_p: 1.0, min_p: 0.0, temp: 1.0, ..seeded(3) };
        let mut s = sampler(config, 4);
        let token = s.sample(&logits).unwrap();
        let logprobs = s.logprobs();
        let ids: Vec<u32> = logprobs.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [0, 2, 3]);
        assert!(ids.contains(&token));
        for ((_, logprob), p) in logprobs.iter().zip([0.5, 0.3, 0.15]) {
            assert!((logprob.exp() - p / 0.95).abs() < 1e-6, "{logprobs:?}");
        }
        let mut greedy = sampler(SamplerConfig { temp: 0.0, ..seeded(3) }, 4);
        greedy.sample(&logits).unwrap();
        assert_eq!(greedy.logprobs(), [(0, 0.0)]);
    }

    #[test]
    fn the_order_of_the_stages_matters() {
        // A high temperature first flattens the distribution, so that min-p keeps the second
        // token.
        let logits = [0.0, -4.0];
        let base = SamplerConfig { temp: 10.0, min_p: 0.5, ..seeded(5) };
        let seen = |chain: &[Stage]| {
            let config = SamplerConfig { chain: chain.to_vec(), ..base.clone() };
            let mut s = sampler(config, 2);
            (0..200).any(|_| s.sample(&logits) == Ok(1))
        };
        assert!(seen(&[Stage::Temperature, Stage::MinP]));
        assert!(!seen(&[Stage::MinP, Stage::Temperature]));
    }

    #[test]
    fn penalties_see_the_accepted_tokens() {
        let config = SamplerConfig { temp: 0.0, repeat_penalty: 2.0, ..SamplerConfig::default() };
        let mut s = sampler(config, 3);
        assert_eq!(s.sample(&[1.0, 1.5, 0.0]), Ok(1));
        s.accept(1);
        assert_eq!(s.sample(&[1.0, 1.5, 0.0]), Ok(0));
    }

    #[test]
    fn a_bias_bans_or_favours_a_token() {
        let config = SamplerConfig {
            temp: 0.0,
            logit_bias: vec![(2, f32::NEG_INFINITY), (0, 5.0)],
            ..SamplerConfig::default()
        };
        assert_eq!(sampler(config, 3).sample(&[0.0, 4.0, 9.0]), Ok(0));
    }

    #[test]
    fn invalid_logits_and_settings_fail() {
        let mut s = sampler(seeded(1), 2);
        assert!(matches!(s.sample(&[0.0, f32::NAN]), Err(Error::NotANumber { token: 1, .. })));
        assert!(matches!(s.sample(&[f32::INFINITY, 0.0]), Err(Error::NotANumber { token: 0, .. })));
        assert_eq!(s.sample(&[f32::NEG_INFINITY; 2]), Err(Error::AllBanned), "all banned");
        assert!(matches!(s.sample(&[0.0]), Err(Error::WrongLength { given: 1, .. })));
        let bad = |config: SamplerConfig| {
            Sampler::with_breakers(&config, 2, Breakers::default()).is_err()
        };
        assert!(bad(SamplerConfig { temp: f32::NAN, ..seeded(1) }));
        assert!(bad(SamplerConfig { repeat_penalty: 0.0, ..seeded(1) }));
        assert!(bad(SamplerConfig { logit_bias: vec![(2, 1.0)], ..seeded(1) }));
    }
}
