//! Models with recurrent layers: tokens are reused only up to checkpoints.

use engine::EngineOptions;
use hal::Bytes;

use super::{Answer, family, request, run};
use crate::{Request, Scheduler, SchedulerOptions};

/// Two schedulers with the same recurrent model; the second one reuses no tokens.
fn pair(name: &str, n_checkpoint: usize, options: SchedulerOptions) -> [Scheduler; 2] {
    let engine_options =
        EngineOptions { n_ctx: 256, n_ubatch: 16, n_seq: 2, n_checkpoint, ..Default::default() };
    let start = |options| {
        let (engine, tokenizer) = family(name, engine_options.clone());
        assert!(engine.is_recurrent());
        Scheduler::start(engine, tokenizer, options).unwrap()
    };
    let no_reuse = SchedulerOptions { cache_reuse: false, ..SchedulerOptions::default() };
    [start(options), start(no_reuse)]
}

/// Arbitrary tokens of a small vocabulary.
fn small(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| 3 + ((i * i + 7 * seed + i * seed) % 70) as u32).collect()
}

/// Runs the prompt on both schedulers and checks that the texts are equal. Returns the number of
/// cached tokens, and the answer.
fn cached(schedulers: &[Scheduler; 2], prompt: &[u32], n: usize) -> (usize, Answer) {
    let [got, expected] = schedulers.each_ref().map(|s| run(s, request(prompt, n)));
    assert_eq!(got.tokens, expected.tokens);
    assert_eq!(expected.report().n_cached, 0);
    (got.report().n_cached, got)
}

#[test]
fn prompts_continue_at_checkpoints() {
    for name in ["lfm2.gguf", "qwen35.gguf", "mamba2.gguf"] {
        let schedulers = pair(name, 4, SchedulerOptions::default());
        let prompt = small(40, 1);
        let (n, first) = cached(&schedulers, &prompt, 6);
        assert_eq!(n, 0, "{name}");
        // A checkpoint was made before the last token of the prompt.
        assert_eq!(cached(&schedulers, &prompt, 6).0, 39, "{name}");
        // The next turn reuses the checkpoint at the end of the answer, whose last token was not
        // computed.
        let turn = [&prompt[..], &first.tokens, &small(9, 2)].concat();
        assert_eq!(cached(&schedulers, &turn, 4).0, 45, "{name}");
        // A prompt that differs before the first checkpoint can reuse nothing.
        let changed = [&prompt[..20], &small(9, 3)].concat();
        assert_eq!(cached(&schedulers, &changed, 4).0, 0, "{name}");
    }
}

#[test]
fn long_prompts_have_intermediate_checkpoints() {
    let options = SchedulerOptions {
        checkpoint_every: 32,
        prefill_piece: Some(16),
        ..SchedulerOptions::default()
    };
    let schedulers = pair("lfm2.gguf", 8, options);
    let prompt = small(110, 1);
    cached(&schedulers, &prompt, 2);
    let changed = [&prompt[..70], &small(9, 3)].concat();
    assert_eq!(cached(&schedulers, &changed, 4).0, 64);
}

#[test]
fn idle_states_are_evicted_when_slots_run_out() {
    let schedulers = pair("qwen35.gguf", 2, SchedulerOptions::default());
    for i in 0..6 {
        let prompt = small(20 + i, i + 1);
        assert_eq!(cached(&schedulers, &prompt, 3).0, 0);
        assert_eq!(cached(&schedulers, &prompt, 3).0, 19 + i, "the latest one is kept");
    }
    // Both slots are free again.
    let running: Vec<_> =
        (0..4).map(|i| schedulers[0].submit(request(&small(20, i + 9), 30)).unwrap()).collect();
    for (i, generation) in running.iter().enumerate() {
        let expected = run(&schedulers[1], request(&small(20, i + 9), 30));
        assert_eq!(super::answer(generation).tokens, expected.tokens);
    }
}

#[test]
fn choices_start_from_the_state_after_the_prompt() {
    let schedulers = pair("lfm2.gguf", 3, SchedulerOptions::default());
    let prompt = small(30, 1);
    let several = Request { n_choices: 3, ..request(&prompt, 6) };
    let got = super::answers(&schedulers[0].submit(several).unwrap(), 3);
    let expected = run(&schedulers[1], request(&prompt, 6));
    assert!(got.iter().all(|answer| answer.tokens == expected.tokens));
    assert_eq!(schedulers[0].status().counters.prompt_tokens, 30 + 2);
}

#[test]
fn a_recurrent_state_is_restored_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let disk_cache = Some((folder.path().to_owned(), Bytes(1 << 30)));
    let options = SchedulerOptions { disk_cache, ..SchedulerOptions::default() };
    let prompt = small(40, 1);
    let (_, first) = cached(&pair("lfm2.gguf", 4, options.clone()), &prompt, 6);
    let turn = [&prompt[..], &first.tokens, &small(9, 2)].concat();
    let schedulers = pair("lfm2.gguf", 4, options);
    assert_eq!(cached(&schedulers, &turn, 4).0, 45);
    assert_eq!(schedulers[0].status().counters.n_restored, 1);
}
