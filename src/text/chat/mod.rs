//! Conversations, chat templates, and the separation of reasoning and tool calls from answers.
//!
//! [`Conversation`] holds messages, [`Template`] renders Jinja as in Python's `transformers`, with
//! limits, [`Dialogue`] combines both, and [`Reasoning`] and [`CallParser`] separate reasoning and
//! tool calls as text arrives. This module does not depend on tokens, the engine or the terminal.

mod builtin;
mod calls;
mod dialogue;
mod message;
mod reasoning;
mod template;
mod templates;

pub use builtin::{builtin, builtin_names};
pub use calls::{CallDelta, CallFormat, CallParser, Delivery, Tool};
pub use dialogue::{Dialogue, Prompt, Turns};
pub use message::{Conversation, Message};
pub use reasoning::{Reasoning, ReplyPart, ReplySink};
pub use template::{Input, MAX_TEMPLATE, Template, TemplateError};
pub use templates::Templates;
