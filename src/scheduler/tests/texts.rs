//! The text of a generation equals that of the same request alone.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use runtime::{Model, SamplerConfig, Settings};
use text::sample::{Constraint, ConstraintError, TokenMask};

use super::{answers, built_in, greedy, request, run, scheduler, tokens};
use crate::{EndReason, Event, Request, Scheduler, SchedulerOptions, SubmitError};

/// Requests with different lengths and sampling parameters.
fn varied(i: usize) -> Request {
    let prompt = tokens([3, 16, 17, 40, 75, 9, 33, 20][i % 8] + i / 8, i);
    let temp = [0.0, 0.8, 1.3][i % 3];
    let sampler = SamplerConfig { temp, seed: Some(i as u32), ..SamplerConfig::default() };
    Request { sampler, ..request(&prompt, 6 + 5 * (i % 5)) }
}

#[test]
fn eight_concurrent_generations_match_single_runs() {
    let alone = scheduler(128, 1, SchedulerOptions::default());
    let together = scheduler(8 * 128, 4, SchedulerOptions::default());
    let submitted: Vec<_> = (0..8).map(|i| together.submit(varied(i)).unwrap()).collect();
    for (i, generation) in submitted.iter().enumerate() {
        let expected = run(&alone, varied(i));
        let got = answers(generation, 1).remove(0);
        assert_eq!((&got.tokens, &got.text), (&expected.tokens, &expected.text), "request {i}");
        assert_eq!(got.ended(), EndReason::Length);
        assert_eq!(got.report().n_generated, varied(i).settings.n_predict.unwrap());
    }
    let status = together.status();
    assert!(status.counters.n_busy_slots > status.counters.n_steps, "nothing ran together");
    assert_eq!(status.counters.n_finished, 8);
}

#[test]
fn the_text_equals_that_of_the_library() {
    let (engine, tokenizer) = built_in(128, 1);
    let mut model = Model::new(engine, Arc::try_unwrap(tokenizer).unwrap());
    let prompt = model.encode("Once upon a time there was a").unwrap();
    assert!(prompt.len() < 16, "longer prompts are computed in other pieces");
    let sampler = SamplerConfig { seed: Some(5), ..SamplerConfig::default() };
    let settings = Settings { n_predict: Some(40), ..Settings::default() };
    let mut sequence = model.sequence();
    let expected = model.generate(&mut sequence, &prompt, &sampler, &settings).unwrap();
    let expected: String = expected.map(|token| token.unwrap().text).collect();
    let scheduler = scheduler(128, 2, SchedulerOptions::default());
    let got = run(&scheduler, Request { prompt, sampler, settings, ..Request::default() });
    assert_eq!(got.text, expected);
    assert_eq!(got.report().seed, 5);
}

#[test]
fn choices_share_the_prompt_but_not_the_seed() {
    let prompt = tokens(50, 1);
    let sampler = |seed| SamplerConfig { temp: 1.5, seed: Some(seed), ..SamplerConfig::default() };
    let one = |seed| Request { sampler: sampler(seed), ..request(&prompt, 12) };
    // Run three choices in two slots.
    let several = scheduler(512, 2, SchedulerOptions::default());
    let generation = several.submit(Request { n_choices: 3, ..one(7) }).unwrap();
    let got = answers(&generation, 3);
    let counters = several.status().counters;
    assert_eq!((counters.prompt_tokens, counters.cached_tokens), (50 + 2, 2 * 49));
    let alone = scheduler(512, 1, SchedulerOptions::default());
    for (i, got) in got.iter().enumerate() {
        let expected = run(&alone, one(7 + i as u32));
        assert_eq!(got.tokens, expected.tokens, "choice {i}");
        assert_eq!(got.report().seed, 7 + i as u32);
    }
    assert_ne!(got[0].tokens, got[1].tokens);
    // The result is the same without prompt caching.
    let several = scheduler(512, 3, SchedulerOptions::default());
    let uncached = Request { n_choices: 3, cache_prompt: false, ..one(7) };
    let again = answers(&several.submit(uncached).unwrap(), 3);
    assert!(again.iter().zip(&got).all(|(again, got)| again.tokens == got.tokens));
    assert_eq!(several.status().counters.prompt_tokens, 50 + 2);
    assert_eq!(several.status().n_idle, 0);
}

