//! Constraints on the built-in vocabulary: texts are sampled at random, and finished ones must be
//! valid.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod calls;
mod gbnf;
mod hostile;
mod schemas;
mod triggers;
mod validate;

use std::path::Path;
use std::sync::{Arc, LazyLock};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use text::sample::{Constraint, ConstraintError};
use text::tokenizer::{TokenType, Tokenizer, Vocab};

use crate::{Error, Grammar, Limits, Vocabulary};

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| vocabulary(&[]));

/// The built-in vocabulary, in which ids from 300 on are these control tokens.
fn vocabulary(control: &[&str]) -> Vocabulary {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let model = planes::unpack(&assets.join("tinystories-relu-f16.gguf.planes.gz"), 2).unwrap();
    let file = gguf::File::from_vec(model, "the built-in model").unwrap();
    let mut vocab = Vocab::from_metadata(file.metadata()).unwrap();
    for (id, name) in (300..).zip(control) {
        vocab.tokens[id] = name.as_bytes().to_vec();
        vocab.types[id] = TokenType::Control;
    }
    Vocabulary::new(&Arc::new(Tokenizer::new(vocab).unwrap())).unwrap()
}

fn compile(grammar: &Grammar) -> Result<Box<dyn Constraint>, Error> {
    VOCABULARY.compile(grammar, &Limits::default())
}

/// Generates a text from random allowed tokens. After `n_free` tokens, prefers tokens that end the
/// text or close a value. `None` if the text has not ended after `n_free + 400` tokens; an error if
/// a token needs more work than the limits allow.
fn try_random_text(
    vocabulary: &Vocabulary,
    mut constraint: Box<dyn Constraint>,
    seed: u64,
    n_free: usize,
) -> Result<Option<String>, ConstraintError> {
    let tokenizer = vocabulary.tokenizer();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut bytes = Vec::new();
    let n_vocab = u32::try_from(tokenizer.n_vocab()).unwrap();
    for n in 0..n_free + 400 {
        if constraint.is_finished() {
            return Ok(Some(String::from_utf8(bytes).unwrap()));
        }
        let mask = constraint.allowed()?;
        let allowed: Vec<u32> = (0..n_vocab).filter(|id| mask.contains(*id)).collect();
        let closing = allowed.iter().copied().filter(|id| {
            let piece = tokenizer.piece(*id, true).unwrap();
            piece.len() == 1 && b"\"}])0123456789".contains(&piece[0])
        });
        let closing: Vec<u32> = closing.collect();
        let end = allowed.iter().copied().find(|id| tokenizer.is_eog(*id));
        let among = |ids: &[u32], rng: &mut ChaCha8Rng| ids[rng.next_u32() as usize % ids.len()];
        let token = match end {
            Some(end) if n >= n_free => end,
            _ if n >= n_free && !closing.is_empty() && rng.next_u32() % 4 > 0 => {
                among(&closing, &mut rng)
            }
            _ => among(&allowed, &mut rng),
        };
        constraint.accept(token)?;
        if !tokenizer.is_eog(token) {
            bytes.extend_from_slice(tokenizer.piece(token, true).unwrap());
        }
    }
    Ok(None)
}

/// As [`try_random_text`], for a constraint that must not fail.
fn random_text(
    vocabulary: &Vocabulary,
    constraint: Box<dyn Constraint>,
    seed: u64,
    n_free: usize,
) -> Option<String> {
    try_random_text(vocabulary, constraint, seed, n_free).unwrap()
}

/// Whether the constraint accepts `text`, token by token, and may end there.
fn accepts(vocabulary: &Vocabulary, mut constraint: Box<dyn Constraint>, text: &str) -> bool {
    let tokenizer = vocabulary.tokenizer();
    let ids = tokenize_bytewise(tokenizer, text);
    for id in ids {
        if constraint.is_finished() || !constraint.allowed().unwrap().contains(id) {
            return false;
        }
        constraint.accept(id).unwrap();
    }
    constraint.is_finished()
        || tokenizer.eog().iter().any(|id| constraint.allowed().unwrap().contains(*id))
}

/// Tokenizes a text: names of control tokens become these tokens, all other text becomes byte
/// tokens.
fn tokenize_bytewise(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let ids = || (0u32..).take(tokenizer.n_vocab());
    let control: Vec<(u32, &[u8])> = ids()
        .filter(|id| matches!(tokenizer.kind(*id), Ok(TokenType::Control)))
        .map(|id| (id, tokenizer.piece(id, true).unwrap()))
        .collect();
    let mut rest = text.as_bytes();
    let mut tokens = Vec::new();
    while let Some(byte) = rest.first() {
        match control.iter().find(|(_, name)| rest.starts_with(name)) {
            Some((id, name)) => {
                tokens.push(*id);
                rest = &rest[name.len()..];
            }
            None => {
                let single = ids().find(|id| tokenizer.piece(*id, false).unwrap() == [*byte]);
                tokens.push(single.unwrap());
                rest = &rest[1..];
            }
        }
    }
    tokens
}

#[track_caller]
fn check(grammar: &Grammar, good: &[&str], bad: &[&str]) {
    for (texts, expected) in [(good, true), (bad, false)] {
        for text in texts {
            let constraint = compile(grammar).unwrap();
            assert_eq!(accepts(&VOCABULARY, constraint, text), expected, "{text:?}");
        }
    }
}
