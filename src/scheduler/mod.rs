//! Many generations at once on one loaded model: continuous batching, and a cache of prefixes.
//!
//! A [`Scheduler`] owns the engine on a thread of its own. Each of its steps takes one token of
//! every generation that decodes and then one piece of prefill, so that a running stream never
//! waits longer than one such step. [`Scheduler::submit`] returns a [`Generation`], whose events
//! arrive through a channel; [`Scheduler::submit_to`] passes them to a callback instead, for a
//! program with an async runtime.
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
//! All sequences share the KV cache of the engine: `n_ctx` tokens in all, in blocks. A sequence may
//! have up to `n_ctx` tokens. A generation starts when its prompt and its expected output fit
//! beside those that run. When blocks run out nevertheless, idle sequences are evicted, and then
//! the youngest generation is paused: its tokens are computed again when there is room.
//!
//! # Prefixes
//! A sequence stays in the KV cache after its generation, until its blocks are needed. A new prompt
//! forks the sequence, running or idle, with which it shares the longest prefix: it shares those
//! blocks, and only the other tokens are computed. With recurrent layers only prefixes that end at
//! a checkpoint are reused: before the last token of a prompt, at the end of a generation, and
//! every [`SchedulerOptions::checkpoint_every`] tokens of a long prompt. Evicted sequences go to
//! [`SchedulerOptions::disk_cache`], where also a later run finds them.
//!
//! # Same text
//! Tokens of a prompt are computed in pieces that depend on the prompt alone, and the last one as
//! in decode. Decode steps have at most 16 tokens. So the text of a generation does not depend on
//! the generations beside it, except where it reuses their tokens: these may have been computed in
//! other pieces, with other rounding.

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
pub use files::write_private;
pub use handle::{EmbedError, Generation, Scheduler, StartError, Ticket};
pub use options::{Notice, Observer, SchedulerOptions};
pub use request::{
    Ended, Error, Event, MOST_CHOICES, Report, Request, Sink, SubmitError, Times, TokenEvent,
    TokenLogprobs, Update,
};
pub use slots::{SlotError, SlotFile};
pub use status::{Counters, DeviceStatus, SlotPhase, SlotStatus, Status};
