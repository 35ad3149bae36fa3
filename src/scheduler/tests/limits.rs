//! Limits: the queue, the KV cache, time, the end of the program.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::{answer, request, run, scheduler, tokens, wait_until};
use crate::{EndReason, Event, Request, SchedulerOptions, SlotPhase, SubmitError};

#[test]
fn a_dropped_generation_frees_its_slot() {
    let scheduler = scheduler(2048, 1, SchedulerOptions::default());
    let long = scheduler.submit(request(&tokens(20, 1), 2000)).unwrap();
    let n = long.into_iter().filter(|u| matches!(u.event, Event::Token(_))).take(5).count();
    assert_eq!(n, 5);
    let status = wait_until(&scheduler, "idle", |status| {
        status.slots[0].phase == SlotPhase::Idle && status.counters.n_finished == 1
    });
    assert!(status.counters.generated_tokens < 1900);
    // Dropping a waiting generation removes its request from the queue.
    let _running = scheduler.submit(request(&tokens(20, 2), 1900)).unwrap();
    let waiting = scheduler.submit(request(&tokens(20, 3), 5)).unwrap();
    wait_until(&scheduler, "queued", |status| status.n_queued == 1);
    drop(waiting);
    wait_until(&scheduler, "cancelled", |status| status.n_queued == 0);
}

#[test]
fn a_full_queue_refuses_requests() {
    let options = SchedulerOptions { max_queued: 2, ..SchedulerOptions::default() };
    let scheduler = scheduler(2048, 1, options);
    let running = scheduler.submit(request(&tokens(20, 1), 1900)).unwrap();
    wait_until(&scheduler, "running", |status| status.slots[0].phase == SlotPhase::Decode);
    let waiting: Vec<_> =
        (0..2).map(|i| scheduler.submit(request(&tokens(20, i), 3)).unwrap()).collect();
    let full = scheduler.submit(request(&tokens(20, 4), 3)).unwrap_err();
    assert_eq!(full, SubmitError::QueueFull { n_queued: 2 });
    drop(running);
    for generation in &waiting {
        assert_eq!(answer(generation).ended(), EndReason::Length);
    }
    assert_eq!(run(&scheduler, request(&tokens(20, 4), 3)).ended(), EndReason::Length);
}

#[test]
fn free_slots_take_more_requests_than_the_queue() {
    let options = SchedulerOptions { max_queued: 1, ..SchedulerOptions::default() };
    let scheduler = scheduler(2048, 4, options);
    for _ in 0..3 {
        // Submit requests faster than the thread takes them.
        let burst: Vec<_> =
            (0..5).map(|i| scheduler.submit(request(&tokens(20, i), 400)).unwrap()).collect();
        let full = scheduler.submit(request(&tokens(20, 9), 3)).unwrap_err();
        assert_eq!(full, SubmitError::QueueFull { n_queued: 1 });
        for generation in &burst {
            assert_eq!(answer(generation).ended(), EndReason::Length);
        }
    }
}

#[test]
fn the_time_of_a_short_prompt_counts_as_prefill() {
    let scheduler = scheduler(512, 1, SchedulerOptions::default());
    run(&scheduler, request(&tokens(9, 1), 1));
    let counters = scheduler.status().counters;
    assert_eq!(counters.prompt_tokens, 9);
    assert!(counters.prompt_time > Duration::ZERO, "{counters:?}");
    assert_eq!(counters.generated_time, Duration::ZERO, "the token came from the prompt");
    run(&scheduler, request(&tokens(70, 2), 6));
    let counters = scheduler.status().counters;
    assert!(counters.generated_time > Duration::ZERO);
    assert_eq!(counters.n_tokens_max, 75, "the last token is not computed");
}

