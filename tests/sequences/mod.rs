//! Several sequences in one engine have the same logits as each sequence in an engine of its own.

mod campaign;
mod cuts;
mod schedules;

pub(crate) use schedules::on_device;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hal::Bytes;
use hal::format::Format;
use thermocline::engine::{
    Engine, EngineOptions, Error, Feed, LogitsRequest, NotRestored, Sequence,
};
use thermocline::model::Model;
use thermocline::placement::Placement;

use crate::placement_is_invisible::{Logits, cpu_device, ignore_notices, logits_of, sim_device};
use crate::support::{Tiny, within};

const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn options(n_seq: usize) -> EngineOptions {
    EngineOptions { n_ctx: 384, n_ubatch: 16, n_seq, ..EngineOptions::default() }
}

pub(super) fn load(
    model: &Arc<Model>,
    devices: Vec<hal::Device>,
    options: EngineOptions,
    placement: Option<Placement>,
) -> Engine {
    Engine::load(Arc::clone(model), devices, options, placement, ignore_notices(), &|_, _| {})
        .unwrap()
}

/// Feeds one sequence; returns the logits of every token.
pub(super) fn feed(engine: &mut Engine, sequence: &mut Sequence, ids: &[u32]) -> Vec<Vec<f32>> {
    let (mut all, interrupt) = (Vec::new(), AtomicBool::new(false));
    engine
        .feed(sequence, ids, LogitsRequest::All, &interrupt, &mut |_, row| all.push(row.to_vec()))
        .unwrap();
    all
}

fn text(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 7 * seed + i * seed) % 80) as u32).collect()
}

#[test]
fn a_batched_step_has_the_bits_of_single_sequences() {
    within(LIMIT, || {
        for activation in ["relu", "silu"] {
            let model = Tiny { activation, format: Format::Q4_0, ..Tiny::default() }.model();
            let mut alone = load(&model, vec![cpu_device(2)], options(1), None);
            let texts: Vec<_> =
                [40, 1, 7, 16].iter().enumerate().map(|(i, &n)| text(n, i)).collect();
            let expected: Vec<_> =
                texts.iter().map(|text| logits_of(&mut alone, text, &[text.len()])).collect();
            let mut engine = load(&model, vec![cpu_device(2)], options(4), None);
            let mut sequences: Vec<_> = texts.iter().map(|_| engine.new_sequence()).collect();
            let mut feeds: Vec<_> = sequences
                .iter_mut()
                .zip(&texts)
                .map(|(sequence, tokens)| Feed { sequence, tokens, want: LogitsRequest::All })
                .collect();
            let mut got = vec![Vec::new(); texts.len()];
            let sink = &mut |index: usize, position: usize, row: &[f32]| {
                assert_eq!(got[index].len(), position);
                got[index].push(row.to_vec());
            };
            engine.step(&mut feeds, &AtomicBool::new(false), sink).unwrap();
            assert!(feeds.iter().all(|feed| feed.tokens.is_empty()));
            assert_eq!(got, expected, "{activation}");
            for (sequence, text) in sequences.iter().zip(&texts) {
                assert_eq!(sequence.tokens(), text);
            }
        }
    });
}

#[test]
fn forks_share_the_cache_until_they_write() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        // Three blocks: a second copy of the 70 tokens would not fit.
        let options = EngineOptions { n_ctx: 128, ..options(2) };
        let mut engine = load(&model, vec![cpu_device(1)], options, None);
        let mut alone = load(&model, vec![cpu_device(1)], crate::sequences::options(1), None);
        let (prefix, ends) = (text(70, 1), [text(9, 2), text(9, 3)]);
        let mut parent = engine.new_sequence();
        feed(&mut engine, &mut parent, &prefix);
        let mut fork = engine.fork(&parent);
        assert_eq!(fork.tokens(), prefix);
        let got = [&mut parent, &mut fork]
            .into_iter()
            .zip(&ends)
            .map(|(sequence, end)| feed(&mut engine, sequence, end))
            .collect::<Vec<_>>();
        for (got, end) in got.iter().zip(&ends) {
            let whole = [&prefix[..], end].concat();
            let expected = logits_of(&mut alone, &whole, &[16]);
            assert_eq!(*got, expected[prefix.len()..]);
        }
        // No block is left for a third sequence until one of the two is dropped.
        let mut third = engine.new_sequence();
        let interrupt = AtomicBool::new(false);
        let full = engine.feed(&mut third, &[1], LogitsRequest::Last, &interrupt, &mut |_, _| {});
        assert!(matches!(full, Err(Error::ContextFull { .. })), "{full:?}");
        drop(fork);
        assert_eq!(feed(&mut engine, &mut third, &[1]).len(), 1);
        assert_eq!(engine.truncate(&mut parent, 10), 10);
        assert_eq!(feed(&mut engine, &mut third, &text(60, 4)).len(), 60);
    });
}

