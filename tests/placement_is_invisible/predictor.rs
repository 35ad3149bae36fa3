//! A layer's predictor runs once per token, on the layer's home device, so the predicted neurons do
//! not depend on the placement.

use thermocline::engine::Sparsity;

use super::*;

fn tiny(seed: u64, format: Format) -> Tiny {
    Tiny { seed, format, pwri: true, rank: 32, ..Tiny::default() }
}

/// The input of a quantised predictor is rounded, so an activation that rounds to the neighbouring
/// 8-bit step changes a score by a few thousandths of the scores' spread: enough for one score in
/// thousands to cross the threshold, which adds or drops a whole neuron. These predictors therefore
/// read only marks (`Tiny::marked`), which rounding does not affect.
fn marked_model(seed: u64, format: Format) -> Tiny {
    Tiny { marked: true, ..tiny(seed, format) }
}

/// Largest change of the logits, relative to their spread, by neurons that are added or dropped
/// because rounding moved their scores across the threshold.
const BOUND: f32 = 8e-2;

fn engine_with(model: &Arc<Model>, sparsity: Sparsity, threshold: Option<f32>) -> Engine {
    let options = EngineOptions { sparsity, sparse_threshold: threshold, ..options() };
    let devices = vec![cpu_device(2)];
    Engine::load(Arc::clone(model), devices, options, None, ignore_notices(), &|_, _| {}).unwrap()
}

#[test]
fn random_placements_of_predicted_neurons_give_the_same_logits() {
    within(LIMIT, || {
        check_random_within(&tiny(1, Format::F32), 6, BOUND);
        check_random_within(&tiny(2, Format::F16), 6, BOUND);
        for (seed, format) in (3..).zip([Format::F16, Format::Q8_0, Format::Q4_0, Format::Q4_1]) {
            let tiny = marked_model(seed, format);
            check_random_within(&tiny, 6, bound(format));
        }
    });
}

/// In every layer, the hand-offs to other devices contain the list of predicted neurons of each
/// token.
#[test]
fn lists_are_sent_in_hand_offs() {
    within(LIMIT, || {
        let model = tiny(5, Format::F16).model();
        let expected = logits(&mut load(&model, vec![cpu_device(1)], None), &[23]);
        let delay = Duration::ZERO..Duration::from_micros(60);
        let (_, a) = sim_device(1, Bytes::MAX, delay.clone(), 1);
        let (_, b) = sim_device(2, Bytes::MAX, delay, 2);
        let mut layers = vec![deal_neurons(&model, &[1, 2, 0]), deal_neurons(&model, &[2, 0, 1])];
        // The home of this layer has none of its neurons.
        let mut away = deal_neurons(&model, &[0, 2]);
        away.home = 1;
        layers.push(away);
        let placement = Placement { embed: 0, head: 2, layers };
        let mut engine = load(&model, vec![cpu_device(2), a, b], Some(placement));
        for pieces in [&[23][..], &[1], &[5, 2, 16]] {
            let difference = difference(&expected, &logits(&mut engine, pieces));
            assert!(difference <= BOUND, "{pieces:?}: {difference}");
        }
    });
}

#[test]
fn lists_survive_the_loss_of_a_device() {
    within(LIMIT, || {
        let model = tiny(6, Format::F16).model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        for lost_after in [0, 17, 40, 90, 200, 333] {
            let delay = Duration::ZERO..Duration::from_micros(50);
            let (first, a) = sim_device(1, Bytes::MAX, delay.clone(), 1);
            let (_, b) = sim_device(2, Bytes::MAX, delay, 2);
            let layers = vec![
                deal_neurons(&model, &[1, 2]),
                deal_neurons(&model, &[2, 1, 0]),
                deal_neurons(&model, &[2, 0]),
            ];
            let placement = Placement { embed: 0, head: 0, layers };
            let mut engine = load(&model, vec![cpu_device(2), a, b], Some(placement));
            first.lose_after(lost_after);
            let difference = difference(&expected, &logits(&mut engine, &[3, 1, 6]));
            assert!(difference <= BOUND, "lost after {lost_after}: {difference}");
        }
    });
}

#[test]
fn budgets_hold_with_a_predictor_too() {
    within(LIMIT, || {
        let model = marked_model(7, Format::Q8_0).model();
        let expected = logits(&mut load(&model, vec![cpu_device(2)], None), &[23]);
        let no_delay = Duration::ZERO..Duration::ZERO;
        let (_, roomy) = sim_device(1, Bytes::MAX, no_delay.clone(), 1);
        drop(load(&model, vec![cpu_device(2), roomy.clone()], None));
        let all = roomy.ledger().peak().0;
        let mut split = 0;
        for step in 0..=16 {
            let budget = Bytes(all * step / 16);
            let (sim, device) = sim_device(1, budget, no_delay.clone(), step);
            let mut engine = load(&model, vec![cpu_device(2), device.clone()], None);
            let difference = difference(&expected, &logits(&mut engine, &[7]));
            assert!(difference <= bound(Format::Q8_0), "budget {budget}: {difference}");
            assert!(sim.counters().peak <= budget, "physical peak over {budget}");
            split += engine.placement().n_split();
        }
        assert!(split > 0, "some layer was split");
    });
}

#[test]
fn thread_and_chunk_counts_do_not_change_predicted_runs() {
    within(LIMIT, || {
        let model = tiny(8, Format::Q4_0).model();
        let expected = logits(&mut load(&model, vec![cpu_device(1)], None), &[1]);
        for (threads, pieces) in [(1, 23), (2, 1), (3, 5), (7, 16)] {
            let got = logits(&mut load(&model, vec![cpu_device(threads)], None), &[pieces]);
            assert_eq!(expected, got, "{threads} threads, pieces of {pieces}");
        }
    });
}

#[test]
fn the_threshold_selects_all_to_no_neurons() {
    within(LIMIT, || {
        let model = tiny(9, Format::F32).model();
        let exact = logits(&mut engine_with(&model, Sparsity::Exact, None), &[23]);
        let all =
            logits(&mut engine_with(&model, Sparsity::Predicted, Some(f32::NEG_INFINITY)), &[23]);
        assert_eq!(exact, all, "all neurons are listed, so the gate alone decides");
        let file = logits(&mut engine_with(&model, Sparsity::Predicted, None), &[23]);
        assert_eq!(file, logits(&mut engine_with(&model, Sparsity::Predicted, Some(0.0)), &[23]));
        assert!(difference(&exact, &file) > 10.0 * BOUND, "a random predictor drops neurons");
        let mut strict = engine_with(&model, Sparsity::Predicted, Some(f32::INFINITY));
        let mut sequence = strict.new_sequence();
        let interrupt = AtomicBool::new(false);
        let stats = strict
            .feed(&mut sequence, &TEXT, LogitsRequest::Last, &interrupt, &mut |_, _| {})
            .unwrap();
        assert_eq!((stats.active, stats.gates), (0.0, 0.0));
        assert!(stats.neurons > 0.0);
    });
}