#[test]
fn the_youngest_generation_is_paused_when_blocks_run_out() {
    // The cache has 16 blocks; four sequences of 210 tokens need 28.
    let small = scheduler(512, 4, SchedulerOptions::default());
    let large = scheduler(4 * 512, 1, SchedulerOptions::default());
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| tokens(10 + i, i + 1)).collect();
    let running: Vec<_> =
        prompts.iter().map(|prompt| small.submit(request(prompt, 200)).unwrap()).collect();
    let got: Vec<_> = running.iter().map(answer).collect();
    for (got, prompt) in got.iter().zip(&prompts) {
        let expected = run(&large, request(prompt, 200));
        assert_eq!((&got.tokens, got.ended()), (&expected.tokens, EndReason::Length));
    }
    let counters = small.status().counters;
    assert!(counters.n_paused > 0 && counters.recomputed_tokens > 0, "{counters:?}");
    assert_eq!(
        got.iter().map(|answer| answer.report().n_paused as u64).sum::<u64>(),
        counters.n_paused
    );
    assert_eq!((got[0].report().n_paused, counters.n_failed), (0, 0));
    assert_eq!(counters.prompt_tokens, 10 + 11 + 12 + 13);
}

#[test]
fn a_request_larger_than_the_free_blocks_waits() {
    let scheduler = scheduler(256, 2, SchedulerOptions::default());
    let first = scheduler.submit(request(&tokens(150, 1), 60)).unwrap();
    let second = scheduler.submit(request(&tokens(150, 2), 60)).unwrap();
    let third = scheduler.submit(request(&tokens(5, 3), 5)).unwrap();
    let [first, second, third] = [first, second, third].map(|generation| answer(&generation));
    assert_eq!([&first, &second, &third].map(|a| a.ended()), [EndReason::Length; 3]);
    assert!(second.report().times.queued >= first.report().times.generated);
    assert!(third.report().times.queued >= first.report().times.generated, "in order of arrival");
    assert_eq!(scheduler.status().counters.n_paused, 0);
}

#[test]
fn a_deadline_also_ends_a_waiting_generation() {
    let scheduler = scheduler(4096, 1, SchedulerOptions::default());
    let after = |ms| Some(Instant::now() + Duration::from_millis(ms));
    let running = Request { deadline: after(2000), ..request(&tokens(5, 1), 4000) };
    let running = scheduler.submit(running).unwrap();
    let waiting = Request { deadline: after(20), ..request(&tokens(5, 2), 4000) };
    let waiting = answer(&scheduler.submit(waiting).unwrap());
    assert_eq!((waiting.ended(), waiting.tokens.len()), (EndReason::Deadline, 0));
    let running = answer(&running);
    assert!(running.ended() == EndReason::Deadline && !running.tokens.is_empty());
}

#[test]
fn shutting_down_lets_running_generations_end() {
    let scheduler = scheduler(512, 1, SchedulerOptions::default());
    let running = scheduler.submit(request(&tokens(5, 1), 400)).unwrap();
    let waiting = scheduler.submit(request(&tokens(5, 2), 400)).unwrap();
    wait_until(&scheduler, "running", |status| status.slots[0].phase == SlotPhase::Decode);
    scheduler.shutdown(Duration::from_secs(60));
    assert_eq!(answer(&running).tokens.len(), 400);
    assert!(answer(&waiting).failed.unwrap().contains("shutting down"));
    assert!(scheduler.status().shutting_down && scheduler.status().healthy);

    let other = super::scheduler(4096, 1, SchedulerOptions::default());
    let cut = other.submit(request(&tokens(5, 1), 4000)).unwrap();
    wait_until(&other, "running", |status| status.slots[0].phase == SlotPhase::Decode);
    // Dropping the last handle stops the scheduler.
    drop(other);
    let cut = answer(&cut);
    assert!(cut.ended() == EndReason::Shutdown && cut.tokens.len() < 4000);
}

#[test]
fn a_panic_fails_all_generations_and_later_requests() {
    let scheduler = scheduler(2048, 2, SchedulerOptions::default());
    let other = scheduler.submit(request(&tokens(5, 1), 2000)).unwrap();
    let sink = |update: crate::Update| -> ControlFlow<()> {
        assert!(!matches!(update.event, Event::Token(_)), "a sink of a test");
        ControlFlow::Continue(())
    };
    let _ticket = scheduler.submit_to(request(&tokens(5, 2), 20), Box::new(sink)).unwrap();
    assert_eq!(answer(&other).failed.as_deref(), Some("the scheduler has failed"));
    wait_until(&scheduler, "unhealthy", |status| !status.healthy);
    let refused = scheduler.submit(request(&tokens(5, 3), 2)).unwrap_err();
    assert_eq!(refused, SubmitError::Unhealthy);
    assert!(scheduler.erase_slot(0).is_err());
}
