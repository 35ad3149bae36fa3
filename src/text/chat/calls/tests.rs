//! Tests each format with whole and split texts, and with text that only looks like a call.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{CallDelta, CallFormat, CallParser, Delivery, Tool};
use crate::chat::{Reasoning, ReplyPart};

fn tools() -> Vec<Tool> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array"},
        },
    });
    ["weather", "time.now"]
        .map(|name| Tool { name: name.into(), parameters: parameters.clone() })
        .into()
}

/// A parsed message: content, and calls as name and arguments.
#[derive(Debug, Default, PartialEq)]
struct Message {
    content: String,
    calls: Vec<(String, String)>,
    ids: Vec<String>,
    n_ended: usize,
}

fn joined(deltas: Vec<CallDelta>) -> Message {
    let mut message = Message::default();
    for delta in deltas {
        match delta {
            CallDelta::Content(text) => message.content += &text,
            CallDelta::Begin { index, id, name } => {
                assert_eq!(index, message.calls.len());
                assert_eq!(message.n_ended, index, "calls do not overlap");
                message.calls.push((name, String::new()));
                message.ids.push(id);
            }
            CallDelta::Arguments { index, fragment } => {
                assert_eq!((index, message.n_ended), (message.calls.len() - 1, index));
                message.calls[index].1 += &fragment;
            }
            CallDelta::End { index } => {
                assert_eq!(index, message.n_ended);
                message.n_ended += 1;
            }
        }
    }
    assert_eq!(message.n_ended, message.calls.len());
    message
}

fn parsed<'a>(
    format: CallFormat,
    delivery: Delivery,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Message {
    let mut parser = CallParser::new(format, &tools(), 7).with_delivery(delivery);
    let mut deltas: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    joined(deltas)
}

/// Parses `text` whole and split at every character, with both kinds of delivery. All results must
/// be equal.
#[track_caller]
fn parse_splits(format: CallFormat, text: &str) -> Message {
    let whole = parsed(format, Delivery::Complete, [text]);
    for delivery in [Delivery::Complete, Delivery::Incremental] {
        let whole = parsed(format, delivery, [text]);
        for (at, _) in text.char_indices() {
            let (one, other) = text.split_at(at);
            assert_eq!(parsed(format, delivery, [one, other]), whole, "{format:?} cut at {at}");
        }
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single = single.iter().map(String::as_str);
        assert_eq!(parsed(format, delivery, single), whole, "{format:?}, single characters");
    }
    whole
}

/// Checks the content and the calls of `text`.
#[track_caller]
fn check(format: CallFormat, text: &str, content: &str, calls: &[(&str, Value)]) {
    let message = parse_splits(format, text);
    let found: Vec<(&str, Value)> = message
        .calls
        .iter()
        .map(|(name, arguments)| (name.as_str(), serde_json::from_str(arguments).unwrap()))
        .collect();
    assert_eq!((message.content.as_str(), &found[..]), (content, calls), "{format:?}: {text:?}");
    let incremental = parsed(format, Delivery::Incremental, [text]);
    assert_eq!((incremental.content, incremental.calls), (message.content, message.calls));
}

fn weather() -> (&'static str, Value) {
    ("weather", json!({"city": "Rome", "days": 2}))
}

fn time() -> (&'static str, Value) {
    ("time.now", json!({}))
}

