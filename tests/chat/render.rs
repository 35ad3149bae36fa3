//! Rendering equals Python's `jinja2` with the settings of `transformers`.
//!
//! The expected texts are in `tests/chat/rendered.json.gz`, which `scripts/check_templates` makes.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value};
use thermocline::chat::{Input, Message, Template, TemplateError};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chat")
}

fn expected() -> Value {
    let file = std::fs::File::open(folder().join("rendered.json.gz")).unwrap();
    serde_json::from_reader(flate2::read::GzDecoder::new(file)).unwrap()
}

/// The text of a template in the repository or in `../shared/templates`; `None` if neither has it.
fn source(file: &str) -> Option<String> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/templates").join(file);
    let own = folder().join("templates").join(file);
    std::fs::read_to_string(own).or_else(|_| std::fs::read_to_string(beside)).ok()
}

fn conversation(data: &Value, name: &str) -> Vec<Message> {
    let message = |value: &Value| {
        let mut more = value.as_object().unwrap().clone();
        let role = more.shift_remove("role").unwrap().as_str().unwrap().to_owned();
        let content = more.shift_remove("content").unwrap();
        Message { role, content, more }
    };
    data["conversations"][name].as_array().unwrap().iter().map(message).collect()
}

fn render(
    source: &str,
    messages: &[Message],
    variant: &Map<String, Value>,
    now: u64,
) -> Result<String, TemplateError> {
    let mut variables = variant.clone();
    let tools = variables.shift_remove("tools");
    let prompt = variables.shift_remove("add_generation_prompt");
    Template::compile(source)?.render(&Input {
        messages,
        tools: tools.as_ref(),
        documents: None,
        add_generation_prompt: prompt.is_none_or(|p| p == true),
        bos_token: "<s>",
        eos_token: "</s>",
        variables: &variables,
        now: UNIX_EPOCH + Duration::from_secs(now),
    })
}

#[test]
fn conversations_match_python() {
    let data = expected();
    let (mut n_equal, mut n_refused, mut gone) = (0, 0, Vec::new());
    for case in data["cases"].as_array().unwrap() {
        let (file, talk) = (case["file"].as_str().unwrap(), case["talk"].as_str().unwrap());
        let variant = case["variant"].as_str().unwrap();
        let Some(source) = source(file) else {
            gone.push(file);
            continue;
        };
        let variables = data["variants"][variant].as_object().unwrap();
        let now = data["now"].as_u64().unwrap();
        let text = render(&source, &conversation(&data, talk), variables, now);
        assert_eq!(
            text.as_ref().ok().map(String::as_str),
            case["text"].as_str(),
            "{file}, {talk}, {variant}: {text:?}"
        );
        match text {
            Ok(_) => n_equal += 1,
            Err(_) => n_refused += 1,
        }
    }
    gone.dedup();
    if !gone.is_empty() {
        println!("skipped: {gone:?} do not exist");
    }
    assert!(n_equal > 150 && n_refused > 20, "{n_equal} equal, {n_refused} refused by both");
}

#[test]
fn template_features_match_python() {
    let data = expected();
    let messages = conversation(&data, "turns");
    for case in data["features"].as_array().unwrap() {
        let source = case["source"].as_str().unwrap();
        let text = render(source, &messages, &Map::new(), data["now"].as_u64().unwrap());
        assert_eq!(
            text.as_ref().ok().map(String::as_str),
            case["text"].as_str(),
            "{source}: {text:?}"
        );
    }
}

#[test]
fn an_error_has_the_templates_line() {
    let error_of = |source: &str| render(source, &[], &Map::new(), 0).unwrap_err();
    let raised = error_of("a\n{% if true %}\n{{ raise_exception('no ' ~ 'way') }}{% endif %}");
    assert_eq!(raised, TemplateError::Raised { line: 3, message: "no way".into() });
    assert_eq!(raised.to_string(), "line 3: no way");
    let in_macro =
        error_of("{% macro f() %}\n{{ raise_exception('x') }}{% endmacro %}\n\n{{ f() }}");
    assert!(matches!(in_macro, TemplateError::Raised { .. }), "{in_macro:?}");
    for (source, line) in [("\n\n{% if %}", 3), ("{{ 'open", 1), ("x\n{% endif %}", 2)] {
        let error = error_of(source);
        assert!(matches!(error, TemplateError::Syntax { line: l, .. } if l == line), "{error:?}");
    }
    let undefined = error_of("\n{{ nothing.more }}");
    assert!(matches!(undefined, TemplateError::Failed { line: 2, .. }), "{undefined:?}");
}
