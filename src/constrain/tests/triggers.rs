//! Constraints that begin at a marker or after reasoning.

use text::sample::Constraint;

use super::{tokenize_bytewise, vocabulary};
use crate::{Grammar, Limits, TriggeredConstraint, Triggers, Vocabulary};

fn digits(vocabulary: &Vocabulary) -> Box<dyn Constraint> {
    vocabulary.compile(&Grammar::Regex("[0-9]{2}".into()), &Limits::default()).unwrap()
}

/// Whether the constraint accepts `text` byte by byte and may end after it.
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

#[test]
fn the_constraint_begins_after_the_marker() {
    let vocabulary = vocabulary(&[]);
    let triggers =
        Triggers { anywhere: vec!["<n>".into()], leading: vec!["#".into()], may_end: true };
    let accepts = |text: &str| {
        let constraint = TriggeredConstraint::new(&vocabulary, &triggers, digits(&vocabulary));
        accepts(&vocabulary, Box::new(constraint), text)
    };
    assert!(accepts("any <text> a # b"));
    assert!(accepts("a <n>12"));
    assert!(accepts("<<n>12"));
    assert!(accepts(" \n#12"));
    assert!(!accepts("a <n>x"));
    assert!(!accepts("a <n>1"));
    assert!(!accepts("#x"));
}

#[test]
fn a_token_does_not_extend_past_the_marker() {
    let vocabulary = vocabulary(&[]);
    let tokenizer = vocabulary.tokenizer();
    // Uses the beginning of a word of the vocabulary as the marker, so that one token extends past
    // it.
    let word = (0u32..).take(tokenizer.n_vocab()).find(|id| {
        let piece = tokenizer.piece(*id, false).unwrap();
        piece.len() >= 4 && piece.iter().all(u8::is_ascii_lowercase)
    });
    let word = word.unwrap();
    let text = String::from_utf8(tokenizer.piece(word, false).unwrap().to_vec()).unwrap();
    for (mark, before) in [(&text[..3], ""), (&text[1..3], &text[..0])] {
        let triggers = Triggers { anywhere: vec![mark.into()], leading: vec![], may_end: true };
        let mut constraint = TriggeredConstraint::new(&vocabulary, &triggers, digits(&vocabulary));
        for id in tokenize_bytewise(tokenizer, before) {
            constraint.accept(id).unwrap();
        }
        assert!(!constraint.allowed().unwrap().contains(word), "{mark} in {text}");
    }
    let triggers = Triggers { anywhere: vec![text.clone()], leading: vec![], may_end: true };
    let mut constraint = TriggeredConstraint::new(&vocabulary, &triggers, digits(&vocabulary));
    assert!(constraint.allowed().unwrap().contains(word), "it ends with the mark");
    constraint.accept(word).unwrap();
    assert!(!constraint.allowed().unwrap().contains(word));
}

#[test]
fn reasoning_is_not_constrained() {
    let vocabulary = vocabulary(&["<think>", "</think>"]);
    let accepts = |prompt: &str, text: &str| {
        accepts(&vocabulary, vocabulary.after_reasoning(prompt, digits(&vocabulary)), text)
    };
    assert!(accepts("user", "12"));
    assert!(accepts("user", "<think>So.</think>\n\n12"));
    assert!(accepts("user<think>\n", "So.</think>12"));
    assert!(!accepts("user", "So 12"));
    assert!(!accepts("user", "<think>So."), "an answer must follow");
    assert!(!accepts("user<think>", "So.</think>x"));
    assert!(!accepts("user<think>", "12"));
}

#[test]
fn gpt_oss_answers_are_constrained() {
    let vocabulary = vocabulary(&[
        "<|channel|>",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ]);
    let accepts = |text: &str| {
        let prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
        accepts(&vocabulary, vocabulary.after_reasoning(prompt, digits(&vocabulary)), text)
    };
    assert!(accepts("<|channel|>final<|message|>12"));
    assert!(accepts(
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>12"
    ));
    assert!(!accepts("<|channel|>final<|message|>x"));
}
