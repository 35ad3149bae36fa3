//! Families whose layers remember earlier tokens in other ways than a whole KV cache: however a text
//! is cut into steps, and whatever the sequence did before, the logits have the same bits.

use std::sync::Arc;
use std::time::Duration;

use hal::op::Window;
use hal::{Bytes, Device};
use thermocline::engine::{Engine, EngineOptions, Sequence, state_bytes};
use thermocline::model::{Mixer, Model};
use thermocline::placement::Placement;

use super::{feed, load, options, text};
use crate::families::all_models;
use crate::placement_is_invisible::{Logits, cpu_device, sim_device};
use crate::support::within;

/// More than a window, and than a block of the KV cache.
const N_TOKENS: usize = 40;
/// Maximum number of positions of a window. It divides neither the size of a block nor of a step.
const WINDOW: usize = 11;
/// Tokens that a sequence reads and then forgets.
const N_OTHERS: usize = 9;

/// What a sequence has done when it has `at` tokens of the text and reads the others.
#[derive(Clone, Copy, Debug)]
enum History {
    /// It has read them in a step of their own.
    Cut,
    /// It was truncated after it had read the whole text.
    Truncated,
    /// It has read other tokens after a checkpoint, and was rolled back.
    RolledBack,
    /// It is a fork of a sequence that then read other tokens.
    Forked,
    /// It was saved, and restored in another engine.
    Restored,
}

const HISTORIES: [History; 5] =
    [History::Cut, History::Truncated, History::RolledBack, History::Forked, History::Restored];

/// How the layers of a model remember earlier tokens.
fn kinds(model: &Model) -> [bool; 6] {
    let attentions = || model.layers.iter().filter_map(|layer| layer.attention());
    let windows = || attentions().filter_map(|attention| attention.sizes.window);
    [
        model.layers.iter().any(|layer| state_bytes(layer) > Bytes(0)),
        windows().any(|window| matches!(window, Window::Sliding(_))),
        windows().any(|window| matches!(window, Window::Chunk(_))),
        model.layers.iter().any(|layer| layer.frame.mixer.kv_source().is_some()),
        attentions().any(|attention| attention.sizes.d_latent > 0),
        attentions().any(|attention| attention.sparse.is_some()),
    ]
}

/// A sequence with the first `at` tokens of `ids`.
fn with_history(
    engine: &mut Engine,
    other: &mut Engine,
    ids: &[u32],
    (history, at): (History, usize),
) -> Sequence {
    let mut sequence = engine.new_sequence();
    let others: Vec<u32> = ids.iter().take(N_OTHERS).map(|id| id + 1).collect();
    match history {
        History::Cut => {
            feed(engine, &mut sequence, &ids[..at]);
        }
        History::Truncated => {
            feed(engine, &mut sequence, ids);
            engine.truncate(&mut sequence, at);
        }
        History::RolledBack => {
            feed(engine, &mut sequence, &ids[..at]);
            assert!(engine.checkpoint(&mut sequence).unwrap());
            feed(engine, &mut sequence, &others);
            assert_eq!(engine.truncate(&mut sequence, at), at, "the checkpoint is used");
        }
        History::Forked => {
            let mut parent = engine.new_sequence();
            feed(engine, &mut parent, &ids[..at]);
            sequence = engine.fork(&parent);
            feed(engine, &mut parent, &others);
        }
        History::Restored => {
            let mut saved = other.new_sequence();
            feed(other, &mut saved, &ids[..at]);
            let saved = other.save(&saved).unwrap();
            sequence = engine.restore(&saved).unwrap();
        }
    }
    assert_eq!(sequence.tokens(), &ids[..at]);
    sequence
}

/// Checks every history at each of `places`, on the devices that `devices` returns.
fn check(
    (name, model): &(String, Arc<Model>),
    devices: &dyn Fn() -> (Vec<Device>, Option<Placement>),
    (n_tokens, places): (usize, &[usize]),
) {
    let ids: Vec<u32> = text(n_tokens, 5);
    let engine = |n_seq| {
        let (devices, placement) = devices();
        let options = options(n_seq);
        let n_ctx = options.n_ctx.max(2 * n_tokens + 64);
        let options = EngineOptions { n_checkpoint: 3, n_ctx, ..options };
        load(model, devices, options, placement)
    };
    let [mut engine, mut other] = [engine(2), engine(1)];
    let mut whole = engine.new_sequence();
    let expected: Logits = feed(&mut engine, &mut whole, &ids);
    drop(whole);
    for &at in places {
        for history in HISTORIES {
            let mut sequence = with_history(&mut engine, &mut other, &ids, (history, at));
            let got = feed(&mut engine, &mut sequence, &ids[at..]);
            let differs = got.iter().zip(&expected[at..]).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{name}: tokens after {at}, {history:?}");
            assert_eq!(got.len(), n_tokens - at);
        }
    }
}

/// The model with windows that are shorter than the text.
fn with_short_windows(model: Arc<Model>) -> Arc<Model> {
    let mut model = Arc::into_inner(model).unwrap();
    for layer in &mut model.layers {
        if let Mixer::Attention(attention) | Mixer::Parallel { attention, .. } =
            &mut layer.frame.mixer
        {
            attention.sizes.window = attention.sizes.window.map(|window| match window {
                Window::Sliding(n) => Window::Sliding(n.min(WINDOW)),
                Window::Chunk(n) => Window::Chunk(n.min(WINDOW)),
                Window::Around(n) => Window::Around(n.min(WINDOW)),
            });
        }
    }
    Arc::new(model)
}

/// The fixtures with such layers.
fn fixtures() -> Vec<(String, Arc<Model>)> {
    let all = all_models().filter(|(_, model)| kinds(model).contains(&true));
    let all: Vec<_> = all.map(|(name, model)| (name, with_short_windows(model))).collect();
    let count = |kind: usize| all.iter().filter(|(_, model)| kinds(model)[kind]).count();
    let counts = [0, 1, 2, 3, 4, 5].map(count);
    assert!(counts.iter().zip([15, 10, 1, 1, 3, 3]).all(|(n, least)| *n >= least), "{counts:?}");
    all
}

#[test]
fn every_history_has_the_bits_of_one_prompt() {
    within(Duration::from_secs(300), || {
        let places: Vec<usize> = (1..N_TOKENS).collect();
        for fixture in fixtures() {
            check(&fixture, &|| (vec![cpu_device(1)], None), (N_TOKENS, &places));
        }
    });
}

#[test]
fn every_history_has_the_bits_of_one_prompt_on_a_device() {
    within(Duration::from_secs(300), || {
        for fixture in fixtures() {
            let n_layer = fixture.1.hyper.n_layer;
            let devices = || {
                let (_, sim) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
                (vec![cpu_device(1), sim], Some(Placement::all_on(1, n_layer)))
            };
            check(&fixture, &devices, (N_TOKENS, &[1, 17, 33]));
        }
    });
}

/// A sequence may be cut, forked and restored inside a block of 128 positions, at its end, and after it.
#[test]
fn long_blocks_keep_their_positions() {
    within(Duration::from_secs(300), || {
        let places = [31, 126, 127, 128, 129, 140];
        for fixture in crate::families::deepseek4::models() {
            check(&fixture, &|| (vec![cpu_device(1)], None), (150, &places));
        }
    });
}
