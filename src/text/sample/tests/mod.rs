//! The cases of llama.cpp's test-sampling.cpp as data, and a comparison with its library.

use std::path::Path;

use serde_json::Value;

use super::breakers::Breakers;
use super::sampler::Sampler;
use super::settings::{INTEGERS, NUMBERS};
use super::{SamplerConfig, Stage};
use crate::tokenizer::{Tokenizer, Vocab};

/// A configuration with `stages` (letters) and settings by name. Settings that are not named are
/// llama.cpp's defaults.
fn config(stages: &str, settings: &[(&str, f64)]) -> SamplerConfig {
    let chain = Stage::parse_letters(stages).unwrap();
    let mut config = SamplerConfig { chain, seed: Some(0), ..SamplerConfig::default() };
    for (name, value) in settings {
        if let Some(setting) = NUMBERS.iter().find(|setting| setting.name == *name) {
            (setting.set)(&mut config, *value as f32);
        } else {
            let setting = INTEGERS.iter().find(|setting| setting.name == *name).unwrap();
            (setting.set)(&mut config, *value as i64);
        }
    }
    config
}

fn sampler(config: &SamplerConfig, n_vocab: usize, breakers: &[Vec<u32>]) -> Sampler {
    let mut found = Breakers::default();
    breakers.iter().for_each(|tokens| found.add(tokens[0], tokens[1..].to_vec()));
    Sampler::with_breakers(config, n_vocab, found).unwrap()
}

/// The probability of each token after the stages.
fn probabilities(sampler: &Sampler, n_vocab: usize) -> Vec<f32> {
    let mut found = vec![0.0; n_vocab];
    sampler.logprobs().iter().for_each(|(id, log)| found[*id as usize] = log.exp());
    found
}

/// Stages, settings, accepted tokens, probabilities before and after the stages.
type Case<'a> = (&'a str, &'a [(&'a str, f64)], &'a [u32], &'a [f32], &'a [f32]);

const FOUR: &[f32] = &[0.1, 0.2, 0.3, 0.4];
const DOWN: &[f32] = &[0.4, 0.3, 0.2, 0.1];
const FIVE: &[f32] = &[0.2; 5];
const SAME: &[f32] = &[0.25; 4];
const REPEAT: &[(&str, f64)] = &[("repeat_penalty", 50.0), ("repeat_last_n", 64.0)];
const PRESENCE: &[(&str, f64)] = &[("frequency_penalty", 5.0), ("presence_penalty", 5.0)];

