//! Which template a conversation is written by, and what ends an answer in it.

use crate::chat::{Conversation, Dialogue, Reasoning, Template, Templates, builtin, builtin_names};
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
            match (Templates::named_in(file.metadata(), name), builtin(name)) {
                (Ok(Some(source)), _) => compiled(source, Exit::BadModel)?,
                // Whatever is broken in the file, this is not of it.
                (_, Some(source)) => compiled(source, Exit::Usage)?,
                (Err(e), None) => return Err(bad_file(e)),
                (Ok(None), None) => return Err(unknown(name, file)),
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

fn unknown(name: &str, file: &gguf::File) -> Failure {
    let templates = Templates::from_metadata(file.metadata()).unwrap_or_default();
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
        Some((id, _)) if closes_reasoning(id, tokenizer) => {}
        Some((id, TokenType::Control | TokenType::Unknown | TokenType::UserDefined)) => {
            ends.tokens.push(id);
        }
        _ => ends.stops.extend(text.lines().next().map(str::to_owned)),
    }
    ends
}

/// Whether a token closes the reasoning of this vocabulary, so that an answer may yet follow: `<|end|>` does where
/// there is a `<|channel|>` to open it (gpt-oss), and ends the turn elsewhere.
fn closes_reasoning(id: u32, tokenizer: &Tokenizer) -> bool {
    let open = Reasoning::opening(&name(tokenizer, Some(id)));
    let ids = open.and_then(|open| tokenizer.encode(open, false, true).ok());
    let first = ids.and_then(|ids| tokenizer.kind(*ids.first()?).ok());
    matches!(first, Some(TokenType::Control | TokenType::UserDefined))
}

/// Control tokens that open or close reasoning. Hidden as others are, they could not be told.
pub(crate) fn marks(ends: &Ends, tokenizer: &Tokenizer) -> Vec<u32> {
    let ids = Reasoning::marks().filter_map(|mark| tokenizer.id_of(mark));
    let hidden = |id: &u32| matches!(tokenizer.kind(*id), Ok(TokenType::Control));
    let ending = |id: &u32| tokenizer.is_eog(*id) || ends.tokens.contains(id);
    ids.filter(|id| hidden(id) && !ending(id)).collect()
}

/// How many of the first `ids` of a written conversation do not depend on what is said in it: mostly the begin token
/// and the system message. Found by comparing with another conversation, so that no template has to be understood.
pub(crate) fn n_instructions(
    dialogue: &Dialogue,
    conversation: &Conversation,
    ids: &[u32],
    tokenizer: &Tokenizer,
) -> usize {
    let mut other = Conversation::new(conversation.system.clone());
    other.ask("?");
    let other = dialogue.prompt(&other).ok();
    let other = other.and_then(|prompt| self::ids(&prompt.text, tokenizer).ok());
    let other = other.unwrap_or_default();
    ids.iter().zip(&other).take_while(|(one, another)| one == another).count()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded;
    use crate::tokenizer::Vocab;

    /// The built-in vocabulary with tokens of other names and types, from id 300 on.
    fn tokenizer(changes: &[(&str, TokenType)]) -> Tokenizer {
        let file = embedded::file().unwrap();
        let mut vocab = Vocab::from_metadata(file.metadata()).unwrap();
        for (id, (name, kind)) in (300..).zip(changes) {
            vocab.tokens[id] = name.as_bytes().to_vec();
            vocab.types[id] = *kind;
        }
        Tokenizer::new(vocab).unwrap()
    }

    fn written(source: &str) -> Dialogue {
        Dialogue::with_template(Template::compile(source).unwrap())
    }

    #[test]
    fn an_end_of_turn_ends_the_answer_whatever_its_type() {
        let dialogue = written("{% for m in messages %}{{ m.content }}<|stop|>\n{% endfor %}");
        for kind in [TokenType::Control, TokenType::UserDefined, TokenType::Unknown] {
            let ends = ends(&dialogue, &tokenizer(&[("<|stop|>", kind)]));
            assert_eq!(ends, Ends { tokens: vec![300], stops: vec![] }, "{kind:?}");
        }
        let text = ends(&dialogue, &tokenizer(&[]));
        assert_eq!(text, Ends { tokens: vec![], stops: vec!["<|stop|>".into()] });
    }

    #[test]
    fn what_closes_reasoning_does_not_end_the_answer() {
        let dialogue = written("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
        let channels = ["<|end|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"];
        let channels = channels.map(|name| (name, TokenType::Control));
        assert_eq!(ends(&dialogue, &tokenizer(&channels)), Ends::default());
        assert_eq!(ends(&dialogue, &tokenizer(&channels[..1])).tokens, [300]);
    }

    #[test]
    fn marks_are_written_unless_they_end_the_answer() {
        let marks = |changes: &[(&str, TokenType)]| {
            super::marks(&Ends { tokens: vec![301], stops: vec![] }, &tokenizer(changes))
        };
        let control = TokenType::Control;
        assert_eq!(marks(&[("[THINK]", control)]), [300]);
        assert_eq!(marks(&[("[/THINK]", control), ("[THINK]", control)]), [300], "301 ends");
        assert_eq!(marks(&[("<think>", TokenType::Normal)]), [0u32; 0], "is written anyway");
        assert_eq!(marks(&[("<|end|>", control)]), [0u32; 0], "ends a turn by its name");
    }

    #[test]
    fn instructions_are_what_all_conversations_begin_with() {
        let tokenizer = tokenizer(&[]);
        let mut talk = Conversation::new(Some("You are a cat who tells of dogs.".into()));
        talk.ask("Who are you?");
        talk.answer("A cat.");
        talk.ask("And I?");
        for name in ["chatml", "llama2", "gemma"] {
            let dialogue = written(builtin(name).unwrap());
            let text = dialogue.prompt(&talk).unwrap().text;
            let ids = ids(&text, &tokenizer).unwrap();
            let n = n_instructions(&dialogue, &talk, &ids, &tokenizer);
            let kept: Vec<u8> = ids[..n]
                .iter()
                .flat_map(|&id| tokenizer.piece(id, true).unwrap().to_vec())
                .collect();
            let kept = String::from_utf8(kept).unwrap();
            assert!(kept.contains("tells of dogs."), "{name}: {kept:?} of {text:?}");
            assert!(!kept.contains("Who"), "{name}: {kept:?}");
        }
    }
}
