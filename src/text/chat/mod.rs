//! Conversations, chat templates, and the separation of reasoning from answers.
//!
//! Here: [`Conversation`], [`Template`] (Jinja as in Python's `transformers`, with limits),
//! [`Dialogue`] (both combined), [`Reasoning`] (separated as text arrives). Not here: tokens, the
//! engine, the terminal.

mod builtin;
mod dialogue;
mod message;
mod reasoning;
mod template;
mod templates;

pub use builtin::{builtin, builtin_names};
pub use dialogue::{Dialogue, Prompt};
pub use message::{Conversation, Message};
pub use reasoning::{Reasoning, ReplyPart, Take};
pub use template::{Input, MAX_TEMPLATE, Template, TemplateError};
pub use templates::Templates;
