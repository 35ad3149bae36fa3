//! A lost device, and a failed step.

use std::sync::Arc;

use engine::{Engine, EngineOptions};
use hal::{Backend, Bytes, Device, DeviceId};
use placement::Placement;
use runtime::devices;
use sim::{SimBackend, SimOptions};

use super::{answer, family_model, request, run, tokenizer_of, wait_until};
use crate::{EndReason, Scheduler, SchedulerOptions, SlotPhase};

fn simulated() -> (Scheduler, Arc<SimBackend>) {
    let model = family_model("llama-relu.gguf");
    let backend = SimBackend::new(SimOptions::default());
    let device = Device::new(Arc::clone(&backend) as Arc<dyn Backend>, DeviceId(1), Bytes::MAX);
    let options = EngineOptions { n_ctx: 512, n_ubatch: 16, n_seq: 3, ..Default::default() };
    let placement = Some(Placement::all_on(1, model.hyper.n_layer));
    let tokenizer = tokenizer_of(&model);
    let engine = Engine::load(
        Arc::new(model),
        vec![devices::cpu(Some(1)), device],
        options,
        placement,
        Arc::new(|_: &str| {}),
        &|_, _| {},
    );
    let scheduler = Scheduler::start(engine.unwrap(), tokenizer, SchedulerOptions::default());
    (scheduler.unwrap(), backend)
}

fn prompt(n: usize, seed: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i + seed * i + seed) % 60).collect()
}

#[test]
fn generations_outlive_a_lost_device() {
    let (scheduler, device) = simulated();
    run(&scheduler, request(&prompt(40, 9), 5));
    let running: Vec<_> =
        (0..3).map(|i| scheduler.submit(request(&prompt(30, i), 90)).unwrap()).collect();
    wait_until(&scheduler, "decoding", |status| status.counters.generated_tokens > 20);
    device.lose_now();
    for generation in &running {
        let answer = answer(generation);
        assert_eq!((answer.ended(), answer.tokens.len()), (EndReason::Length, 90));
    }
    // The idle sequences were lost with the device.
    let again = run(&scheduler, request(&prompt(40, 9), 5));
    assert_eq!(again.report().n_cached, 0);
    assert_eq!(scheduler.status().counters.n_failed, 0);
}

#[test]
fn an_error_fails_the_generation_and_not_the_scheduler() {
    let (scheduler, device) = simulated();
    let fail_once = || device.change_failures(|fail| fail.replay_error_after = Some(0));
    let expected = run(&scheduler, request(&prompt(10, 1), 60)).tokens;
    let alone = scheduler.submit(request(&prompt(10, 2), 400)).unwrap();
    wait_until(&scheduler, "decoding", |status| {
        status.slots.iter().any(|slot| slot.phase == SlotPhase::Decode)
    });
    fail_once();
    assert!(answer(&alone).failed.is_some());
    assert_eq!(scheduler.status().counters.n_failed, 1);
    // If a step with several generations fails, each generation is retried alone.
    let two: Vec<_> =
        (0..2).map(|_| scheduler.submit(request(&prompt(10, 1), 60)).unwrap()).collect();
    wait_until(&scheduler, "decoding together", |status| {
        status.slots.iter().filter(|slot| slot.n_generated > 3).count() >= 2
    });
    fail_once();
    for generation in &two {
        assert_eq!(answer(generation).tokens, expected);
    }
    assert_eq!(scheduler.status().counters.n_failed, 1);
}