#[test]
fn stop_strings_end_the_text_wherever_tokens_are_cut() {
    let scheduler = scheduler(256, 2, SchedulerOptions::default());
    let prompt = scheduler.tokenizer().encode("Once upon a time", true, true).unwrap();
    let whole = run(&scheduler, request(&prompt, 30));
    let stops: Vec<String> = (8..14).map(|n| whole.text[n..n + 9].to_owned()).collect();
    for stop in stops {
        let mut stopping = request(&prompt, 30);
        stopping.settings.stops = vec!["never\u{1}".into(), stop.clone()];
        let got = run(&scheduler, stopping);
        let before = &whole.text[..whole.text.find(&stop).unwrap()];
        assert_eq!((got.text.as_str(), got.ended()), (before, EndReason::Stop), "{stop:?}");
        assert_eq!(got.report().stopped_by.as_deref(), Some(stop.as_str()));
    }
    // The beginning of a stop string at the end of the text belongs to the text.
    let mut almost = request(&prompt, 30);
    let last = whole.text.chars().last().unwrap();
    almost.settings.stops = vec![format!("{last}\u{1}")];
    assert_eq!(run(&scheduler, almost).text, whole.text);
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let scheduler = scheduler(256, 1, SchedulerOptions::default());
    let prompt = tokens(40, 3);
    let long = Request { n_logprobs: Some(3), prompt_logprobs: true, ..request(&prompt, 5) };
    let mut prompt_logprobs = None;
    let mut chosen = Vec::new();
    for update in scheduler.submit(long).unwrap() {
        match update.event {
            Event::PromptLogprobs(all) => prompt_logprobs = Some(all),
            Event::Token(token) => chosen.extend(token.id.zip(token.logprobs)),
            Event::Started { .. } | Event::Prefill { .. } => {}
            Event::Finished(report) => assert_eq!((report.n_cached, report.n_generated), (0, 5)),
            Event::Failed(error) => panic!("{error}"),
        }
    }
    let prompt_logprobs = prompt_logprobs.unwrap();
    assert_eq!((prompt_logprobs.len(), prompt_logprobs[0].is_none(), chosen.len()), (40, true, 5));
    for (id, logprobs) in &chosen {
        // With greedy sampling, the chosen token is the most likely one.
        assert_eq!((logprobs.top.len(), logprobs.top[0]), (3, (*id, logprobs.chosen)));
        assert!(logprobs.top.windows(2).all(|two| two[0].1 >= two[1].1));
    }
    // The same text as a prompt has the same log-probabilities, within rounding.
    let whole: Vec<u32> = prompt.iter().copied().chain(chosen.iter().map(|(id, _)| *id)).collect();
    let again = Request { n_logprobs: Some(1), prompt_logprobs: true, ..request(&whole, 1) };
    let updates = scheduler.submit(again).unwrap();
    let found = updates.into_iter().find_map(|update| match update.event {
        Event::PromptLogprobs(all) => Some(all),
        Event::Started { .. } | Event::Prefill { .. } | Event::Token(_) => None,
        Event::Finished(_) | Event::Failed(_) => None,
    });
    let found = found.unwrap();
    for ((_, expected), got) in chosen.iter().zip(&found[40..]) {
        let got = got.as_ref().unwrap();
        assert!((got.chosen - expected.chosen).abs() < 1e-2, "{got:?} {expected:?}");
    }
}

/// A constraint that allows exactly one text.
#[derive(Debug)]
struct OneText {
    text: Vec<u32>,
    at: usize,
    mask: TokenMask,
    n_vocab: usize,
}

