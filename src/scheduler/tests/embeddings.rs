//! Embeddings while generations run.

use std::sync::atomic::AtomicBool;

use engine::EngineOptions;

use super::{answer, built_in, family, request, run, scheduler, tokens};
use crate::{EmbedError, EndReason, Pooling, Scheduler, SchedulerOptions, SubmitError};

/// Final hidden states of all tokens, computed token by token.
fn states(tokens: &[u32]) -> Vec<Vec<f32>> {
    let (mut engine, _) = built_in(256, 1);
    let (mut sequence, interrupt) = (engine.new_sequence(), AtomicBool::new(false));
    let mut states = Vec::new();
    for token in tokens {
        let each = &mut |_: usize, state: &[f32]| states.push(state.to_vec());
        engine.hidden_states(&mut sequence, &[*token], &interrupt, each).unwrap();
    }
    states
}

#[test]
fn vectors_are_pooled_hidden_states() {
    let text = tokens(45, 1);
    let states = states(&text);
    let scheduler = scheduler(256, 2, SchedulerOptions::default());
    let long = scheduler.submit(request(&tokens(9, 2), 60)).unwrap();
    let close = |got: &[f32], expected: &[f32]| {
        assert_eq!(got.len(), expected.len());
        let scale = expected.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(scale > 0.1 && worst < 1e-2 * scale, "{worst} of {scale}");
    };
    let embed = |pooling| scheduler.embed(text.clone(), pooling).unwrap();
    close(&embed(Pooling::First), &states[0]);
    close(&embed(Pooling::Last), &states[44]);
    let mean: Vec<f32> = (0..states[0].len())
        .map(|i| states.iter().map(|state| state[i]).sum::<f32>() / 45.0)
        .collect();
    close(&embed(Pooling::Mean), &mean);
    close(&embed(Pooling::None), &states.concat());
    // The concurrent generation is unchanged.
    let expected = run(&scheduler, request(&tokens(9, 2), 60));
    assert_eq!(answer(&long).tokens, expected.tokens);
    let empty = scheduler.embed(Vec::new(), Pooling::Mean).unwrap_err();
    assert!(matches!(empty, EmbedError::Refused(SubmitError::Empty)), "{empty}");
}

#[test]
fn a_recurrent_model_embeds_between_generations() {
    let options = EngineOptions { n_ctx: 256, n_ubatch: 16, n_checkpoint: 2, ..Default::default() };
    let (engine, tokenizer) = family("lfm2.gguf", options);
    let scheduler = Scheduler::start(engine, tokenizer, SchedulerOptions::default()).unwrap();
    let text: Vec<u32> = (3..60).collect();
    let expected = scheduler.embed(text.clone(), Pooling::Last).unwrap();
    let running: Vec<_> =
        (0..3).map(|i| scheduler.submit(request(&[5 + i, 9], 20)).unwrap()).collect();
    assert_eq!(scheduler.embed(text, Pooling::Last).unwrap(), expected);
    assert!(running.iter().all(|generation| answer(generation).ended() == EndReason::Length));
}
