//! Hand-offs that end early: by an interrupt, by an error, or by a panic on the host.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hal::DeviceKind;
use thermocline::engine::{Error, ObservedBlock};

use super::*;

#[test]
fn an_interrupt_leaves_the_sequence_unchanged() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[1]);
        let (_, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::from_micros(300), 5);
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut placement = random_placement(&mut rng, &model, 2);
        let half = |range: Range<u32>| Neurons::List(range.collect());
        placement.layers[1] = LayerPlacement {
            home: 1,
            shares: vec![
                Share { device: 1, neurons: half(0..40) },
                Share { device: 0, neurons: half(40..96) },
            ],
        };
        let mut engine = load(&model, vec![cpu_device(2), device], Some(placement));
        let mut sequence = engine.new_sequence();
        for (i, &token) in TEXT.iter().enumerate() {
            let stop = AtomicBool::new(true);
            let stopped =
                engine.feed(&mut sequence, &[token], LogitsRequest::Last, &stop, &mut |_, _| {});
            assert!(matches!(stopped, Err(thermocline::engine::Error::Interrupted)), "{stopped:?}");
            assert_eq!(sequence.tokens(), &TEXT[..i]);
            let interrupt = AtomicBool::new(false);
            let mut row = Vec::new();
            let sink = &mut |_: usize, logits: &[f32]| row = logits.to_vec();
            engine.feed(&mut sequence, &[token], LogitsRequest::Last, &interrupt, sink).unwrap();
            let rows = |row: &Vec<f32>| vec![row.clone()];
            assert!(
                difference(&rows(&expected[i]), &rows(&row)) <= bound(Format::F16),
                "token {i}"
            );
        }
    });
}

/// The host panics or fails between a post and its reply, while another device computes its share.
#[test]
fn a_host_failure_in_a_hand_off_leaves_no_device_waiting() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        for by_panic in [true, false] {
            let options =
                SimOptions { name: "CPU".into(), kind: DeviceKind::Cpu, ..SimOptions::default() };
            let cpu = SimBackend::new(options);
            let host = Device::new(Arc::clone(&cpu) as Arc<dyn Backend>, DeviceId(0), Bytes::MAX);
            let delay = Duration::ZERO..Duration::from_micros(80);
            let (_, a) = sim_device(1, Bytes::MAX, delay.clone(), 1);
            let (_, b) = sim_device(2, Bytes::MAX, delay, 2);
            let layers = [[1, 2, 0], [2, 0, 1], [1, 0, 2]]
                .map(|devices| deal_neurons(&model, &devices))
                .into();
            let placement = Placement { embed: 0, head: 2, layers };
            let devices = vec![host, a, b];
            let mut engine = load(&model, devices, Some(placement));
            let mut sequence = engine.new_sequence();
            let interrupt = AtomicBool::new(false);
            // In a step, the CPU replays the embedding, then its share of each layer.
            for (i, &token) in TEXT[..12].iter().enumerate() {
                cpu.change_failures(|fail| {
                    let after = if by_panic {
                        &mut fail.replay_panic_after
                    } else {
                        &mut fail.replay_error_after
                    };
                    *after = Some(i as u64 % 4);
                });
                let failed = catch_unwind(AssertUnwindSafe(|| {
                    engine.feed(
                        &mut sequence,
                        &[token],
                        LogitsRequest::Last,
                        &interrupt,
                        &mut |_, _| {},
                    )
                }));
                match (by_panic, failed) {
                    (true, Err(_)) => {}
                    (false, Ok(Err(Error::Device(hal::Error::Driver { .. })))) => {}
                    (_, other) => panic!("token {i}: {other:?}"),
                }
                assert_eq!(sequence.tokens(), &TEXT[..i]);
                let mut row = vec![Vec::new()];
                let sink = &mut |_: usize, logits: &[f32]| row[0] = logits.to_vec();
                engine
                    .feed(&mut sequence, &[token], LogitsRequest::Last, &interrupt, sink)
                    .unwrap();
                let expected = vec![expected[i].clone()];
                assert!(difference(&expected, &row) <= bound(Format::F16), "token {i}");
            }
        }
    });
}

/// An engine whose layers are split between a device and the CPU.
fn split_engine(model: &Arc<Model>) -> Engine {
    let (_, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::from_micros(50), 3);
    let layers = vec![deal_neurons(model, &[1, 0]); 3];
    let placement = Placement { embed: 1, head: 1, layers };
    load(model, vec![cpu_device(2), device], Some(placement))
}

#[test]
fn a_panic_of_an_observer_leaves_the_sequence_unchanged() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[1]);
        let mut engine = split_engine(&model);
        let (mut sequence, mut other) = (engine.new_sequence(), engine.new_sequence());
        let interrupt = AtomicBool::new(false);
        for (i, &token) in TEXT[..6].iter().enumerate() {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let sink = &mut |_: usize, _: &ObservedBlock<'_>| {
                    std::panic::resume_unwind(Box::new("planted"));
                };
                engine.observe(&mut sequence, &[token], &interrupt, sink)
            }));
            assert!(panicked.is_err());
            assert_eq!(sequence.tokens(), &TEXT[..i]);
            // Two sequences, which must not share blocks of the KV cache.
            for sequence in [&mut sequence, &mut other] {
                let mut row = vec![Vec::new()];
                let sink = &mut |_: usize, logits: &[f32]| row[0] = logits.to_vec();
                engine.feed(sequence, &[token], LogitsRequest::Last, &interrupt, sink).unwrap();
                assert!(difference(&vec![expected[i].clone()], &row) <= bound(Format::F16));
            }
        }
    });
}

#[test]
fn a_panic_of_the_logits_callback_leaves_the_sequence_unchanged() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[1]);
        let mut engine = split_engine(&model);
        let mut sequence = engine.new_sequence();
        let interrupt = AtomicBool::new(false);
        for (i, &token) in TEXT.iter().enumerate() {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let sink =
                    &mut |_: usize, _: &[f32]| std::panic::resume_unwind(Box::new("planted"));
                engine.feed(&mut sequence, &[token], LogitsRequest::Last, &interrupt, sink)
            }));
            assert!(panicked.is_err());
            assert_eq!(sequence.tokens(), &TEXT[..i]);
            let mut row = vec![Vec::new()];
            let sink = &mut |_: usize, logits: &[f32]| row[0] = logits.to_vec();
            engine.feed(&mut sequence, &[token], LogitsRequest::Last, &interrupt, sink).unwrap();
            assert!(difference(&vec![expected[i].clone()], &row) <= bound(Format::F16));
        }
    });
}
