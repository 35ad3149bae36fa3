//! Random schedules: requests with common prefixes, some of them cancelled, with a small KV cache
//! and a disk cache. Every text must equal that of its request alone, and no blocks may leak.

use std::collections::HashMap;

use hal::Bytes;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{answers, request, run, scheduler, tokens, wait_until};
use crate::{EndReason, Generation, SchedulerOptions};

/// A prompt of up to three parts from a small set, so that many prompts have common prefixes.
fn prompt(rng: &mut ChaCha8Rng) -> Vec<u32> {
    let mut prompt = Vec::new();
    for part in 0..rng.random_range(1..=3) {
        let which = rng.random_range(0..3);
        prompt.extend(tokens(10 + 13 * which + 5 * part, 1 + which + 10 * part));
    }
    prompt
}

#[test]
fn random_schedules_give_the_texts_of_single_runs() {
    let folder = tempfile::tempdir().unwrap();
    let alone = scheduler(512, 1, SchedulerOptions { cache_reuse: false, ..Default::default() });
    let mut known: HashMap<(Vec<u32>, usize), Vec<u32>> = HashMap::new();
    for seed in 0..3 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let disk_cache = Some((folder.path().to_owned(), Bytes(4 << 20)));
        let options =
            SchedulerOptions { disk_cache, prefill_piece: Some(16), ..Default::default() };
        let scheduler = scheduler(320, 3, options);
        let mut open: Vec<(Generation, Vec<u32>, usize)> = Vec::new();
        let (mut n_submitted, mut n_ended) = (0, 0);
        while n_submitted < 40 || !open.is_empty() {
            let action = rng.random_range(0..10);
            if n_submitted < 40 && (action < 6 || open.is_empty()) {
                let (prompt, n) = (prompt(&mut rng), rng.random_range(1..60));
                open.push((scheduler.submit(request(&prompt, n)).unwrap(), prompt, n));
                n_submitted += 1;
            } else if action < 8 {
                let (generation, ..) = open.swap_remove(rng.random_range(0..open.len()));
                drop(generation);
            } else {
                let (generation, prompt, n) = open.swap_remove(rng.random_range(0..open.len()));
                let got = answers(&generation, 1).remove(0);
                assert_eq!(got.ended(), EndReason::Length);
                let expected = known
                    .entry((prompt, n))
                    .or_insert_with_key(|(prompt, n)| run(&alone, request(prompt, *n)).tokens);
                assert_eq!(got.tokens, *expected, "seed {seed}");
                n_ended += 1;
            }
        }
        let status = wait_until(&scheduler, "all ended", |status| {
            status.counters.n_finished == 40 && status.n_queued == 0 && status.n_paused == 0
        });
        assert!(n_ended > 3 && status.counters.n_failed == 0, "{n_ended}: {status:?}");
        assert!(status.counters.cached_tokens > 0);
        // Only idle sequences hold blocks now, so a long prompt can evict them.
        assert_eq!(run(&scheduler, request(&tokens(310, 99), 9)).ended(), EndReason::Length);
    }
}
