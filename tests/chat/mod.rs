//! Conversations: templates as Python renders them, hostile templates, and the command.

mod command;
mod hostile;
mod render;
mod terminal;
