//! `/save` and `/load`: the tokens and KV cache of a conversation, in a file like that of
//! `--prompt-cache`, and its messages as JSON in a file beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::turn::Chat;
use crate::chat::Conversation;
use crate::cli::command::prompt_cache;
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::counted;
use crate::cli::texts::read_text;
use hal::Bytes;

/// Maximum size of a file of messages.
const MAX_MESSAGES: Bytes = Bytes(64 << 20);

/// Path of the messages that belong to the prompt cache `path`: `{path}.json`.
fn messages_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

/// Saves the sequence in `path` as a prompt cache, and the messages in [`messages_file`].
///
/// # Errors
/// Files that cannot be written, device errors.
pub(super) fn save(chat: &mut Chat<'_>, path: &Path) -> Result<(), Failure> {
    let beside = messages_file(path);
    if !path.exists() && beside.exists() {
        let message = format!(
            "cannot write '{}': it exists and belongs to no saved conversation",
            beside.display()
        );
        return Err(Failure::new(Exit::Failed, message).help("choose another name"));
    }
    prompt_cache::write(path, &mut chat.engine, &chat.sequence)?;
    let body = json!({ "messages": chat.conversation.messages() });
    scheduler::write_private(&beside, body.to_string().as_bytes()).map_err(|error| {
        let message = format!("cannot write the messages to '{}'", beside.display());
        Failure::new(Exit::Failed, message).caused_by(&error)
    })?;
    let n_tokens = chat.sequence.tokens().len();
    let saved = counted(n_tokens, "token");
    chat.terminal.print_unlabelled(&format!("saved {saved} in {}", path.display()));
    Ok(())
}

/// Replaces the conversation with the saved one. If the messages file is missing, the messages stay,
/// and the cached tokens are reused for a conversation with the same prefix.
///
/// # Errors
/// Files that cannot be read, or that are not a conversation of this model. A failure to read the
/// files changes nothing; after other failures, the next answer computes all tokens.
pub(super) fn load(chat: &mut Chat<'_>, path: &Path) -> Result<(), Failure> {
    let not_loaded = |failure: Failure| Failure {
        message: format!("'{}' is not a saved conversation", path.display()),
        help: Some("/save FILE saves one; the model is chosen when the program starts".to_owned()),
        ..failure
    };
    let bytes = prompt_cache::read(path).map_err(not_loaded)?;
    let beside = messages_file(path);
    let conversation = match fs::File::open(&beside).and_then(|file| read_text(file, MAX_MESSAGES))
    {
        Ok(text) => Some(conversation(&text).map_err(|why| {
            let message =
                format!("'{}' does not have the messages of a conversation", beside.display());
            Failure::new(Exit::Failed, message).caused_by(&io::Error::other(why))
        })?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let message = format!("cannot read the messages in '{}'", beside.display());
            return Err(Failure::new(Exit::Failed, message).caused_by(&error));
        }
    };
    // Dropping the old sequence first frees its KV blocks and state slot for the restored one.
    chat.sequence = chat.engine.new_sequence();
    chat.sequence = prompt_cache::restore(path, &bytes, &mut chat.engine).map_err(not_loaded)?;
    let n_tokens = chat.sequence.tokens().len();
    let loaded = format!("loaded {} from {}", counted(n_tokens, "token"), path.display());
    match conversation {
        Some(conversation) => {
            chat.replace(conversation);
            let questions = counted(chat.conversation.n_questions(), "question");
            chat.terminal.print_unlabelled(&format!("{loaded}; {questions}"));
        }
        None => chat.terminal.print_unlabelled(&format!(
            "{loaded}; the messages stay, because there is no {}",
            beside.display()
        )),
    }
    Ok(())
}

/// The conversation of a messages file.
fn conversation(text: &str) -> Result<Conversation, String> {
    let body: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let messages = body["messages"].as_array().ok_or("it has no list `messages`")?;
    let mut conversation = Conversation::new(None);
    for (i, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        let content = message["content"].as_str();
        let content = content.ok_or_else(|| format!("message {i} has no text `content`"))?;
        match role {
            "system" if i == 0 => conversation.system = Some(content.to_owned()),
            "user" => conversation.ask(content),
            "assistant" => conversation.answer(content),
            _ => return Err(format!("message {i} has the role '{role}'")),
        }
    }
    Ok(conversation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_files_are_checked() {
        let text =
            r#"{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}]}"#;
        let read = conversation(text).unwrap();
        assert_eq!((read.system.as_deref(), read.n_questions()), (Some("a"), 1));
        for (text, why) in [
            ("{", "EOF"),
            ("[]", "no list"),
            (r#"{"messages":[{"role":"user"}]}"#, "message 0 has no text"),
            (r#"{"messages":[{"role":"tool","content":""}]}"#, "the role 'tool'"),
            (
                r#"{"messages":[{"role":"user","content":""},{"role":"system","content":""}]}"#,
                "message 1 has the role 'system'",
            ),
        ] {
            let error = conversation(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
