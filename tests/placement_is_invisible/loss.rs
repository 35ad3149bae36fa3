//! The loss of a device costs time, but does not change the output.

use std::sync::mpsc;

use super::*;

#[test]
fn generation_continues_after_the_loss_of_a_device() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        for lost_after in [0, 3, 17, 40, 90, 200, 333, 700] {
            for by_panic in [false, true] {
                let mut rng = ChaCha8Rng::seed_from_u64(lost_after);
                let delay = Duration::ZERO..Duration::from_micros(50);
                let (first, a) = sim_device(1, Bytes::MAX, delay.clone(), 1);
                let (_, b) = sim_device(2, Bytes::MAX, delay, 2);
                let placement = random_placement(&mut rng, &model, 3);
                let mut engine = load(&model, vec![cpu_device(2), a, b], Some(placement));
                if by_panic {
                    first.panic_after(lost_after)
                } else {
                    first.lose_after(lost_after)
                }
                let got = logits(&mut engine, &[3, 1, 6]);
                let difference = difference(&expected, &got);
                assert!(difference <= bound(Format::F16), "lost after {lost_after}: {difference}");
            }
        }
    });
}

/// Another thread simulates the loss of devices at random times: devices that are the home of
/// layers, have shares of layers, or have the head. A loss may also come while the model is loaded
/// again.
#[test]
fn devices_may_be_lost_at_any_moment() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(1)], None), &[23]);
        for round in 0..30 {
            let mut rng = ChaCha8Rng::seed_from_u64(round);
            let delay = Duration::ZERO..Duration::from_micros(60);
            let (first, a) = sim_device(1, Bytes::MAX, delay.clone(), round);
            let (second, b) = sim_device(2, Bytes(300_000), delay, round + 1);
            let mut placement = random_placement(&mut rng, &model, 3);
            // These layers hand off to another device, not only to the CPU.
            placement.layers[0] = deal_neurons(&model, &[1, 2, 0]);
            placement.layers[2] = deal_neurons(&model, &[2, 1]);
            let devices = vec![cpu_device(rng.random_range(1..4)), a, b];
            let mut engine = load(&model, devices, Some(placement));
            let (stop, stopped) = mpsc::channel::<()>();
            let times = [0; 2].map(|_| Duration::from_micros(rng.random_range(0..20_000)));
            let second_too = rng.random_bool(0.6);
            let killer = std::thread::spawn(move || {
                let _ = stopped.recv_timeout(times[0]);
                first.lose_now();
                if second_too {
                    let _ = stopped.recv_timeout(times[1]);
                    second.lose_now();
                }
            });
            for pieces in [[3, 1, 6], [1, 1, 1], [16, 2, 1]] {
                let difference = difference(&expected, &logits(&mut engine, &pieces));
                assert!(difference <= bound(Format::F16), "round {round}: {difference}");
            }
            drop(stop);
            killer.join().unwrap();
        }
    });
}

#[test]
fn a_second_loss_may_occur_during_recovery() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        for after in (0..160).step_by(13) {
            let no_delay = Duration::ZERO..Duration::ZERO;
            let (first, a) = sim_device(1, Bytes::MAX, no_delay.clone(), 1);
            let (second, b) = sim_device(2, Bytes::MAX, no_delay, 2);
            let mut engine = load(&model, vec![cpu_device(2), a, b], Some(Placement::all_on(1, 3)));
            first.lose_after(70);
            // The second device has no work before the first is lost, so its own loss comes during
            // loading or later.
            second.lose_after(after);
            let got = logits(&mut engine, &[2, 3]);
            assert!(difference(&expected, &got) <= bound(Format::F16), "after {after}");
        }
    });
}

#[test]
fn sequences_from_before_a_loss_do_not_affect_others() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let interrupt = AtomicBool::new(false);
        let fill = |engine: &mut Engine, sequence: &mut thermocline::engine::Sequence, n: usize| {
            let text = TEXT.iter().copied().cycle().take(n).collect::<Vec<_>>();
            let mut row = Vec::new();
            let sink = &mut |_: usize, logits: &[f32]| row = logits.to_vec();
            engine.feed(sequence, &text, LogitsRequest::Last, &interrupt, sink).map(|_| vec![row])
        };
        let mut plain = load(&model, vec![cpu_device(2)], None);
        let mut sequence = plain.new_sequence();
        let expected = fill(&mut plain, &mut sequence, 32).unwrap();
        for shorten in [false, true] {
            let (sim, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
            let mut engine = load(&model, vec![cpu_device(2), device], None);
            // The cache has three blocks.
            let (mut asleep, mut awake) = (engine.new_sequence(), engine.new_sequence());
            fill(&mut engine, &mut asleep, 32).unwrap();
            sim.lose_now();
            fill(&mut engine, &mut awake, 32).unwrap();
            if shorten {
                engine.truncate(&mut asleep, 0);
            }
            drop(asleep);
            let mut others = [engine.new_sequence(), engine.new_sequence()];
            for other in &mut others {
                let got = fill(&mut engine, other, 32).unwrap();
                assert!(difference(&expected, &got) <= bound(Format::F16));
            }
            // No block was allocated twice: there is no fourth block.
            let mut fourth = engine.new_sequence();
            let full = fill(&mut engine, &mut fourth, 1);
            assert!(
                matches!(full, Err(thermocline::engine::Error::ContextFull { .. })),
                "{full:?}"
            );
            let [other, _] = others;
            drop(other);
            fill(&mut engine, &mut awake, 32).unwrap();
        }
    });
}

#[test]
fn a_device_lost_while_loading_is_dropped() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        let no_delay = Duration::ZERO..Duration::ZERO;
        let (first, a) = sim_device(1, Bytes::MAX, no_delay.clone(), 1);
        let (_, b) = sim_device(2, Bytes::MAX, no_delay, 2);
        first.lose_now();
        let mut engine = load(&model, vec![cpu_device(2), a, b], None);
        assert!(engine.placement().layers.iter().all(|layer| layer.home == 2));
        assert!(difference(&expected, &logits(&mut engine, &[23])) <= bound(Format::F16));
    });
}
