//! Which template a conversation is written by, and what ends an answer in it.

use crate::chat::{Dialogue, Template, Templates, builtin, builtin_names};
use crate::cli::config::chat::{ConversationOptions, TemplateChoice};
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
use crate::gguf;
use crate::tokenizer::{TokenType, Tokenizer};

const ANOTHER: &str = "--chat-template NAME or --chat-template-file FILE gives another";

/// The way the user, or else the model file, wants turns to be written.
///
/// # Errors
/// [`Exit::BadModel`] for a broken template in the file, [`Exit::Usage`] for one that the user gave.
pub(crate) fn dialogue(
    options: &ConversationOptions,
    file: &gguf::File,
    tokenizer: &Tokenizer,
    terminal: &Terminal,
) -> Result<Dialogue, Failure> {
    let bad_file = |e: gguf::Error| {
        Failure::new(Exit::BadModel, "cannot read the chat template").caused_by(&e).help(ANOTHER)
    };
    let mut dialogue = match &options.template {
        TemplateChoice::Source(source) => compiled(source, Exit::Usage)?,
        TemplateChoice::Named(name) => {
            let templates = Templates::from_metadata(file.metadata()).map_err(bad_file)?;
            match (templates.named(name), builtin(name)) {
                (Some(source), _) => compiled(source, Exit::BadModel)?,
                (None, Some(source)) => compiled(source, Exit::Usage)?,
                (None, None) => return Err(unknown(name, &templates)),
            }
        }
        TemplateChoice::OfModel => {
            let templates = Templates::from_metadata(file.metadata()).map_err(bad_file)?;
            match templates.default_source() {
                Some(source) => compiled(source, Exit::BadModel)?,
                None => {
                    terminal.note(
                        "the model has no chat template, so turns are written plainly (User: ... Assistant: ...); --chat-template gives one",
                    );
                    Dialogue::plain()
                }
            }
        }
    };
    dialogue.bos_token = name(tokenizer, tokenizer.bos());
    dialogue.eos_token = name(tokenizer, tokenizer.eos());
    dialogue.variables = options.variables.clone();
    Ok(dialogue)
}

fn compiled(source: &str, exit: Exit) -> Result<Dialogue, Failure> {
    let template = Template::compile(source).map_err(|e| {
        let failure = Failure::new(exit, "cannot use the chat template").caused_by(&e);
        if exit == Exit::BadModel { failure.help(ANOTHER) } else { failure }
    })?;
    Ok(Dialogue::with_template(template))
}

fn unknown(name: &str, templates: &Templates) -> Failure {
    let mut known: Vec<&str> = templates.names().collect();
    for name in builtin_names() {
        known.push(name);
    }
    Failure::usage(format!("no chat template is called '{name}'"))
        .help(format!("known here: {}; a template itself holds {{{{ or {{%", known.join(", ")))
}

/// The text of a special token, as templates write it.
fn name(tokenizer: &Tokenizer, id: Option<u32>) -> String {
    let piece = id.and_then(|id| tokenizer.piece(id, true).ok());
    piece.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}

/// What ends an answer beside the model's own end tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) tokens: Vec<u32>,
    pub(crate) stops: Vec<String>,
}

/// Asks the template what it writes after an answer.
pub(crate) fn ends(dialogue: &Dialogue, tokenizer: &Tokenizer) -> Ends {
    let mut ends = Ends { tokens: Vec::new(), stops: dialogue.stops() };
    let Some(text) = dialogue.end_of_turn() else {
        return ends;
    };
    let ids = tokenizer.encode(&text, false, true).unwrap_or_default();
    let first = ids.first().and_then(|&id| Some((id, tokenizer.kind(id).ok()?)));
    match first {
        Some((id, TokenType::Control | TokenType::Unknown)) => ends.tokens.push(id),
        // A name that models of this kind write within an answer, as gpt-oss does between its channels.
        Some((_, TokenType::UserDefined)) => {}
        _ => ends.stops.extend(text.lines().next().map(str::to_owned)),
    }
    ends
}

/// The tokens of a written conversation. Most templates write the begin token; where one does not and the vocabulary
/// wants it, it is put in front.
///
/// # Errors
/// A text that is too long.
pub(crate) fn ids(text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
    let mut ids = tokenizer.encode(text, false, true).map_err(|e| {
        Failure::new(Exit::Failed, "cannot make tokens of the conversation").caused_by(&e)
    })?;
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos())
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    Ok(ids)
}
