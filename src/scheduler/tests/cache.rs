//! Which tokens are computed, and which are reused from the cache.

use super::{request, run, scheduler, tokens, wait_until};
use crate::{Request, SchedulerOptions, SlotError, SlotPhase};

#[test]
fn a_prompt_is_computed_once() {
    let scheduler = scheduler(512, 2, SchedulerOptions::default());
    let prompt = tokens(80, 1);
    let first = run(&scheduler, request(&prompt, 10));
    assert_eq!(first.report().n_cached, 0);
    // The last token of a prompt is always computed.
    let second = run(&scheduler, request(&prompt, 10));
    assert_eq!((second.report().n_cached, &second.tokens), (79, &first.tokens));
    let counters = scheduler.status().counters;
    assert_eq!((counters.prompt_tokens, counters.cached_tokens), (80 + 1, 79));
    assert_eq!((counters.generated_tokens, counters.recomputed_tokens), (20, 0));
    let uncached = Request { cache_prompt: false, ..request(&prompt, 10) };
    assert_eq!(run(&scheduler, uncached).report().n_cached, 0);
    assert_eq!(scheduler.status().n_idle, 1, "equal sequences are kept once");
}

#[test]
fn the_next_turn_computes_only_new_tokens() {
    let scheduler = scheduler(512, 2, SchedulerOptions::default());
    let mut conversation = tokens(30, 1);
    let mut computed = 0;
    for turn in 0..4 {
        let answer = run(&scheduler, request(&conversation, 7));
        let n = conversation.len();
        computed += n - answer.report().n_cached;
        // The answer's last token was sampled, but not computed.
        let expected = if turn == 0 { 30 } else { 1 + 11 };
        assert_eq!(n - answer.report().n_cached, expected, "turn {turn}");
        conversation.extend(&answer.tokens);
        conversation.extend(tokens(11, turn + 5));
    }
    let counters = scheduler.status().counters;
    assert_eq!(counters.prompt_tokens, computed as u64);
    assert_eq!(scheduler.status().n_idle, 1);
}

#[test]
fn tokens_after_a_change_are_computed_again() {
    let scheduler = scheduler(1024, 2, SchedulerOptions::default());
    let original = tokens(100, 1);
    run(&scheduler, request(&original, 4));
    for at in [70, 33, 32, 31, 1, 0] {
        let mut changed = original.clone();
        changed[at] += 1;
        let answer = run(&scheduler, request(&changed, 4));
        assert_eq!(answer.report().n_cached, at, "changed at {at}");
        // The original sequence is still cached.
        let again = run(&scheduler, request(&original, 4));
        assert_eq!(again.report().n_cached, 99);
    }
}

#[test]
fn a_prompt_waits_for_the_same_prefix_in_progress() {
    let scheduler = scheduler(1024, 4, SchedulerOptions::default());
    let prefix = tokens(200, 1);
    let prompts: Vec<Vec<u32>> =
        (0..4).map(|i| [&prefix[..], &tokens(3 + i, 20 + i)].concat()).collect();
    let running: Vec<_> =
        prompts.iter().map(|prompt| scheduler.submit(request(prompt, 5)).unwrap()).collect();
    let reports: Vec<_> =
        running.iter().map(|generation| super::answer(generation).report().clone()).collect();
    assert_eq!(reports[0].n_cached, 0);
    assert!(reports[1..].iter().all(|report| report.n_cached == 200), "{reports:?}");
    assert_eq!(scheduler.status().counters.prompt_tokens, 203 + 4 + 5 + 6);
}

#[test]
fn the_least_recently_used_sequence_is_evicted() {
    // The cache has eight blocks, and each sequence takes three.
    let scheduler = scheduler(256, 1, SchedulerOptions::default());
    let texts: Vec<Vec<u32>> = (0..3).map(|i| tokens(85, i + 1)).collect();
    let cached = |i: usize| run(&scheduler, request(&texts[i], 4)).report().n_cached;
    assert_eq!([cached(0), cached(1), cached(0)], [0, 0, 84]);
    assert_eq!(cached(2), 0);
    let status = scheduler.status();
    assert_eq!((status.counters.n_evicted, status.n_idle), (1, 2));
    assert_eq!(cached(0), 84, "it was used after text 1");
    assert_eq!(cached(1), 0);
}

#[test]
fn slots_are_saved_restored_and_erased() {
    let folder = tempfile::tempdir().unwrap();
    let slot_folder = Some(folder.path().join("slots"));
    let options = SchedulerOptions { slot_folder, ..SchedulerOptions::default() };
    let scheduler = scheduler(512, 2, options.clone());
    let prompt = tokens(60, 1);
    let in_slot = Request { slot: Some(1), ..request(&prompt, 5) };
    let expected = run(&scheduler, in_slot);
    wait_until(&scheduler, "idle", |status| {
        status.slots[1].phase == SlotPhase::Idle && status.slots[1].n_tokens == 64
    });
    let saved = scheduler.save_slot(1, "one").unwrap();
    assert_eq!((saved.n_tokens, saved.n_bytes > 1000), (64, true));
    assert!(matches!(scheduler.save_slot(0, "one"), Err(SlotError::Empty { slot: 0 })));
    assert!(matches!(scheduler.save_slot(1, "../one"), Err(SlotError::BadName { .. })));
    assert!(matches!(scheduler.save_slot(2, "one"), Err(SlotError::NoSuchSlot { .. })));
    assert!(matches!(scheduler.restore_slot(0, "two"), Err(SlotError::File { .. })));
    assert_eq!(scheduler.erase_slot(1).unwrap().n_tokens, 64);
    assert!(matches!(scheduler.erase_slot(1), Err(SlotError::Empty { slot: 1 })));
    assert_eq!(run(&scheduler, request(&prompt, 5)).report().n_cached, 0);
    // A second scheduler stands for another run of the program.
    let other = super::scheduler(512, 2, options);
    assert_eq!(other.restore_slot(0, "one").unwrap().n_tokens, 64);
    let got = run(&other, request(&prompt, 5));
    assert_eq!((got.report().n_cached, got.tokens), (59, expected.tokens));
    std::fs::write(folder.path().join("slots/bad"), b"something else").unwrap();
    assert!(matches!(other.restore_slot(0, "bad"), Err(SlotError::Engine(_))));
    let without = super::scheduler(64, 1, SchedulerOptions::default());
    run(&without, request(&[400, 401], 1));
    assert!(matches!(without.save_slot(0, "one"), Err(SlotError::NoFolder)));
}