#[test]
fn saved_sequences_continue_on_another_device() {
    within(LIMIT, || {
        for (seed, format) in
            [(1, Format::F16), (2, Format::Q8_0), (3, Format::Q4_0), (4, Format::IQ4_NL)]
        {
            let model = Tiny { seed, n_head: 2, ..Tiny::default() }.model();
            let options = EngineOptions { kv_formats: hal::KvCache::both(format), ..options(2) };
            let mut engine = load(&model, vec![cpu_device(1)], options.clone(), None);
            let mut sequence = engine.new_sequence();
            feed(&mut engine, &mut sequence, &text(45, 1));
            let saved = engine.save(&sequence).unwrap();
            let expected = feed(&mut engine, &mut sequence, &text(5, 2));
            let mut again = engine.restore(&saved).unwrap();
            assert_eq!(again.tokens(), text(45, 1));
            assert_eq!(feed(&mut engine, &mut again, &text(5, 2)), expected);
            let (_, sim) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
            let placement = Some(Placement::all_on(1, 3));
            let mut other = load(&model, vec![cpu_device(1), sim], options.clone(), placement);
            let mut there = other.restore(&saved).unwrap();
            let resaved = other.save(&there).unwrap();
            assert_eq!(resaved, saved);
            let got = feed(&mut other, &mut there, &text(5, 2));
            let difference = crate::placement_is_invisible::difference(&expected, &got);
            assert!(difference <= 2e-3, "{difference}");
            let wider = EngineOptions { kv_formats: hal::KvCache::both(Format::F32), ..options };
            let mut wider = load(&model, vec![cpu_device(1)], wider, None);
            let error = wider.restore(&saved).unwrap_err();
            assert!(matches!(error, Error::NotRestored(NotRestored::Fingerprint)), "{error}");
        }
    });
}

/// Logits over each cache differ from those over F32 by the rounding of the format, equally in
/// prefill, in decode and on another device. Attention with random weights amplifies it: the
/// normalised squared error is tens of times that of the stored values.
#[test]
fn quantised_caches_change_logits_by_their_rounding() {
    within(LIMIT, || {
        let model = Tiny { n_head: 2, n_embd: 128, ..Tiny::default() }.model();
        let ids = text(90, 3);
        let logits = |k: Format, v: Format, on_sim: bool, pieces: &[usize]| {
            let kv_formats = hal::KvCache { k, v };
            let options = EngineOptions { kv_formats, n_ubatch: 64, ..options(1) };
            let (devices, placement) = if on_sim {
                let (_, sim) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
                (vec![cpu_device(1), sim], Some(Placement::all_on(1, 3)))
            } else {
                (vec![cpu_device(2)], None)
            };
            logits_of(&mut load(&model, devices, options, placement), &ids, pieces)
        };
        let exact = logits(Format::F32, Format::F32, false, &[64, 1]);
        let error = |got: &Logits| {
            let pairs = || exact.iter().flatten().zip(got.iter().flatten());
            let squares: f64 = pairs().map(|(a, b)| f64::from(a - b).powi(2)).sum();
            squares / pairs().map(|(a, _)| f64::from(*a).powi(2)).sum::<f64>()
        };
        use Format::{F16, IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
        for (k, v, most) in [
            (Q8_0, Q8_0, 1.2e-3),
            (Q5_1, Q5_1, 0.05),
            (Q5_0, Q5_0, 0.05),
            (Q4_1, Q4_1, 0.18),
            (Q4_0, Q4_0, 0.18),
            (IQ4_NL, IQ4_NL, 0.18),
            (F16, Q4_0, 0.08),
            (Q8_0, Q5_1, 0.015),
        ] {
            let [prefill, decode] = [&[64][..], &[1]].map(|part| error(&logits(k, v, false, part)));
            let on_sim = error(&logits(k, v, true, &[64, 1]));
            for error in [prefill, decode, on_sim] {
                assert!(error < most && error > most / 3.0, "{k} {v}: {error} of {most}");
            }
        }
    });
}

#[test]
fn damaged_and_hostile_bytes_are_refused() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let mut engine = load(&model, vec![cpu_device(1)], options(1), None);
        let mut sequence = engine.new_sequence();
        feed(&mut engine, &mut sequence, &text(5, 1));
        let saved = engine.save(&sequence).unwrap();
        for at in (0..saved.len()).step_by(13) {
            let mut bytes = saved.clone();
            bytes[at] ^= 1;
            assert!(matches!(engine.restore(&bytes), Err(Error::NotRestored(_))), "byte {at}");
            assert!(engine.restore(&saved[..at]).is_err(), "cut at {at}");
        }
        // With a correct checksum the counts are checked too.
        for (at, value) in [(16, u32::MAX), (20, u32::MAX), (16, 4), (20, 4), (20, 6), (24, 80)] {
            let mut bytes = saved.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let end = bytes.len() - 8;
            let sum = sum(&bytes[..end]);
            bytes[end..].copy_from_slice(&sum.to_le_bytes());
            assert!(engine.restore(&bytes).is_err(), "{value} at {at}");
        }
        assert_eq!(engine.restore(&saved).unwrap().tokens(), text(5, 1));
    });
}

