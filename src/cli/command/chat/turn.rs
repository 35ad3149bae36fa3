//! One turn after the other, in one session of the engine.

use super::dialogue::{self, Ends};
use super::settings::Settings;
use super::show::Shown;
use crate::chat::{Conversation, Dialogue, Prompt};
use crate::cli::command::auto_profile::{self, Use};
use crate::cli::command::run::{self, Ready};
use crate::cli::config::RunOptions;
use crate::cli::config::run::Length;
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use crate::engine::{Engine, Session};
use crate::generate::{Ended, Options, Report, resume};
use crate::sample::Sampler;
use crate::tokenizer::Tokenizer;
use std::time::Duration;

/// A conversation with all it needs.
#[derive(Debug)]
pub(super) struct Chat<'a> {
    /// What was said so far.
    pub(super) conversation: Conversation,
    /// Who hears notes.
    pub(super) terminal: &'a Terminal,
    options: &'a RunOptions,
    dialogue: Dialogue,
    ends: Ends,
    /// Control tokens that are written all the same.
    marks: Vec<u32>,
    tokenizer: Tokenizer,
    engine: Engine,
    session: Session,
    sampler: Sampler,
    settings: Settings,
    n_ctx: usize,
    last: Option<Report>,
    told_of_merging: bool,
    /// Time of all answers.
    took: Duration,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// By itself.
    Whole,
    /// By Ctrl-C.
    Interrupted,
    /// Nobody reads any more.
    Closed,
}

fn write(dialogue: &Dialogue, conversation: &Conversation) -> Result<Prompt, Failure> {
    dialogue.prompt(conversation).map_err(|e| {
        Failure::new(Exit::Failed, "the chat template refuses this conversation").caused_by(&e)
    })
}

