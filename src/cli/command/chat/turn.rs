//! The turns of a conversation, in one sequence of the engine.

use super::dialogue;
use super::settings::Settings;
use super::show::AnswerOutput;
use crate::chat::{Conversation, Dialogue, Prompt};
use crate::cli::args::RunArgs;
use crate::cli::command::auto_profile::{self, FinishedRun};
use crate::cli::command::run::{self, LoadedModel};
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use crate::engine::{Engine, Sequence};
use crate::generate::{self, Ended, Generator, Report};
use crate::sample::Sampler;
use crate::tokenizer::Tokenizer;
use runtime::dialogue::{Ends, ends, ids, marks, n_instructions};
use std::time::Duration;

/// A conversation and everything it uses.
#[derive(Debug)]
pub(super) struct Chat<'a> {
    /// The messages so far.
    pub(super) conversation: Conversation,
    /// Receives notes.
    pub(super) terminal: &'a Terminal,
    args: &'a RunArgs,
    dialogue: Dialogue,
    ends: Ends,
    /// Control tokens that are printed nevertheless, so that reasoning can be separated.
    marks: Vec<u32>,
    tokenizer: Tokenizer,
    engine: Engine,
    sequence: Sequence,
    sampler: Sampler,
    settings: Settings,
    n_ctx: usize,
    last: Option<Report>,
    merging_was_noted: bool,
    /// Time of all answers.
    took: Duration,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// By itself.
    Whole,
    /// By Ctrl-C.
    Interrupted,
    /// The reader of the output has closed it.
    Closed,
}

fn write(dialogue: &Dialogue, conversation: &Conversation) -> Result<Prompt, Failure> {
    dialogue.prompt(conversation).map_err(|e| {
        Failure::new(Exit::Failed, "the chat template rejects this conversation").caused_by(&e)
    })
}

