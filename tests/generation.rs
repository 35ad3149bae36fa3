//! Generation around a full context.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thermocline::engine::{Engine, EngineOptions};
use thermocline::generate::{Ended, Options, generate};
use thermocline::model::{Model, ModelOptions};
use thermocline::sample::{Sampler, SamplerConfig};
use thermocline::tokenizer::{Tokenizer, Vocab};
use thermocline::{devices, embedded};

/// Interrupts after `n` pieces of text; gives the end and the number of shifts.
fn interrupted_after(engine: &mut Engine, tokenizer: &Tokenizer, n: usize) -> (Ended, usize) {
    let options = Options {
        n_predict: Some(60),
        context_shift: true,
        n_keep: 1,
        stops: Vec::new(),
        end_of_text: false,
        special: false,
    };
    let interrupt = AtomicBool::new(false);
    let mut n_emitted = 0;
    let mut emit = |_: &str| {
        n_emitted += 1;
        interrupt.store(n_emitted > n, Ordering::Relaxed);
        ControlFlow::Continue(())
    };
    let mut sampler = Sampler::new(&SamplerConfig::default(), tokenizer.n_vocab()).unwrap();
    let prompt = [1, 5, 9, 12];
    let report =
        generate(engine, tokenizer, &mut sampler, &prompt, &options, &interrupt, &mut emit);
    let report = report.unwrap();
    (report.ended, report.n_shifts)
}

#[test]
fn an_interrupt_is_an_end_wherever_it_comes() {
    let file = embedded::file().unwrap();
    let tokenizer = Tokenizer::new(Vocab::from_metadata(file.metadata()).unwrap()).unwrap();
    let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
    let options = EngineOptions { n_ctx: 16, n_ubatch: 8, ..EngineOptions::default() };
    let devices = vec![devices::cpu(Some(1))];
    let quiet = Arc::new(|_: &str| {});
    let mut engine = Engine::load(model, devices, options, None, quiet, &|_, _| {}).unwrap();
    // Every step of a round through the context, the shift included.
    for n in 0..24 {
        let (ended, _) = interrupted_after(&mut engine, &tokenizer, n);
        assert_eq!(ended, Ended::Interrupted, "after {n}");
    }
    let (ended, n_shifts) = interrupted_after(&mut engine, &tokenizer, 1000);
    assert_eq!(ended, Ended::Length);
    assert!(n_shifts > 1, "{n_shifts} shifts");
}
