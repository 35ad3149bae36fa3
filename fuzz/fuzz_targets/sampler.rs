//! Samples with arbitrary options, biases, logits and masks: options are refused or every choice is a token that is not
//! banned, and a copy of the sampler makes the same choices.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use thermocline::gguf::File;
use thermocline::sample::{Mirostat, Sampler, SamplerConfig, Stage, TokenMask};
use thermocline::tokenizer::{Tokenizer, Vocab};

/// The tokenizer of a tiny model.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/families");
    let model =
        planes::unpack(&families.join("llama-relu.gguf.planes.gz"), 2).expect("a compressed model");
    let file = File::from_vec(model, "model").expect("a GGUF file");
    let vocab = Vocab::from_metadata(file.metadata()).expect("a vocabulary");
    Tokenizer::new(vocab).expect("a tokenizer")
});

/// A plausible number in most cases, else any bits.
fn number(u: &mut Unstructured) -> Result<f32> {
    Ok(match u.arbitrary::<u8>()? {
        byte @ 0..=219 => f32::from(byte) / 100.0,
        byte @ 220..=239 => f32::from(byte) - 230.0,
        _ => f32::from_bits(u.arbitrary()?),
    })
}

fn count(u: &mut Unstructured) -> Result<usize> {
    Ok(match u.arbitrary::<u8>()? {
        255 => usize::MAX,
        254 => u.arbitrary()?,
        byte => usize::from(byte),
    })
}

fn stages(u: &mut Unstructured) -> Result<Vec<Stage>> {
    let all: Vec<Stage> = Stage::all().collect();
    (0..u.int_in_range(0..=12)?).map(|_| u.choose(&all).copied()).collect()
}

fn config(u: &mut Unstructured) -> Result<SamplerConfig> {
    let mut config = SamplerConfig { seed: Some(u.arbitrary()?), ..SamplerConfig::default() };
    if u.arbitrary()? {
        config.chain = stages(u)?;
    }
    let numbers = [
        &mut config.temp,
        &mut config.dynatemp_range,
        &mut config.dynatemp_exponent,
        &mut config.top_p,
        &mut config.min_p,
        &mut config.typical_p,
        &mut config.top_n_sigma,
        &mut config.xtc_probability,
        &mut config.xtc_threshold,
        &mut config.repeat_penalty,
        &mut config.presence_penalty,
        &mut config.frequency_penalty,
        &mut config.dry_multiplier,
        &mut config.dry_base,
        &mut config.mirostat_tau,
        &mut config.mirostat_eta,
        &mut config.adaptive_target,
        &mut config.adaptive_decay,
    ];
    for value in numbers {
        if u.arbitrary()? {
            *value = number(u)?;
        }
    }
    let counts = [
        &mut config.top_k,
        &mut config.min_keep,
        &mut config.repeat_last_n,
        &mut config.dry_allowed_length,
        &mut config.dry_penalty_last_n,
    ];
    for value in counts {
        if u.arbitrary()? {
            *value = count(u)?;
        }
    }
    config.mirostat = *u.choose(&[Mirostat::Off, Mirostat::Off, Mirostat::V1, Mirostat::V2])?;
    if u.arbitrary()? {
        config.dry_sequence_breakers = u.arbitrary()?;
    }
    for _ in 0..u.int_in_range(0..=4)? {
        let bias = if u.arbitrary()? { f32::NEG_INFINITY } else { number(u)? };
        config.logit_bias.push((u.arbitrary::<u8>()?.into(), bias));
    }
    Ok(config)
}

/// Logits of one step: a few values, repeated over the vocabulary, and a few others among them.
fn logits(u: &mut Unstructured, n_vocab: usize) -> Result<Vec<f32>> {
    let some: Vec<f32> = (0..u.int_in_range(1..=8)?).map(|_| number(u)).collect::<Result<_>>()?;
    let mut logits: Vec<f32> = (0..n_vocab).map(|i| some[i * i % some.len()]).collect();
    for _ in 0..u.int_in_range(0..=4)? {
        logits[u.choose_index(n_vocab)?] =
            if u.arbitrary()? { f32::NEG_INFINITY } else { number(u)? };
    }
    Ok(logits)
}

fn run(u: &mut Unstructured) -> Result<()> {
    let config = config(u)?;
    if u.arbitrary()? {
        let names: String = u.arbitrary()?;
        let _ = (Stage::parse_names(&names), Stage::parse_letters(&names));
    }
    let Ok(mut sampler) = Sampler::new(&config, &TOKENIZER) else { return Ok(()) };
    let n_vocab = TOKENIZER.n_vocab();
    let banned = |token: u32| config.logit_bias.contains(&(token, f32::NEG_INFINITY));
    for _ in 0..u.int_in_range(1..=6)? {
        let logits = logits(u, n_vocab)?;
        let mut mask = TokenMask::all(n_vocab);
        for _ in 0..u.int_in_range(0..=3)? {
            mask.remove(u.choose_index(n_vocab)? as u32);
        }
        let mut copy = sampler.clone();
        let chosen = sampler.sample_from(&logits, Some(&mask));
        assert_eq!(chosen.as_ref().ok(), copy.sample_from(&logits, Some(&mask)).as_ref().ok());
        let Ok(token) = chosen else { continue };
        assert!(mask.contains(token) && !banned(token), "token {token} was banned");
        assert!(logits[token as usize] > f32::NEG_INFINITY, "token {token} has no probability");
        assert!(sampler.logprobs().iter().all(|(_, logprob)| *logprob <= 1e-3), "above 1");
        sampler.accept(token);
    }
    Ok(())
}

fuzz_target!(|input: &[u8]| {
    let _ = run(&mut Unstructured::new(input));
});