impl Constraint for OneText {
    fn allowed(&mut self) -> Result<&TokenMask, ConstraintError> {
        self.mask = TokenMask::none(self.n_vocab);
        self.mask.insert(self.text[self.at]);
        Ok(&self.mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        assert_eq!(token, self.text[self.at]);
        self.at += 1;
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.at == self.text.len()
    }
}

#[test]
fn a_constraint_limits_tokens_and_ends_the_text() {
    let scheduler = scheduler(256, 2, SchedulerOptions::default());
    let n_vocab = scheduler.tokenizer().n_vocab();
    let only = |text: &[u32]| -> Box<dyn Constraint> {
        let mask = TokenMask::none(n_vocab);
        Box::new(OneText { text: text.to_vec(), at: 0, mask, n_vocab })
    };
    let texts = [vec![400, 500, 600], vec![401, 402]];
    let constraints = texts.iter().map(|text| only(text)).collect();
    let both = Request { n_choices: 2, constraints, ..request(&tokens(9, 1), 20) };
    let got = answers(&scheduler.submit(both).unwrap(), 2);
    for (answer, text) in got.iter().zip(&texts) {
        assert_eq!((&answer.tokens, answer.ended()), (text, EndReason::Complete));
    }
    let uneven = Request { n_choices: 3, constraints: vec![only(&[1])], ..request(&[400], 1) };
    assert!(matches!(scheduler.submit(uneven), Err(SubmitError::BadChoices { .. })));
}

#[test]
fn a_sink_receives_the_events_of_a_generation() {
    let scheduler = scheduler(256, 1, SchedulerOptions::default());
    let expected = run(&scheduler, request(&tokens(9, 2), 8));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (sender, done) = std::sync::mpsc::channel();
    let sink = {
        let seen = Arc::clone(&seen);
        move |update: crate::Update| {
            match update.event {
                Event::Token(token) => seen.lock().unwrap().extend(token.id),
                Event::Finished(report) => sender.send(report).unwrap(),
                Event::Started { .. } | Event::Prefill { .. } => {}
                Event::PromptLogprobs(_) | Event::Failed(_) => panic!("unexpected"),
            }
            ControlFlow::Continue(())
        }
    };
    let ticket = scheduler.submit_to(request(&tokens(9, 2), 8), Box::new(sink)).unwrap();
    let report = done.recv_timeout(super::TIMEOUT).unwrap();
    assert_eq!(*seen.lock().unwrap(), expected.tokens);
    assert_eq!((report.n_cached, ticket.number()), (8, 2));
    // This sink cancels the request after three tokens.
    let (sender, done) = std::sync::mpsc::channel();
    let mut n = 0;
    let sink = move |update: crate::Update| match update.event {
        Event::Token(_) => {
            n += 1;
            if n == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        Event::Finished(report) => {
            sender.send(report).unwrap();
            ControlFlow::Continue(())
        }
        Event::Started { .. } | Event::Prefill { .. } => ControlFlow::Continue(()),
        Event::PromptLogprobs(_) | Event::Failed(_) => panic!("unexpected"),
    };
    let _ticket = scheduler.submit_to(request(&tokens(9, 2), 100), Box::new(sink)).unwrap();
    let report = done.recv_timeout(super::TIMEOUT).unwrap();
    assert_eq!((report.ended, report.n_generated), (EndReason::Cancelled, 3));
}

#[test]
fn the_context_shifts_or_ends_the_text() {
    let scheduler = scheduler(64, 1, SchedulerOptions::default());
    let full = run(&scheduler, request(&tokens(20, 1), 500));
    assert_eq!((full.ended(), full.report().n_generated), (EndReason::ContextFull, 64 - 20 + 1));
    let mut shifting = request(&tokens(20, 1), 150);
    (shifting.settings.context_shift, shifting.settings.n_keep) = (true, 4);
    let shifted = run(&scheduler, shifting);
    assert_eq!((shifted.ended(), shifted.report().n_generated), (EndReason::Length, 150));
    assert!(shifted.report().n_shifts > 1);
    assert_eq!(shifted.tokens[..45], full.tokens);
    let nothing = run(&scheduler, request(&tokens(5, 1), 0));
    assert_eq!((nothing.ended(), nothing.tokens.len()), (EndReason::Length, 0));
}

#[test]
fn invalid_requests_are_refused() {
    let scheduler = scheduler(64, 1, SchedulerOptions::default());
    let refused = |request| scheduler.submit(request).unwrap_err();
    assert_eq!(refused(request(&[], 1)), SubmitError::Empty);
    let long = SubmitError::PromptTooLong { n_prompt: 64, n_ctx: 64 };
    assert_eq!(refused(request(&tokens(64, 1), 1)), long);
    let n_vocab = scheduler.tokenizer().n_vocab();
    let outside = SubmitError::BadToken { id: 1 << 30, n_vocab };
    assert_eq!(refused(request(&[1 << 30], 1)), outside);
    let sampler = SamplerConfig { temp: f32::NAN, ..greedy() };
    let bad = refused(Request { sampler, ..request(&[400], 1) });
    assert!(matches!(bad, SubmitError::BadSampler(_)), "{bad}");
    let slot = refused(Request { slot: Some(1), ..request(&[400], 1) });
    assert_eq!(slot, SubmitError::NoSuchSlot { slot: 1, n_slots: 1 });
    let none = refused(Request { n_choices: 0, ..request(&[400], 1) });
    assert!(matches!(none, SubmitError::BadChoices { .. }));
    scheduler.shutdown(std::time::Duration::ZERO);
    assert_eq!(refused(request(&[400], 1)), SubmitError::ShuttingDown);
    let _: &Scheduler = &scheduler;
}
