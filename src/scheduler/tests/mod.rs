//! Schedulers on the built-in model and on small recurrent ones.

mod cache;
mod disk;
mod embeddings;
mod failures;
mod limits;
mod random;
mod recurrent;
mod texts;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Engine, EngineOptions};
use runtime::{Computation, Opened, SamplerConfig, Settings, devices, embedded};
use text::tokenizer::Tokenizer;

use crate::{EndReason, Event, Generation, Report, Request, Scheduler, SchedulerOptions, Status};

/// Longer than any test needs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The built-in model with a context of `n_ctx` tokens for `n_seq` sequences.
fn built_in(n_ctx: usize, n_seq: usize) -> (Engine, Arc<Tokenizer>) {
    let file = embedded::file().unwrap();
    let opened = Opened::from_file(file, &Computation::default()).unwrap();
    let options = EngineOptions { n_ctx, n_ubatch: 32, n_seq, ..EngineOptions::default() };
    let engine = runtime::load_quietly(&opened.model, options, devices::cpu(Some(1))).unwrap();
    (engine, Arc::new(opened.tokenizer))
}

fn scheduler(n_ctx: usize, n_seq: usize, options: SchedulerOptions) -> Scheduler {
    let (engine, tokenizer) = built_in(n_ctx, n_seq);
    Scheduler::start(engine, tokenizer, options).unwrap()
}

/// Arbitrary tokens, none of them a special token.
fn tokens(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| 300 + ((i * i * 7 + 31 * seed + i * seed) % 1500) as u32).collect()
}

fn greedy() -> SamplerConfig {
    SamplerConfig { temp: 0.0, ..SamplerConfig::default() }
}

/// Continues `prompt` by exactly `n` tokens.
fn request(prompt: &[u32], n: usize) -> Request {
    let settings = Settings { n_predict: Some(n), end_of_text: false, ..Settings::default() };
    Request { prompt: prompt.to_vec(), sampler: greedy(), settings, ..Request::default() }
}

/// Everything that a choice reported.
#[derive(Debug, Default)]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    report: Option<Report>,
    failed: Option<String>,
}

impl Answer {
    fn report(&self) -> &Report {
        self.report.as_ref().unwrap_or_else(|| panic!("no report: {self:?}"))
    }

    fn ended(&self) -> EndReason {
        self.report().ended
    }
}

fn answers(generation: &Generation, n: usize) -> Vec<Answer> {
    let mut list: Vec<Answer> = (0..n).map(|_| Answer::default()).collect();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let update = match generation.recv_timeout(deadline - Instant::now()) {
            Ok(update) => update,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return list,
            Err(timeout) => panic!("{timeout}: {list:?}"),
        };
        let answer = &mut list[update.choice];
        assert!(answer.report.is_none() && answer.failed.is_none(), "an event after the last");
        match update.event {
            Event::Token(token) => {
                answer.text += &token.text;
                answer.tokens.extend(token.id);
            }
            Event::Finished(report) => answer.report = Some(report),
            Event::Failed(error) => answer.failed = Some(error.to_string()),
            Event::Started { .. } | Event::Prefill { .. } | Event::PromptLogprobs(_) => {}
        }
    }
}

fn answer(generation: &Generation) -> Answer {
    answers(generation, 1).remove(0)
}

fn run(scheduler: &Scheduler, request: Request) -> Answer {
    answer(&scheduler.submit(request).unwrap())
}

/// Waits until `holds` returns `true` for the status.
#[track_caller]
fn wait_until(scheduler: &Scheduler, what: &str, holds: impl Fn(&Status) -> bool) -> Status {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = scheduler.status();
        if holds(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "never {what}: {status:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A model of `tests/families/`, and a tokenizer with as many tokens.
fn family(name: &str, options: EngineOptions) -> (Engine, Arc<Tokenizer>) {
    let model = Arc::new(family_model(name));
    let tokenizer = tokenizer_of(&model);
    let engine = runtime::load_quietly(&model, options, devices::cpu(Some(1))).unwrap();
    (engine, tokenizer)
}

fn family_model(name: &str) -> model::Model {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("../../tests/families").join(format!("{name}.planes.gz"));
    let bytes = planes::unpack(&path, planes::width(name)).unwrap();
    let file = gguf::File::from_vec(bytes, name).unwrap();
    model::Model::from_file(file, &model::ModelOptions::default()).unwrap()
}

/// A tokenizer with as many tokens as the model.
fn tokenizer_of(model: &model::Model) -> Arc<Tokenizer> {
    let tokens = (0..model.n_vocab()).map(|id| format!("<{id}>").into_bytes()).collect();
    let vocab = text::tokenizer::Vocab {
        model: "llama".into(),
        tokens,
        scores: vec![0.0; model.n_vocab()],
        add_bos: Some(false),
        ..text::tokenizer::Vocab::default()
    };
    Arc::new(Tokenizer::new(vocab).unwrap())
}
