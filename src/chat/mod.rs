//! Conversations: what is said, how a model's template writes it, and what of an answer is reasoning.
//!
//! Here: [`Conversation`], [`Template`] (Jinja as Python's `transformers` runs it, with limits), [`Dialogue`] (the two
//! together), [`Reasoning`] (told apart as text arrives). Not here: tokens, the engine, the terminal.

mod builtin;
mod dialogue;
mod message;
mod reasoning;
mod template;
mod templates;

pub use builtin::{builtin, builtin_names};
pub use dialogue::{Dialogue, Prompt};
pub use message::{Conversation, Message};
pub use reasoning::{Part, Reasoning, Take};
pub use template::{Input, MAX_TEMPLATE, Template, TemplateError};
pub use templates::Templates;
