//! Formats conversations as tokens, and finds the tokens and strings that end an answer.

use text::chat::{CallFormat, Conversation, Dialogue, Reasoning};
use text::tokenizer::{self, TokenType, Tokenizer};

/// Sets the names of the BOS and EOS tokens in the dialogue, because templates print them.
#[must_use]
pub fn with_special_tokens(mut dialogue: Dialogue, tokenizer: &Tokenizer) -> Dialogue {
    dialogue.bos_token = name(tokenizer, tokenizer.bos());
    dialogue.eos_token = name(tokenizer, tokenizer.eos());
    dialogue
}

/// The text of a special token, as templates print it.
fn name(tokenizer: &Tokenizer, id: Option<u32>) -> String {
    let piece = id.and_then(|id| tokenizer.piece(id, true).ok());
    piece.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}

/// Tokens and strings that end an answer, in addition to the model's own end-of-generation tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Tokens, such as `<|im_end|>`.
    pub tokens: Vec<u32>,
    /// Stop strings of the dialogue; also the end of a turn, if the vocabulary has no token for it.
    pub stops: Vec<String>,
}

/// Finds the token or string that the template prints after an answer; adds the dialogue's own stop
/// strings.
#[must_use]
pub fn ends(dialogue: &Dialogue, tokenizer: &Tokenizer) -> Ends {
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

/// Whether a token closes the reasoning, so that an answer may follow. `<|end|>` closes reasoning
/// in a vocabulary with `<|channel|>` (gpt-oss), and ends the turn in other vocabularies.
fn closes_reasoning(id: u32, tokenizer: &Tokenizer) -> bool {
    let open = Reasoning::opening(&name(tokenizer, Some(id)));
    let ids = open.and_then(|open| tokenizer.encode(open, false, true).ok());
    let first = ids.and_then(|ids| tokenizer.kind(*ids.first()?).ok());
    matches!(first, Some(TokenType::Control | TokenType::UserDefined))
}

/// Control tokens that open or close reasoning. The text must contain them, so that the caller can
/// separate the reasoning from the answer.
#[must_use]
pub fn reasoning_marks(ends: &Ends, tokenizer: &Tokenizer) -> Vec<u32> {
    let ids = Reasoning::marks().filter_map(|mark| tokenizer.id_of(mark));
    let hidden = |id: &u32| matches!(tokenizer.kind(*id), Ok(TokenType::Control));
    let ending = |id: &u32| tokenizer.is_eog(*id) || ends.tokens.contains(id);
    ids.filter(|id| hidden(id) && !ending(id)).collect()
}

/// Control tokens that mark tool calls in this format. They must be kept in the text, so that calls
/// can be parsed. End-of-generation tokens are not included, because a call is complete without
/// them.
#[must_use]
pub fn call_marks(format: CallFormat, tokenizer: &Tokenizer) -> Vec<u32> {
    let ids = format.marks().into_iter().filter_map(|mark| tokenizer.id_of(mark));
    let hidden = |id: &u32| matches!(tokenizer.kind(*id), Ok(TokenType::Control));
    ids.filter(|id| hidden(id) && !tokenizer.is_eog(*id)).collect()
}

/// Number of leading `ids` of a formatted conversation that do not depend on its messages: usually
/// the BOS token and the system message. Determined by comparison with another conversation,
/// without parsing the template.
#[must_use]
pub fn n_instructions(
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

/// The tokens of a formatted conversation. Most templates print the BOS token; if one does not and
/// the vocabulary requires it, it is prepended.
///
/// # Errors
/// A text that is too long.
pub fn ids(text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>, tokenizer::Error> {
    let mut ids = tokenizer.encode(text, false, true)?;
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
    use text::chat::{Template, builtin};
    use text::tokenizer::Vocab;

    /// The built-in vocabulary, with the tokens from id 300 on replaced by `changes`.
    fn tokenizer(changes: &[(&str, TokenType)]) -> Tokenizer {
        let file = embedded::file().unwrap();
        let mut vocab = Vocab::from_metadata(file.metadata()).unwrap();
        for (id, (name, kind)) in (300..).zip(changes) {
            vocab.tokens[id] = name.as_bytes().to_vec();
            vocab.types[id] = *kind;
        }
        Tokenizer::new(vocab).unwrap()
    }

    fn dialogue(source: &str) -> Dialogue {
        Dialogue::with_template(Template::compile(source).unwrap())
    }

    #[test]
    fn an_end_of_turn_of_any_token_type_ends_the_answer() {
        let dialogue = dialogue("{% for m in messages %}{{ m.content }}<|stop|>\n{% endfor %}");
        for kind in [TokenType::Control, TokenType::UserDefined, TokenType::Unknown] {
            let ends = ends(&dialogue, &tokenizer(&[("<|stop|>", kind)]));
            assert_eq!(ends, Ends { tokens: vec![300], stops: vec![] }, "{kind:?}");
        }
        let text = ends(&dialogue, &tokenizer(&[]));
        assert_eq!(text, Ends { tokens: vec![], stops: vec!["<|stop|>".into()] });
    }

    #[test]
    fn a_token_that_closes_reasoning_does_not_end_the_answer() {
        let dialogue = dialogue("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}");
        let channels = ["<|end|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"];
        let channels = channels.map(|name| (name, TokenType::Control));
        assert_eq!(ends(&dialogue, &tokenizer(&channels)), Ends::default());
        assert_eq!(ends(&dialogue, &tokenizer(&channels[..1])).tokens, [300]);
    }

    #[test]
    fn reasoning_marks_are_written_unless_they_end_the_answer() {
        let marks = |changes: &[(&str, TokenType)]| {
            super::reasoning_marks(&Ends { tokens: vec![301], stops: vec![] }, &tokenizer(changes))
        };
        let control = TokenType::Control;
        assert_eq!(marks(&[("[THINK]", control)]), [300]);
        assert_eq!(marks(&[("[/THINK]", control), ("[THINK]", control)]), [300], "301 ends");
        assert_eq!(marks(&[("<think>", TokenType::Normal)]), [0u32; 0], "it is a normal token");
        assert_eq!(marks(&[("<|end|>", control)]), [0u32; 0], "its name ends a turn");
    }

    #[test]
    fn instructions_are_the_common_start_of_conversations() {
        let tokenizer = tokenizer(&[]);
        let mut talk = Conversation::new(Some("You are a cat who tells of dogs.".into()));
        talk.ask("Who are you?");
        talk.answer("A cat.");
        talk.ask("And I?");
        for name in ["chatml", "llama2", "gemma"] {
            let dialogue = dialogue(builtin(name).unwrap());
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