#[rustfmt::skip]
const CASES: &[Case<'_>] = &[
    ("t", &[("temperature", 1.0)], &[], FOUR, FOUR),
    ("t", &[("temperature", 0.0)], &[], FOUR, &[0.0, 0.0, 0.0, 1.0]),
    ("t", &[("temperature", 1.0), ("dynatemp_range", 0.0)], &[], FOUR, FOUR),
    ("k", &[("top_k", 1.0)], &[], FOUR, &[0.0, 0.0, 0.0, 1.0]),
    ("k", &[("top_k", 3.0)], &[], FOUR, &[0.0, 0.22222, 0.33333, 0.44444]),
    ("k", &[("top_k", 4.0)], &[], FOUR, FOUR),
    ("k", &[("top_k", 0.0)], &[], FOUR, FOUR),
    ("p", &[("top_p", 0.0)], &[], FOUR, &[0.0, 0.0, 0.0, 1.0]),
    ("p", &[("top_p", 0.7)], &[], FOUR, &[0.0, 0.0, 0.428571, 0.571429]),
    ("p", &[("top_p", 0.8)], &[], FOUR, &[0.0, 0.22222, 0.33333, 0.44444]),
    ("p", &[("top_p", 1.0)], &[], FOUR, FOUR),
    ("m", &[("min_p", 0.0)], &[], FOUR, FOUR),
    ("m", &[("min_p", 0.24)], &[], FOUR, FOUR),
    ("m", &[("min_p", 0.26)], &[], FOUR, &[0.0, 0.22222, 0.33333, 0.44444]),
    ("m", &[("min_p", 0.49)], &[], FOUR, &[0.0, 0.22222, 0.33333, 0.44444]),
    ("m", &[("min_p", 0.51)], &[], FOUR, &[0.0, 0.0, 0.428571, 0.571429]),
    ("m", &[("min_p", 0.74)], &[], FOUR, &[0.0, 0.0, 0.428571, 0.571429]),
    ("m", &[("min_p", 0.76)], &[], FOUR, &[0.0, 0.0, 0.0, 1.0]),
    ("m", &[("min_p", 1.0)], &[], FOUR, &[0.0, 0.0, 0.0, 1.0]),
    ("m", &[("min_p", 1.05)], &[], FOUR, &[0.0, 0.0, 0.0, 1.0]),
    ("x", &[("xtc_probability", 0.99), ("xtc_threshold", 0.09)], &[], DOWN, &[0.0, 0.0, 0.0, 1.0]),
    ("x", &[("xtc_probability", 0.99), ("xtc_threshold", 0.19)], &[], DOWN, &[0.0, 0.0, 0.666667, 0.333333]),
    ("x", &[("xtc_probability", 0.99), ("xtc_threshold", 0.29)], &[], DOWN, &[0.0, 0.5, 0.333333, 0.166667]),
    ("x", &[("xtc_probability", 0.99), ("xtc_threshold", 0.39)], &[], DOWN, DOWN),
    ("y", &[("typical_p", 0.5)], &[], &[0.97, 0.01, 0.01, 0.01], &[1.0, 0.0, 0.0, 0.0]),
    ("y", &[("typical_p", 0.5)], &[], &[0.4, 0.2, 0.2, 0.2], &[0.0, 0.333333, 0.333333, 0.333333]),
    ("e", REPEAT, &[0], FIVE, &[0.0, 0.25, 0.25, 0.25, 0.25]),
    ("e", REPEAT, &[0, 1, 2], FIVE, &[0.0, 0.0, 0.0, 0.5, 0.5]),
    ("e", REPEAT, &[0, 1, 2, 0, 0], FIVE, &[0.0, 0.0, 0.0, 0.5, 0.5]),
    ("e", PRESENCE, &[0], FIVE, &[0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
    ("e", PRESENCE, &[0, 1, 2], FIVE, &[0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
    ("e", PRESENCE, &[0, 1, 2, 0, 0], FIVE, &[0.0, 0.000023, 0.000023, 0.499977, 0.499977]),
    ("d", &[("dry_multiplier", 1.0), ("dry_base", 1.1)], &[0, 1], SAME, SAME),
    ("d", &[("dry_multiplier", 1.0), ("dry_base", 1.1)], &[0, 1, 2, 0, 1], SAME, &[0.296923, 0.296923, 0.109232, 0.296923]),
    ("d", &[("dry_multiplier", 2.0), ("dry_base", 1.1)], &[0, 1, 2, 0, 1], FIVE, &[0.241818, 0.241818, 0.032727, 0.241818, 0.241818]),
    ("d", &[("dry_multiplier", 1.0), ("dry_base", 1.1), ("dry_allowed_length", 4.0)], &[0, 1, 2, 3, 4, 0, 1], FIVE, FIVE),
    ("s", &[("top_n_sigma", 1.0)], &[], FOUR, &[0.0, 0.0, 0.428571, 0.571429]),
    ("s", &[("top_n_sigma", 0.0)], &[], FOUR, FOUR),
    ("s", &[("top_n_sigma", 3.0)], &[], FOUR, FOUR),
];

#[test]
fn llama_cpps_cases_have_its_probabilities() {
    let check = |case: &Case<'_>, breakers: &[Vec<u32>]| {
        let (stages, settings, tokens, before, after) = case;
        let mut sampler = sampler(&config(stages, settings), before.len(), breakers);
        tokens.iter().for_each(|token| sampler.accept(*token));
        let logits: Vec<f32> = before.iter().map(|p| p.ln()).collect();
        sampler.sample(&logits).unwrap();
        let found = probabilities(&sampler, before.len());
        let equal = found.iter().zip(*after).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(equal, "{case:?}: {found:?}");
    };
    CASES.iter().for_each(|case| check(case, &[]));
    let settings = &[("dry_multiplier", 1.0), ("dry_base", 1.1)];
    check(&("d", settings, &[0, 1, 3, 4, 0, 1], FIVE, FIVE), &[vec![3]]);
}

#[test]
fn llama_cpps_sequences_of_stages_keep_its_tokens() {
    let n_vocab = 10_000;
    let logits: Vec<f32> = (0..n_vocab).map(|id| (id as f32).ln()).collect();
    let cases = [
        ("k", 10_000, 1.0, 1.0),
        ("k", 1, 1.0, 1.0),
        ("k", 100, 1.0, 1.0),
        ("p", 10_000, 1.0, 1.0),
        ("p", 10_000, 0.0, 1.0),
        ("p", 10_000, 0.0003, 1.0),
        ("p", 10_000, 0.8, 1.0),
        ("m", 10_000, 1.0, 1.0),
        ("m", 10_000, 1.0, 1e-12),
        ("m", 10_000, 1.0, 9997.9 / 9999.0),
        ("m", 10_000, 1.0, 0.1),
        ("mp", 100, 0.8, 9997.9 / 9999.0),
    ];
    let orders = ["kp", "km", "pk", "pm", "mk", "mp", "kpm", "kmp", "pkm", "pmk", "mkp", "mpk"];
    let orders = orders.map(|order| (order, 100, 0.8, 0.1));
    for (order, top_k, top_p, min_p) in cases.into_iter().chain(orders) {
        let settings = [("top_k", f64::from(top_k)), ("top_p", top_p), ("min_p", min_p)];
        let mut sampler = sampler(&config(order, &settings), n_vocab, &[]);
        sampler.sample(&logits).unwrap();
        let mut ids: Vec<u32> = sampler.candidates.list.iter().map(|c| c.id).collect();
        // The best tokens stay. Their probabilities are proportional to their ids.
        let mut left = n_vocab;
        for stage in order.chars() {
            let least = n_vocab - left;
            left = match stage {
                'k' => left.min(top_k as usize),
                'p' if top_p < 1.0 => {
                    let target = top_p * (least..n_vocab).sum::<usize>() as f64;
                    let mut mass = 0;
                    let reached = (least..n_vocab).rev().position(|id| {
                        mass += id;
                        mass as f64 >= target
                    });
                    reached.unwrap() + 1
                }
                'm' => left.min(n_vocab - (min_p * (n_vocab - 1) as f64).ceil().max(1.0) as usize),
                _ => left,
            };
        }
        ids.sort_unstable();
        let expected: Vec<u32> = (n_vocab as u32 - left as u32..n_vocab as u32).collect();
        assert!(ids == expected, "{order} {settings:?}: {} instead of {left}", ids.len());
    }
}

#[test]
fn a_single_candidate_consumes_a_random_number() {
    let settings = config("", &[]);
    let (mut one, mut two) = (sampler(&settings, 256, &[]), sampler(&settings, 256, &[]));
    let mut single = [f32::NEG_INFINITY; 256];
    single[3] = 0.0;
    assert_eq!((one.sample(&single), two.sample(&[0.0; 256]).is_ok()), (Ok(3), true));
    for _ in 0..4 {
        assert_eq!(one.sample(&[0.0; 256]), two.sample(&[0.0; 256]));
    }
}

/// Compares with the results of llama.cpp's library that `scripts/check_samplers` writes.
#[test]
#[ignore = "needs the file of scripts/check_samplers"]
fn llama_cpps_library_agrees() {
    #[allow(clippy::disallowed_methods)] // `cargo test` passes no arguments of the script
    let path = std::env::var("CASES").unwrap();
    let cases = std::fs::read(path).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&cases).unwrap();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let model = planes::unpack(&assets.join("tinystories-relu-f16.gguf.planes.gz"), 2).unwrap();
    let file = gguf::File::from_vec(model, "the built-in model").unwrap();
    let tokenizer = Tokenizer::new(Vocab::from_metadata(file.metadata()).unwrap()).unwrap();
    let number = |value: &Value| value.as_f64().unwrap();
    let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).unwrap() };
    let mut n_steps = 0;
    for case in &cases {
        let named: Vec<(&str, f64)> =
            case["settings"].as_object().unwrap().iter().map(|(k, v)| (&**k, number(v))).collect();
        let config = config(case["samplers"].as_str().unwrap(), &named);
        let n_vocab = case["steps"][0]["logits"].as_array().unwrap().len();
        let mut sampler = match serde_json::from_value(case["breakers"].clone()).unwrap() {
            None => sampler(&config, n_vocab, &[]),
            Some(texts) => {
                let config = SamplerConfig { dry_sequence_breakers: texts, ..config };
                Sampler::new(&config, &tokenizer).unwrap()
            }
        };
        ids(&case["tokens"]).iter().for_each(|token| sampler.accept(*token));
        for step in case["steps"].as_array().unwrap() {
            let logits: Vec<f32> = serde_json::from_value(step["logits"].clone()).unwrap();
            sampler.candidates.fill(&logits);
            let chosen = sampler.choose(number(&step["u"]), number(&step["chance"])).unwrap();
            let found = probabilities(&sampler, n_vocab);
            let mut expected = vec![0.0; n_vocab];
            for (id, p) in step["probs"].as_object().unwrap() {
                expected[id.parse::<usize>().unwrap()] = number(p) as f32;
            }
            for (id, (a, b)) in found.iter().zip(&expected).enumerate() {
                let same = (a - b).abs() <= 1e-5 + 1e-3 * b && (*a > 1e-30) == (*b > 1e-30);
                assert!(same, "token {id}: {a}, llama.cpp {b}\n{} {named:?}", case["samplers"]);
            }
            let token = number(&step["token"]) as u32;
            assert_eq!(chosen, token, "{} {named:?}", case["samplers"]);
            sampler.accept(token);
            n_steps += 1;
        }
    }
    println!("{} cases, {n_steps} tokens: equal", cases.len());
}