impl<'a> Chat<'a> {
    /// # Errors
    /// A template that cannot be used, settings that the sampler refuses.
    pub(super) fn new(
        options: &'a RunOptions,
        ready: Ready,
        terminal: &'a Terminal,
    ) -> Result<Chat<'a>, Failure> {
        let Ready { model, tokenizer, n_ctx, engine, load: _ } = ready;
        let dialogue =
            dialogue::dialogue(&options.conversation, &model.file, &tokenizer, terminal)?;
        let ends = dialogue::ends(&dialogue, &tokenizer);
        let n_predict = match options.length {
            Length::Endless | Length::FillContext => None,
            Length::Tokens(n) => Some(n as usize),
        };
        Ok(Chat {
            conversation: Conversation::new(options.conversation.system.clone()),
            marks: dialogue::marks(&ends, &tokenizer),
            ends,
            sampler: run::sampler(&options.sampler, options.ignore_eos, &tokenizer)?,
            settings: Settings { sampler: options.sampler.clone(), n_predict },
            session: engine.open(),
            last: None,
            told_of_merging: false,
            took: Duration::ZERO,
            terminal,
            options,
            dialogue,
            tokenizer,
            engine,
            n_ctx,
        })
    }

    /// Gives the session's memory back, and learns from it which neurons fired.
    pub(super) fn close(mut self, interrupt: &Interrupt) {
        let tokens = self.session.tokens().to_vec();
        self.engine.close(self.session);
        if self.options.auto_profile {
            let used = Use { tokens: &tokens, took: self.took };
            let computation = &self.options.model.computation;
            let (engine, flag) = (&mut self.engine, interrupt.flag());
            auto_profile::after(&used, engine, computation, flag, self.terminal);
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes one setting, or says why not.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let settings = self.settings.with(key, value)?;
        if settings.sampler != self.settings.sampler {
            self.sampler =
                run::sampler(&settings.sampler, self.options.ignore_eos, &self.tokenizer)
                    .map_err(|failure| failure.message)?;
        }
        self.settings = settings;
        Ok(())
    }

    /// Forgets the turns. The cache keeps what may be of use: the next question's tokens decide.
    pub(super) fn clear(&mut self) {
        self.conversation.clear();
        self.last = None;
    }

    /// Asks the model and shows its answer. What ends without an answer leaves the conversation as it was.
    ///
    /// # Errors
    /// A template that refuses, a conversation that does not fit, what the engine reports.
    pub(super) fn message(
        &mut self,
        text: &str,
        interrupt: &Interrupt,
    ) -> Result<Answered, Failure> {
        let before = self.conversation.clone();
        self.conversation.ask(text);
        self.answer(before, interrupt)
    }

    /// Answers the last question anew.
    ///
    /// # Errors
    /// As [`Chat::message`].
    pub(super) fn regenerate(&mut self, interrupt: &Interrupt) -> Result<Answered, Failure> {
        let before = self.conversation.clone();
        if !self.conversation.take_answer_back() {
            self.terminal.tell("there is no answer yet");
            return Ok(Answered::Whole);
        }
        self.answer(before, interrupt)
    }

    fn answer(&mut self, before: Conversation, interrupt: &Interrupt) -> Result<Answered, Failure> {
        match self.try_answer(interrupt) {
            Ok((Answered::Interrupted, answer)) if answer.trim().is_empty() => {
                self.conversation = before;
                self.terminal.tell("stopped before there was an answer; the message is taken back");
                Ok(Answered::Interrupted)
            }
            Ok((answered, answer)) => {
                self.conversation.answer(answer.trim());
                Ok(answered)
            }
            Err(failure) => {
                self.conversation = before;
                Err(failure)
            }
        }
    }

    fn try_answer(&mut self, interrupt: &Interrupt) -> Result<(Answered, String), Failure> {
        let (prompt, ids) = self.prompt()?;
        if self.options.verbose_prompt {
            run::list_prompt(&ids, &self.tokenizer, self.terminal)?;
        }
        let options = self.generation(&ids);
        let splits = self.options.conversation.splits_reasoning;
        let mut shown = Shown::new(&prompt, splits, self.terminal);
        let report = resume(
            &mut self.engine,
            &mut self.session,
            &self.tokenizer,
            &mut self.sampler,
            &ids,
            &options,
            interrupt.flag(),
            &mut |piece| shown.piece(piece),
        );
        let end = report.as_ref().ok().map(|report| {
            // Shown if wanted, but a history with it would have the template write it twice.
            run::end_of(report, self.options.special, &self.tokenizer)
        });
        let answer = shown.end(&end.unwrap_or_default())?;
        let report = report?;
        self.last = Some(report);
        self.took += report.prompt + report.generated;
        self.tell_of_room(&report);
        let answered = match report.ended {
            Ended::Interrupted => Answered::Interrupted,
            Ended::Closed => Answered::Closed,
            Ended::EndOfText | Ended::Length | Ended::Stop | Ended::ContextFull => Answered::Whole,
        };
        Ok((answered, answer))
    }

    /// The settings for an answer to a prompt of these tokens.
    fn generation(&self, ids: &[u32]) -> Options {
        let settings = run::settings(self.options, ids.len());
        let n_instructions = match settings.context_shift {
            // Without what it was told about its part, a model would go on as somebody else.
            true => {
                let Chat { dialogue, conversation, tokenizer, .. } = self;
                dialogue::n_instructions(dialogue, conversation, ids, tokenizer)
            }
            false => 0,
        };
        Options {
            n_predict: self.settings.n_predict,
            n_keep: settings.n_keep.max(n_instructions),
            ends: self.ends.tokens.clone(),
            stops: [&self.options.stops[..], &self.ends.stops].concat(),
            written: self.marks.clone(),
            ..settings
        }
    }

    /// What became of an answer for which the context was too small.
    fn tell_of_room(&self, report: &Report) {
        let full = format!("the context of {} tokens", self.n_ctx);
        if report.n_shifts > 0 {
            self.terminal
                .note(&format!("{full} was full within the answer: older text was forgotten"));
        }
        if report.ended == Ended::ContextFull {
            let help = match self.options.context_shift {
                true => {
                    "a shorter system message or a smaller --keep lets --context-shift make room"
                }
                false => "--context-shift forgets the oldest turns",
            };
            self.terminal.note(&format!(
                "{full} is full: /clear begins anew, -c gives a larger one, {help}"
            ));
        }
    }

    /// The conversation as text and tokens. With `--context-shift`, the oldest turns are forgotten until there is room.
    fn prompt(&mut self) -> Result<(String, Vec<u32>), Failure> {
        let mut n_forgotten = 0;
        loop {
            let prompt = write(&self.dialogue, &self.conversation)?;
            if prompt.system_was_merged && !self.told_of_merging {
                self.told_of_merging = true;
                self.terminal.note(
                    "the model's template takes no system message: it stands before the first question",
                );
            }
            let ids = dialogue::ids(&prompt.text, &self.tokenizer)?;
            if !ids.is_empty() && ids.len() < self.n_ctx {
                if n_forgotten > 0 {
                    self.terminal.note(&format!(
                        "the context of {} tokens was full: the oldest {n_forgotten} turns are forgotten",
                        self.n_ctx
                    ));
                }
                return Ok((prompt.text, ids));
            }
            if !self.options.context_shift || !self.conversation.forget_oldest() {
                return Err(self.too_long(ids.len()));
            }
            n_forgotten += 1;
        }
    }

    fn too_long(&self, n: usize) -> Failure {
        let n_ctx = self.n_ctx;
        if n == 0 {
            return Failure::new(Exit::Failed, "the template makes no text of this conversation");
        }
        let message = format!(
            "the conversation takes {n} of the context's {n_ctx} tokens, which leaves no room for an answer"
        );
        Failure::new(Exit::Failed, message).help(
            "/clear begins anew; start with a larger -c, or with --context-shift to forget the oldest turns",
        )
    }

    /// Timings and density of the last answer, on standard error.
    pub(super) fn report(&self, load: Option<Duration>) {
        if let Some(report) = &self.last {
            let seed = self.sampler.seed();
            run::report_perf(self.options.json, report, seed, load, self.terminal);
        }
    }

    /// The lines of `/stats`.
    pub(super) fn stats(&self) -> Vec<String> {
        let held = self.session.tokens().len();
        let mut lines = vec![format!(
            "context {held} of {} tokens | {} questions | seed {}",
            self.n_ctx,
            self.conversation.n_questions(),
            self.sampler.seed()
        )];
        if let Some(report) = &self.last {
            lines.push(run::perf_line(report));
        }
        lines
    }
}