impl<'a> Chat<'a> {
    /// # Errors
    /// A template that cannot be used, settings that the sampler rejects.
    pub(super) fn new(
        args: &'a RunArgs,
        ready: LoadedModel,
        terminal: &'a Terminal,
    ) -> Result<Chat<'a>, Failure> {
        let LoadedModel { model, tokenizer, n_ctx, engine, load: _ } = ready;
        let dialogue = dialogue::dialogue(&args.conversation, &model.file, &tokenizer, terminal)?;
        let ends = ends(&dialogue, &tokenizer);
        let sampler = args.sampling.config();
        Ok(Chat {
            conversation: Conversation::new(args.conversation.system_prompt.clone()),
            marks: marks(&ends, &tokenizer),
            ends,
            sampler: run::sampler(&sampler, args.sampling.ignore_eos, &tokenizer)?,
            settings: Settings { sampler, n_predict: args.predict.tokens() },
            sequence: engine.open(),
            last: None,
            merging_was_noted: false,
            took: Duration::ZERO,
            terminal,
            args,
            dialogue,
            tokenizer,
            engine,
            n_ctx,
        })
    }

    /// Releases the sequence's memory, and collects an activation profile from it.
    pub(super) fn close(mut self, interrupt: &Interrupt) {
        let tokens = self.sequence.tokens().to_vec();
        self.engine.close(self.sequence);
        if self.args.auto_profile {
            let used = FinishedRun { tokens: &tokens, took: self.took };
            let computation = &self.args.model.placement.computation();
            let (engine, flag) = (&mut self.engine, interrupt.flag());
            auto_profile::after(&used, engine, computation, flag, self.terminal);
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes one setting, or returns the reason why it is invalid.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let settings = self.settings.with(key, value)?;
        if settings.sampler != self.settings.sampler {
            self.sampler =
                run::sampler(&settings.sampler, self.args.sampling.ignore_eos, &self.tokenizer)
                    .map_err(|failure| failure.message)?;
        }
        self.settings = settings;
        Ok(())
    }

    /// Clears the turns. The cache is kept: the next prompt may begin with the same tokens.
    pub(super) fn clear(&mut self) {
        self.conversation.clear();
        self.last = None;
    }

    /// Generates and prints an answer. A turn without an answer leaves the conversation as it was.
    ///
    /// # Errors
    /// A template that rejects the conversation, a conversation that does not fit, errors of the
    /// engine.
    pub(super) fn message(
        &mut self,
        text: &str,
        interrupt: &Interrupt,
    ) -> Result<TurnEnd, Failure> {
        let before = self.conversation.clone();
        self.conversation.ask(text);
        self.answer(before, interrupt)
    }

    /// Answers the last question again.
    ///
    /// # Errors
    /// As [`Chat::message`].
    pub(super) fn regenerate(&mut self, interrupt: &Interrupt) -> Result<TurnEnd, Failure> {
        let before = self.conversation.clone();
        if !self.conversation.take_answer_back() {
            self.terminal.tell("there is no answer yet");
            return Ok(TurnEnd::Whole);
        }
        self.answer(before, interrupt)
    }

    fn answer(&mut self, before: Conversation, interrupt: &Interrupt) -> Result<TurnEnd, Failure> {
        match self.try_answer(interrupt) {
            Ok((TurnEnd::Interrupted, answer)) if answer.trim().is_empty() => {
                self.conversation = before;
                self.terminal.tell("stopped before the answer began; the message was removed");
                Ok(TurnEnd::Interrupted)
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

    fn try_answer(&mut self, interrupt: &Interrupt) -> Result<(TurnEnd, String), Failure> {
        let (prompt, ids) = self.prompt()?;
        if self.args.verbose_prompt {
            run::list_prompt(&ids, &self.tokenizer, self.terminal)?;
        }
        let options = self.generation(&ids);
        let splits = self.args.conversation.splits_reasoning();
        let mut shown = AnswerOutput::new(&prompt, splits, self.terminal);
        let generator = Generator {
            engine: &mut self.engine,
            tokenizer: &self.tokenizer,
            sampler: &mut self.sampler,
            settings: &options,
            interrupt: interrupt.flag(),
        };
        let report = generator.resume(&mut self.sequence, &ids, &mut |piece| shown.piece(piece));
        let end = report.as_ref().ok().map(|report| {
            // Printed if requested, but kept out of the history: the template would write it
            // twice.
            run::end_of(report, self.args.special, &self.tokenizer)
        });
        let answer = shown.end(&end.unwrap_or_default())?;
        let report = report?;
        self.last = Some(report);
        self.took += report.prompt + report.generated;
        self.tell_of_room(&report);
        let answered = match report.ended {
            Ended::Interrupted => TurnEnd::Interrupted,
            Ended::Closed => TurnEnd::Closed,
            Ended::EndOfText | Ended::Length | Ended::Stop | Ended::ContextFull => TurnEnd::Whole,
        };
        Ok((answered, answer))
    }

    /// The generation settings for a prompt of these tokens.
    fn generation(&self, ids: &[u32]) -> generate::Settings {
        let settings = run::settings(self.args, ids.len());
        let n_instructions = if settings.context_shift {
            // The system message is always kept: without it the model would change its role.
            let Chat { dialogue, conversation, tokenizer, .. } = self;
            n_instructions(dialogue, conversation, ids, tokenizer)
        } else {
            0
        };
        generate::Settings {
            n_predict: self.settings.n_predict,
            n_keep: settings.n_keep.max(n_instructions),
            ends: self.ends.tokens.clone(),
            stops: [&self.args.reverse_prompt[..], &self.ends.stops].concat(),
            written: self.marks.clone(),
            ..settings
        }
    }

    /// Reports that the context was too small for an answer.
    fn tell_of_room(&self, report: &Report) {
        let full = format!("the context of {} tokens", self.n_ctx);
        if report.n_shifts > 0 {
            self.terminal.note(&format!(
                "{full} became full during the answer: the oldest text was dropped"
            ));
        }
        if report.ended == Ended::ContextFull {
            let help = if self.args.context_shift {
                "--context-shift needs a shorter system message or a smaller --keep to make room"
            } else {
                "--context-shift drops the oldest turns"
            };
            self.terminal.note(&format!(
                "{full} is full: /clear starts a new conversation, -c sets a larger context, {help}"
            ));
        }
    }

    /// The conversation as text and tokens. With `--context-shift`, the oldest turns are dropped
    /// until it fits.
    fn prompt(&mut self) -> Result<(String, Vec<u32>), Failure> {
        let mut n_forgotten = 0;
        loop {
            let prompt = write(&self.dialogue, &self.conversation)?;
            if prompt.system_was_merged && !self.merging_was_noted {
                self.merging_was_noted = true;
                self.terminal.note(
                    "the model's template does not support system messages; putting the system message before the first user message",
                );
            }
            let ids = ids(&prompt.text, &self.tokenizer).map_err(|e| {
                Failure::new(Exit::Failed, "cannot tokenize the conversation").caused_by(&e)
            })?;
            if !ids.is_empty() && ids.len() < self.n_ctx {
                if n_forgotten > 0 {
                    self.terminal.note(&format!(
                        "the context of {} tokens was full: the oldest {n_forgotten} turns were dropped",
                        self.n_ctx
                    ));
                }
                return Ok((prompt.text, ids));
            }
            if !self.args.context_shift || !self.conversation.forget_oldest() {
                return Err(self.too_long(ids.len()));
            }
            n_forgotten += 1;
        }
    }

    fn too_long(&self, n: usize) -> Failure {
        let n_ctx = self.n_ctx;
        if n == 0 {
            return Failure::new(
                Exit::Failed,
                "the template produces no text for this conversation",
            );
        }
        let message = format!(
            "the conversation takes {n} of the context's {n_ctx} tokens, which leaves no room for an answer"
        );
        Failure::new(Exit::Failed, message).help(
            "/clear starts a new conversation; a larger -c makes room, --context-shift drops the oldest turns",
        )
    }

    /// Timings and density of the last answer, on standard error.
    pub(super) fn report(&self, load: Option<Duration>) {
        if let Some(report) = &self.last {
            let seed = self.sampler.seed();
            run::report_perf(self.args.json, report, seed, load, self.terminal);
        }
    }

    /// The lines of `/stats`.
    pub(super) fn stats(&self) -> Vec<String> {
        let held = self.sequence.tokens().len();
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
