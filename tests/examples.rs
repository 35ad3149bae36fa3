//! The programs in `examples/`, run on the built-in model.

use std::io::Cursor;

#[path = "../examples/chat.rs"]
#[allow(dead_code)] // main
mod chat;
#[path = "../examples/generate.rs"]
#[allow(dead_code)] // main
mod generate;
#[path = "../examples/plan.rs"]
#[allow(dead_code)] // main
mod plan;

#[test]
fn a_prompt_is_continued() {
    let mut out = Vec::new();
    generate::run("Once upon a time", None, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("Once upon a time, there was"), "{text}");
    assert!(text.contains("[64 tokens, "), "{text}");
}

#[test]
fn each_question_is_answered() {
    let mut out = Vec::new();
    chat::run(None, Cursor::new("Who are you?\nAnd the dog?\n"), &mut out).unwrap();
    let answers = String::from_utf8(out).unwrap();
    assert!(answers.lines().filter(|line| !line.trim().is_empty()).count() >= 2, "{answers}");
}

#[test]
fn a_plan_follows_the_size_of_the_card() {
    let plan = |gib| {
        let mut out = Vec::new();
        plan::run(gib, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let (large, small) = (plan(8.0), plan(0.51));
    assert!(large.contains("tokens/s") && large != small, "{large}{small}");
}
