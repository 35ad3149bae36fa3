//! Runs many generations at once on one loaded model, with continuous batching and prefix caching.
//!
//! A [`Scheduler`] runs the engine on its own thread. Each step computes one token for each
//! generation in decode, and then one chunk of prefill, so a running stream never waits longer than
//! one such step. [`Scheduler::submit`] returns a [`Generation`], whose events arrive through a
//! channel. [`Scheduler::submit_to`] passes them to a callback instead, for programs with an async
//! runtime.
//!
//! ```
//! use std::num::NonZeroU32;
//!
//! use runtime::{Model, Options, Settings};
//! use thermocline_scheduler::{Event, Request, Scheduler, SchedulerOptions};
//!
//! let two = NonZeroU32::new(2).ok_or("zero")?;
//! let model = Model::built_in(&Options { n_parallel: two, ..Options::default() })?;
//! let prompts = [model.encode("Once upon a time")?, model.encode("The dog")?];
//! let scheduler = Scheduler::start_model(model, SchedulerOptions::default())?;
//! let settings = Settings { n_predict: Some(4), ..Settings::default() };
//! let submit = |prompt| {
//!     let settings = settings.clone();
//!     scheduler.submit(Request { prompt, settings, ..Request::default() })
//! };
//! for generation in prompts.map(submit) {
//!     let events = generation?.into_iter();
//!     let tokens = events.filter(|update| matches!(update.event, Event::Token(_)));
//!     assert!((1..=5).contains(&tokens.count()));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory
//! All sequences share the engine's KV cache of `n_ctx` tokens, in blocks. One sequence may use up
//! to `n_ctx` tokens. A generation starts when its prompt and its expected output fit next to the
//! running generations. If blocks still run out, idle sequences are evicted, and then the youngest
//! generation is paused. Its tokens are computed again when blocks are free.
//!
//! # Prefixes
//! After its generation, a sequence stays in the KV cache until its blocks are needed. A new prompt
//! forks the sequence, running or idle, with the longest common prefix. The fork shares the blocks
//! of that prefix, and only the other tokens are computed. With recurrent layers, only prefixes
//! that end at a checkpoint are reused. Checkpoints are made before the last token of a prompt, at
//! the end of a generation, and every [`SchedulerOptions::checkpoint_every`] tokens of a long
//! prompt. Evicted sequences are written to [`SchedulerOptions::disk_cache`], where a later run
//! finds them too.
//!
//! # Same text
//! The chunks in which a prompt is computed depend only on the prompt, and its last token is
//! computed as in decode. Decode steps have at most 16 tokens. The text of a generation therefore
//! does not depend on concurrent generations, unless it reuses their tokens, which may have been
//! computed in other chunks with different rounding.

mod admit;
mod batch;
mod choice;
mod embed;
mod files;
mod handle;
mod logprobs;
mod memory;
mod options;
mod prefix;
mod queue;
mod request;
mod slots;
mod spill;
mod status;
#[cfg(test)]
mod tests;
mod worker;
mod writer;

pub use embed::{EmbeddingSink, Pooling};
pub use files::{may_replace, write_private};
pub use handle::{EmbedError, Generation, Scheduler, StartError, Ticket, Watcher};
pub use options::{Notice, Observer, SchedulerOptions};
pub use request::{
    EndReason, Error, Event, MAX_CHOICES, Report, Request, Sink, SubmitError, Times, TokenEvent,
    TokenLogprobs, Update,
};
pub use slots::{SlotError, SlotFile};
pub use status::{Counters, DeviceStatus, SlotPhase, SlotStatus, Status};
