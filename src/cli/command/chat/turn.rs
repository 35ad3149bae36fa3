//! The turns of a conversation, in one sequence of the engine.

use super::dialogue;
use super::settings::Settings;
use super::show::AnswerOutput;
use crate::chat::{Conversation, Dialogue, Prompt};
use crate::cli::args::RunArgs;
use crate::cli::command::auto_profile::{self, FinishedRun};
use crate::cli::command::prompt_cache;
use crate::cli::command::run::{self, LoadedModel};
use crate::cli::command::structured::Structured;
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::progress::PromptBar;
use crate::cli::terminal::{Terminal, counted};
use crate::engine::{Engine, Sequence};
use crate::generate::{self, EndReason, Generator, Report};
use crate::sample::Sampler;
use crate::tokenizer::Tokenizer;
use runtime::dialogue::{Ends, ends, ids, n_instructions, reasoning_marks};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A conversation with the engine, tokenizer, sampler and settings that it uses.
#[derive(Debug)]
pub(super) struct Chat<'a> {
    pub(super) conversation: Conversation,
    pub(super) terminal: &'a Terminal,
    args: &'a RunArgs,
    dialogue: Dialogue,
    ends: Ends,
    /// Control tokens printed as text, because they mark where reasoning begins and ends.
    reasoning_marks: Vec<u32>,
    tokenizer: Arc<Tokenizer>,
    structured: Option<Structured>,
    pub(super) engine: Engine,
    pub(super) sequence: Sequence,
    sampler: Sampler,
    settings: Settings,
    n_ctx: usize,
    last: Option<Report>,
    merging_was_noted: bool,
    /// Total time of prefill and decode of all answers.
    took: Duration,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnEnd {
    /// The answer is complete.
    Complete,
    /// Ctrl-C stopped the answer.
    Interrupted,
    /// The reader of the output has closed it.
    Closed,
    /// The line was a command, not a message.
    Command,
}

fn render_prompt(dialogue: &Dialogue, conversation: &Conversation) -> Result<Prompt, Failure> {
    dialogue.prompt(conversation).map_err(|e| {
        Failure::new(Exit::Failed, "the chat template rejects this conversation").caused_by(&e)
    })
}