#[test]
fn hermes() {
    let one = r#"<tool_call>
{"name": "weather", "arguments": {"city": "Rome", "days": 2}}
</tool_call>"#;
    let two = r#"<tool_call>{"name":"time.now","arguments":{}}</tool_call>"#;
    check(CallFormat::Hermes, one, "", &[weather()]);
    check(CallFormat::Hermes, &format!("{one}\n{two}\n"), "", &[weather(), time()]);
    check(CallFormat::Hermes, &format!("Let me see.\n{one}"), "Let me see.", &[weather()]);
    check(CallFormat::Hermes, &format!("{one} So."), " So.", &[weather()]);
    let reversed =
        r#"<tool_call>{"arguments": {"city": "Rome", "days": 2}, "name": "weather"}</tool_call>"#;
    check(CallFormat::Hermes, reversed, "", &[weather()]);
    let as_text = r#"<tool_call>{"name": "weather", "arguments": "{\"city\": \"Rome\", \"days\": 2}"}</tool_call>"#;
    check(CallFormat::Hermes, as_text, "", &[weather()]);
    check(CallFormat::Hermes, r#"<tool_call>{"name": "time.now"}</tool_call>"#, "", &[time()]);
    let open = r#"<tool_call>{"name": "time.now", "arguments": {}}"#;
    check(CallFormat::Hermes, open, "", &[time()]);
    let extra = r#"<tool_call>{"name": "time.now", "arguments": {}, "id": [1]}</tool_call>"#;
    check(CallFormat::Hermes, extra, "", &[time()]);
}

#[test]
fn qwen_xml() {
    let text = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n\
                <parameter=days>\n2\n</parameter>\n</function>\n</tool_call>";
    check(CallFormat::QwenXml, text, "", &[weather()]);
    let bare = "I look.\n<function=time.now>\n</function>\n</tool_call>\n<tool_call>";
    check(CallFormat::QwenXml, bare, "I look.\n<tool_call>", &[time()]);
    let raw = "<tool_call><function=weather><parameter=city>2</parameter>\
               <parameter=tags>[\"a<b\", {}]</parameter><parameter=other>x \"y\"\n</parameter></function></tool_call>";
    let arguments = json!({"city": "2", "tags": ["a<b", {}], "other": "x \"y\""});
    check(CallFormat::QwenXml, raw, "", &[("weather", arguments)]);
}

#[test]
fn llama3() {
    let one = r#"{"name": "weather", "parameters": {"city": "Rome", "days": 2}}"#;
    check(CallFormat::Llama3, one, "", &[weather()]);
    check(CallFormat::Llama3, &format!("<|python_tag|>{one}"), "", &[weather()]);
    let two = r#"{"type": "function", "name": "time.now", "parameters": {}}"#;
    check(CallFormat::Llama3, &format!("{one}; {two}"), "", &[weather(), time()]);
    let nested = r#"{"type": "function", "function": {"name": "time.now", "parameters": {}}}"#;
    check(CallFormat::Llama3, nested, "", &[time()]);
    for answer in
        [r#"{"age": 3, "name": "weather"}"#, "Take {\"name\": 1}", "{} ", "{", r#"{"name": "Bob"}"#]
    {
        check(CallFormat::Llama3, answer, answer, &[]);
    }
}

#[test]
fn mistral() {
    let list = r#"[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome", "days": 2}}, {"name": "time.now", "arguments": {}, "id": "abcdefghi"}]"#;
    check(CallFormat::Mistral, list, "", &[weather(), time()]);
    let newer = r#"[TOOL_CALLS]weather[ARGS]{"city": "Rome", "days": 2}[TOOL_CALLS]time.now[CALL_ID]abcdefghi[ARGS]{}"#;
    check(CallFormat::MistralArgs, newer, "", &[weather(), time()]);
    check(CallFormat::MistralArgs, "Wait. [TOOL_CALLS]time.now[ARGS]{}", "Wait.", &[time()]);
    let ids = parsed(CallFormat::Mistral, Delivery::Complete, [list]).ids;
    assert!(ids.iter().all(|id| id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric())));
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn harmony() {
    let call = r#"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome", "days": 2}<|call|>"#;
    check(CallFormat::Harmony, call, "", &[weather()]);
    // The recipient may also be in the header of the role.
    let role = "<|start|>assistant to=functions.time.now<|channel|>commentary json<|message|>{}";
    check(CallFormat::Harmony, role, "", &[time()]);
    let preamble =
        format!("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{call}");
    check(CallFormat::Harmony, &preamble, "I look.", &[weather()]);
    check(CallFormat::Harmony, "<|channel|>final<|message|>Hi there", "Hi there", &[]);
}

#[test]
fn deepseek() {
    let v3 = "So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n\
              {\"city\": \"Rome\", \"days\": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function\
              <｜tool▁sep｜>time.now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(CallFormat::DeepSeek, v3, "So.", &[weather(), time()]);
    let plain = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Rome\", \
                 \"days\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check(CallFormat::DeepSeekPlain, plain, "", &[weather()]);
}

#[test]
fn gemma() {
    let python = "```tool_code\nprint(weather(city=\"Rome\", days=2))\n```";
    check(CallFormat::Gemma, python, "", &[weather()]);
    let json = "I look.\n```tool_code\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\", \"days\": 2}}\n```";
    check(CallFormat::Gemma, json, "I look.", &[weather()]);
    let code = "```tool_code\nx = 1\n```";
    check(CallFormat::Gemma, code, code, &[]);
}

#[test]
fn generic() {
    let list = r#"{"tool_calls": [{"name": "weather", "arguments": {"city": "Rome", "days": 2}}, {"name": "time.now", "arguments": {}}]}"#;
    check(CallFormat::Generic, list, "", &[weather(), time()]);
    let one = r#"{"name": "weather", "arguments": {"city": "Rome", "days": 2}}"#;
    check(CallFormat::Generic, one, "", &[weather()]);
    check(CallFormat::Generic, r#"{"answer": "tool_calls"}"#, r#"{"answer": "tool_calls"}"#, &[]);
}

#[test]
fn invalid_calls_stay_content_unchanged() {
    for (format, text) in [
        (
            CallFormat::Hermes,
            "a <tool_call>{\"name\": \"weather\", \"arguments\": {city: 1}}</tool_call> b",
        ),
        (
            CallFormat::Hermes,
            "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
        ),
        (CallFormat::Hermes, "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Ro"),
        (CallFormat::Hermes, "<tool_call>{\"name\": \"weather\", \"arguments\": [1]}</tool_call>"),
        (CallFormat::Hermes, "The mark <tool_call> opens a call; <tool_ca"),
        (CallFormat::QwenXml, "<tool_call><function=weather><parameter=city>Rome</parameter>"),
        (CallFormat::Llama3, "<|python_tag|>brave_search.call(query=\"x\")"),
        (CallFormat::Mistral, "[TOOL_CALLS][1]"),
        (CallFormat::MistralArgs, "[TOOL_CALLS]nothing[ARGS]{}"),
        (CallFormat::Harmony, "<|channel|>commentary to=functions.weather<|message|>x"),
        (CallFormat::DeepSeek, "<｜tool▁calls▁begin｜>x"),
        (
            CallFormat::DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n{}",
        ),
        (CallFormat::Generic, "{\"tool_calls\": []}"),
        (CallFormat::Generic, " \n{\"name\": \"weather\"}\n"),
    ] {
        let message = parse_splits(format, text);
        assert_eq!((message.content.as_str(), message.calls.len()), (text, 0), "{format:?}");
    }
}

#[test]
fn a_call_may_follow_an_invalid_one() {
    let valid = r#"<tool_call>{"name": "time.now", "arguments": {}}</tool_call>"#;
    check(CallFormat::Hermes, &format!("<tool_call>x {valid}"), "<tool_call>x", &[time()]);
    check(CallFormat::Hermes, &format!("<tool_call>{valid}"), "<tool_call>", &[time()]);
}

#[test]
fn arguments_arrive_as_they_are_written() {
    let mut parser =
        CallParser::new(CallFormat::Hermes, &tools(), 1).with_delivery(Delivery::Incremental);
    let deltas = parser.push(r#"<tool_call>{"name": "weather", "arguments": {"city": "#);
    assert!(
        matches!(&deltas[..], [CallDelta::Begin { .. }, CallDelta::Arguments { fragment, .. }] if fragment == r#"{"city": "#)
    );
    assert_eq!(parser.push("1"), [CallDelta::Arguments { index: 0, fragment: "1".into() }]);
    // The arguments turn out to be invalid JSON: the call ends, and no text is lost.
    let rest = parser.push("x}");
    let content = CallDelta::Content("x}".into());
    assert_eq!(rest, [CallDelta::End { index: 0 }, content]);
}

#[test]
fn ids_are_seeded() {
    let text = r#"<tool_call>{"name": "time.now", "arguments": {}}</tool_call>"#;
    let id = |seed| {
        let mut parser = CallParser::new(CallFormat::Hermes, &[], seed);
        joined(parser.push(text)).ids.remove(0)
    };
    assert_eq!(id(1), id(1));
    assert_ne!(id(1), id(2));
    assert!(id(1).starts_with("call_") && id(1).len() == 29, "{}", id(1));
}

#[test]
fn reasoning_comes_before_calls() {
    for (format, text) in [
        (
            CallFormat::Hermes,
            "<think>Rome?</think>\n\n<tool_call>{\"name\": \"time.now\", \"arguments\": {}}</tool_call>",
        ),
        (
            CallFormat::Harmony,
            "<|channel|>analysis<|message|>Rome?<|end|><|start|>assistant<|channel|>commentary to=functions.time.now <|constrain|>json<|message|>{}<|call|>",
        ),
    ] {
        for size in 1..text.len() {
            let mut reasoning = Reasoning::after("");
            let mut parser = CallParser::new(format, &tools(), 1);
            let (mut thought, mut deltas) = (String::new(), Vec::new());
            let mut take = |part: ReplyPart, text: &str| match part {
                ReplyPart::Reasoning => thought.push_str(text),
                ReplyPart::Answer => deltas.extend(parser.push(text)),
            };
            let chars: Vec<char> = text.chars().collect();
            for piece in chars.chunks(size) {
                reasoning.push(&piece.iter().collect::<String>(), &mut take);
            }
            reasoning.finish(&mut take);
            deltas.extend(parser.finish());
            let message = joined(deltas);
            assert_eq!((thought.as_str(), message.content.as_str()), ("Rome?", ""));
            assert_eq!(message.calls, [("time.now".to_owned(), "{}".to_owned())]);
        }
    }
}

#[test]
fn templates_show_their_format() {
    for (template, format) in [
        ("{{ '<tool_call>\\n{\"name\": ' }}", CallFormat::Hermes),
        ("<tool_call>\\n<function=example><parameter=a>", CallFormat::QwenXml),
        (
            "<|start_header_id|>{{ role }} Respond with {\"name\": .., \"parameters\": ..}",
            CallFormat::Llama3,
        ),
        ("<|python_tag|>", CallFormat::Llama3),
        ("[TOOL_CALLS] [", CallFormat::Mistral),
        ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", CallFormat::MistralArgs),
        ("<|channel|>commentary to=functions.{{ name }}", CallFormat::Harmony),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ type }}<｜tool▁sep｜>{{ name }}\\n```json\\n",
            CallFormat::DeepSeek,
        ),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜>{{ arguments }}",
            CallFormat::DeepSeekPlain,
        ),
        ("<start_of_turn>{{ role }}", CallFormat::Gemma),
        ("<|im_start|>{{ role }}", CallFormat::Generic),
    ] {
        assert_eq!(CallFormat::detect(template), format, "{template}");
    }
}

proptest! {
    #[test]
    fn no_text_is_lost(
        format in proptest::sample::select(CallFormat::ALL.to_vec()),
        words in proptest::collection::vec(proptest::sample::select(vec![
            "<tool_call>", "</tool_call>", "<function=weather>", "<parameter=city>", "</parameter>",
            "</function>", "{\"name\": \"weather\", \"arguments\": {", "}", "\"a\": 1", "[TOOL_CALLS]",
            "[ARGS]", "[", "]", ",", ";", " ", "\n", "x", "weather", "<|channel|>commentary to=functions.",
            "<|message|>", "<|call|>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
            "```tool_code", "```", "(city='é')", "<|python_tag|>", "\"",
        ]), 0..14),
        size in 1usize..7,
    ) {
        let text = words.concat();
        let chars: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
        for delivery in [Delivery::Complete, Delivery::Incremental] {
            let whole = parsed(format, delivery, [text.as_str()]);
            let cut = parsed(format, delivery, pieces.iter().map(String::as_str));
            prop_assert_eq!(&cut, &whole);
            if whole.calls.is_empty() && format != CallFormat::Harmony {
                prop_assert_eq!(&whole.content, &text);
            }
            if delivery == Delivery::Complete {
                for (_, arguments) in &whole.calls {
                    prop_assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object());
                }
            }
        }
    }
}