/// The checksum of saved sequences, by its definition.
fn sum(bytes: &[u8]) -> u64 {
    let word =
        |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = words.iter().fold(0, |sum, bytes| word(sum, u64::from_le_bytes(*bytes)));
    let sum = word(word(sum, u64::from_le_bytes(last)), bytes.len() as u64);
    (sum ^ (sum >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (sum >> 29)
}

#[test]
fn an_interrupted_step_leaves_all_sequences_unchanged() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let mut engine = load(&model, vec![cpu_device(1)], options(2), None);
        let (mut a, mut b) = (engine.new_sequence(), engine.new_sequence());
        feed(&mut engine, &mut a, &[1, 2, 3]);
        let mut step = |engine: &mut Engine, stop: bool| {
            let mut rows = Vec::new();
            let mut feeds = [
                Feed { sequence: &mut a, tokens: &[4], want: LogitsRequest::Last },
                Feed { sequence: &mut b, tokens: &[5, 6], want: LogitsRequest::Last },
            ];
            let sink = &mut |index: usize, _: usize, row: &[f32]| rows.push((index, row.to_vec()));
            let ran = engine.step(&mut feeds, &AtomicBool::new(stop), sink).map(|_| ());
            let lens = feeds.map(|feed| feed.sequence.tokens().len());
            (ran, rows, lens)
        };
        let (ran, rows, lens) = step(&mut engine, true);
        assert!(matches!(ran, Err(Error::Interrupted)), "{ran:?}");
        assert_eq!((rows.len(), lens), (0, [3, 0]));
        let (ran, rows, lens) = step(&mut engine, false);
        ran.unwrap();
        let mut alone = load(&model, vec![cpu_device(1)], options(1), None);
        let expected = [(0, &[1, 2, 3, 4][..]), (1, &[5, 6])]
            .map(|(index, ids)| (index, logits_of(&mut alone, ids, &[4]).pop().unwrap()));
        assert_eq!((&rows[..], lens), (&expected[..], [4, 2]));
    });
}

/// A prompt that is interrupted at some moment and fed again has the bits of an uninterrupted one.
#[test]
fn a_prompt_interrupted_at_any_moment_continues_with_the_same_bits() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let ids = text(320, 3);
        let options = EngineOptions { n_ubatch: 64, ..options(1) };
        let mut engine = load(&model, vec![cpu_device(2)], options, None);
        let mut feed = |sequence: &mut Option<Sequence>, interrupt: &AtomicBool| {
            let sequence = sequence.get_or_insert_with(|| engine.new_sequence());
            let (mut last, rest) = (Vec::new(), &ids[sequence.tokens().len()..]);
            let keep = &mut |_: usize, row: &[f32]| last = row.to_vec();
            let fed = engine.feed(sequence, rest, LogitsRequest::Last, interrupt, keep);
            fed.map(|_| last)
        };
        let never = AtomicBool::new(false);
        let expected = feed(&mut None, &never).unwrap();
        let mut n_interrupted = 0;
        for delay in (0..200).map(|i| Duration::from_micros(20 * i)) {
            let mut sequence = None;
            let interrupt = AtomicBool::new(false);
            let fed = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(delay);
                    interrupt.store(true, Ordering::Relaxed);
                });
                feed(&mut sequence, &interrupt)
            });
            let last = match fed {
                Err(Error::Interrupted) => {
                    n_interrupted += 1;
                    feed(&mut sequence, &never).unwrap()
                }
                fed => fed.unwrap(),
            };
            assert!(last == expected, "interrupted after {delay:?}");
        }
        assert!(n_interrupted > 0);
    });
}