impl<'a> Chat<'a> {
    /// A conversation without turns, with the sequence of `--prompt-cache`.
    ///
    /// # Errors
    /// A template, constraint or prompt cache that cannot be used; settings that the sampler
    /// rejects.
    pub(super) fn new(
        args: &'a RunArgs,
        ready: LoadedModel,
        terminal: &'a Terminal,
    ) -> Result<Chat<'a>, Failure> {
        let LoadedModel { model, tokenizer, n_ctx, mut engine, load: _ } = ready;
        let dialogue =
            dialogue::dialogue(&args.conversation.template, &model.file, &tokenizer, terminal)?;
        let ends = ends(&dialogue, &tokenizer);
        let sampler = args.sampling.config();
        Ok(Chat {
            conversation: Conversation::new(args.conversation.system_prompt.clone()),
            reasoning_marks: reasoning_marks(&ends, &tokenizer),
            structured: Structured::new(&args.constraint, &tokenizer, &ends.tokens)?,
            ends,
            sampler: run::sampler(&sampler, args.sampling.ignore_eos, &tokenizer)?,
            settings: Settings { sampler, n_predict: args.predict.tokens(), timings: false },
            sequence: prompt_cache::load(args, &mut engine, terminal)?,
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

    /// Ends the conversation: saves the sequence for `--prompt-cache`, releases its memory and, if
    /// enabled, collects an activation profile from it.
    ///
    /// # Errors
    /// A prompt cache that cannot be written.
    pub(super) fn close(mut self, interrupt: &Interrupt) -> Result<(), Failure> {
        let tokens = self.sequence.tokens().to_vec();
        let n_prompt = self.last.map_or(0, |report| report.n_prompt);
        let saved = prompt_cache::save(self.args, &mut self.engine, &mut self.sequence, n_prompt);
        drop(self.sequence);
        if self.args.auto_profile {
            let used = FinishedRun { tokens: &tokens, took: self.took };
            let computation = &self.args.model.placement.computation();
            let (engine, flag) = (&mut self.engine, interrupt.flag());
            auto_profile::profile_run(&used, engine, computation, flag, self.terminal);
        }
        saved
    }

    /// One line about the model, its context and devices.
    pub(super) fn banner(&self) -> String {
        let model = self.engine.model();
        let file = Path::new(model.file.name());
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
        let devices = self.engine.devices().iter().map(|device| device.info().name.clone());
        let size = hal::Bytes(model.file.size_bytes());
        format!(
            "{name} ({}, {size}), context of {} tokens, on {}",
            model.spec.name,
            self.n_ctx,
            devices.collect::<Vec<_>>().join(" and ")
        )
    }

    /// Shows the speed after each answer, or not.
    pub(super) fn show_timings(&mut self, shows: bool) {
        self.settings.timings = shows;
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes one setting, or returns the reason why it is invalid.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let settings = self.settings.with_value(key, value)?;
        if settings.sampler != self.settings.sampler {
            self.sampler =
                run::sampler(&settings.sampler, self.args.sampling.ignore_eos, &self.tokenizer)
                    .map_err(|failure| failure.message)?;
        }
        self.settings = settings;
        Ok(())
    }

    /// Removes all turns. The KV cache stays, because the next prompt may begin with the same
    /// tokens.
    pub(super) fn clear(&mut self) {
        self.conversation.clear();
        self.last = None;
    }

    pub(super) fn replace(&mut self, conversation: Conversation) {
        self.conversation = conversation;
        self.last = None;
    }

    /// Generates and prints an answer. An error, or Ctrl-C before the answer begins, leaves the
    /// conversation unchanged.
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

    /// Answers the last message again.
    ///
    /// # Errors
    /// As [`Chat::message`].
    pub(super) fn regenerate(&mut self, interrupt: &Interrupt) -> Result<TurnEnd, Failure> {
        let before = self.conversation.clone();
        if !self.conversation.remove_last_answer() {
            self.terminal.print_unlabelled("there is no answer yet");
            return Ok(TurnEnd::Complete);
        }
        self.answer(before, interrupt)
    }

    fn answer(&mut self, before: Conversation, interrupt: &Interrupt) -> Result<TurnEnd, Failure> {
        match self.try_answer(interrupt) {
            Ok((TurnEnd::Interrupted, answer)) if answer.trim().is_empty() => {
                self.conversation = before;
                self.terminal.print_unlabelled(
                    "stopped before the answer began; the conversation is unchanged",
                );
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
        let structured = self.structured.as_ref();
        let constraint = structured.map(|structured| structured.answer(&prompt)).transpose()?;
        let splits = self.args.conversation.template.splits_reasoning();
        let mut shown = AnswerOutput::new(&prompt, splits, self.args.raw, self.terminal);
        let generator = Generator {
            engine: &mut self.engine,
            tokenizer: &self.tokenizer,
            sampler: &mut self.sampler,
            settings: &options,
            interrupt: interrupt.flag(),
        };
        let bar = PromptBar::new(ids.len(), self.terminal);
        let progress = &mut |n_read| bar.set_position(n_read);
        let emit = &mut |piece: &str| {
            bar.remove();
            shown.piece(piece)
        };
        let sequence = &mut self.sequence;
        let report = generator.resume_with(sequence, &ids, constraint, progress, emit);
        bar.remove();
        let end = report.as_ref().ok().map(|report| {
            // The EOS token is printed if requested, but not added to the history: the template
            // would write it twice.
            run::end_of(report, self.args.special, &self.tokenizer)
        });
        let answer = shown.end(&end.unwrap_or_default())?;
        let report = report?;
        self.last = Some(report);
        self.took += report.prompt + report.generated;
        self.note_full_context(&report);
        if report.ended == EndReason::Length
            && let Some(n) = self.settings.n_predict
        {
            self.terminal.note(&format!(
                "the answer was cut off after {}; -n or /set predict raises the limit, -1 removes it",
                counted(n, "token")
            ));
        }
        let answered = match report.ended {
            EndReason::Interrupted => TurnEnd::Interrupted,
            EndReason::Closed => TurnEnd::Closed,
            EndReason::EndOfText | EndReason::Length | EndReason::Stop | EndReason::ContextFull => {
                TurnEnd::Complete
            }
        };
        Ok((answered, answer))
    }

    /// The generation settings for a prompt of these tokens.
    fn generation(&self, ids: &[u32]) -> generate::Settings {
        let settings = run::settings(self.args, ids.len());
        let n_instructions = if settings.context_shift {
            // Always keep the system message: it has the model's instructions.
            let Chat { dialogue, conversation, tokenizer, .. } = self;
            n_instructions(dialogue, conversation, ids, tokenizer)
        } else {
            0
        };
        generate::Settings {
            n_predict: self.settings.n_predict,
            n_keep: settings.n_keep.max(n_instructions),
            end_tokens: self.ends.tokens.clone(),
            stops: [&self.args.reverse_prompt[..], &self.ends.stops].concat(),
            written_tokens: self.reasoning_marks.clone(),
            ..settings
        }
    }

    /// Prints a note if the answer filled the context.
    fn note_full_context(&self, report: &Report) {
        let full = format!("the context of {} tokens", self.n_ctx);
        if report.n_shifts > 0 {
            self.terminal.note(&format!(
                "{full} became full during the answer: the oldest tokens were dropped"
            ));
        }
        if report.ended == EndReason::ContextFull {
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
    /// until the conversation fits into the context.
    fn prompt(&mut self) -> Result<(String, Vec<u32>), Failure> {
        let mut n_dropped = 0;
        loop {
            let prompt = render_prompt(&self.dialogue, &self.conversation)?;
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
                if n_dropped > 0 {
                    self.terminal.note(&format!(
                        "the context of {} tokens was full: the oldest turns were dropped ({n_dropped})",
                        self.n_ctx
                    ));
                }
                return Ok((prompt.text, ids));
            }
            if !self.args.context_shift || !self.conversation.remove_oldest_turn() {
                return Err(self.too_long(ids.len()));
            }
            n_dropped += 1;
        }
    }

    fn too_long(&self, n: usize) -> Failure {
        let n_ctx = self.n_ctx;
        if n == 0 {
            let message = "the template produces no text for this conversation";
            return Failure::new(Exit::Failed, message)
                .help("--chat-template selects another template");
        }
        let message = format!(
            "the conversation takes {n} of the context's {n_ctx} tokens, which leaves no room for an answer"
        );
        Failure::new(Exit::Failed, message).help(
            "/clear starts a new conversation, -c sets a larger context, --context-shift drops the oldest turns",
        )
    }

    /// Reports timings and density of the last answer on standard error.
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
            "context {held} of {} tokens | {} | seed {}",
            self.n_ctx,
            counted(self.conversation.n_questions(), "question"),
            self.sampler.seed()
        )];
        if let Some(report) = &self.last {
            lines.push(run::perf_line(report));
        }
        lines
    }
}
