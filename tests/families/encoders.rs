//! Encoders: heads of ranking models, and errors.

use std::sync::atomic::AtomicBool;

use thermocline::engine::{Error, LogitsRequest};
use thermocline::model::RankState;

use super::*;

/// An engine for the fixture `name` with a context of `n_ctx`.
fn engine(name: &str, n_ctx: usize) -> (Fixture, Engine) {
    let fixture = fixture(&folder().join(format!("{name}.gguf")));
    let engine = load(&fixture, n_ctx, Sparsity::Predicted, vec![cpu_device(2)], None);
    (fixture, engine)
}

#[test]
fn scores_match_llama_cpp() {
    let (fixture, mut engine) = engine("modern-bert", 64);
    let json: Value =
        serde_json::from_slice(&fs::read(folder().join("modern-bert.json")).unwrap()).unwrap();
    let head = fixture.model.rank.as_ref().unwrap();
    assert_eq!(head.state(), RankState::Mean);
    for (run, score) in fixture.runs.iter().zip(json["scores"].as_array().unwrap()) {
        let states = logits_of(&mut engine, &run.ids, &[]);
        let mut mean = vec![0.0; states[0].len()];
        states.iter().for_each(|state| mean.iter_mut().zip(state).for_each(|(sum, x)| *sum += x));
        mean.iter_mut().for_each(|sum| *sum /= states.len() as f32);
        let got = f64::from(head.outputs(&mean)[0]);
        let expected = score.as_f64().unwrap();
        assert!((got - expected).abs() < 5e-3, "{got} instead of {expected}");
    }
}

#[test]
fn an_encoder_has_no_logits_and_needs_a_text_as_a_whole() {
    let (_, mut engine) = engine("bert", 32);
    let interrupt = AtomicBool::new(false);
    let sink = &mut |_: usize, _: &[f32]| {};
    let mut sequence = engine.new_sequence();
    let error = engine.feed(&mut sequence, &[1, 2], LogitsRequest::Last, &interrupt, sink);
    assert!(matches!(error, Err(Error::Encoder)), "{error:?}");
    let error = engine.observe(&mut sequence, &[1, 2], &interrupt, &mut |_, _| {});
    assert!(matches!(error, Err(Error::Encoder)), "{error:?}");
    // The whole context is one step.
    let mut n = 0;
    let count = &mut |_: usize, _: &[f32]| n += 1;
    engine.hidden_states(&mut sequence, &[1; 32], &interrupt, count).unwrap();
    assert_eq!(n, 32);
    let error = engine.hidden_states(&mut sequence, &[1], &interrupt, sink);
    assert!(matches!(error, Err(Error::TextInParts { n_tokens: 32 })), "{error:?}");
    let mut sequence = engine.new_sequence();
    let error = engine.hidden_states(&mut sequence, &[1; 33], &interrupt, sink);
    assert!(matches!(error, Err(Error::ContextFull { n_tokens: 33, n_ctx: 32 })), "{error:?}");
}

/// A later token changes the state of an earlier one.
#[test]
fn tokens_attend_to_later_tokens() {
    let (_, mut engine) = engine("eurobert", 64);
    let [one, other] = [[5, 6, 7, 8], [5, 6, 7, 9]].map(|ids| logits_of(&mut engine, &ids, &[]));
    assert!(largest(&one[0], &other[0]) > 1e-2);
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
