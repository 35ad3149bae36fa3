//! Templates that are meant to hang or to fill memory end in an error, soon.

use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::*;
use serde_json::Map;
use thermocline::chat::{Input, MAX_TEMPLATE, Message, Template, TemplateError};

fn render(source: &str) -> Result<String, TemplateError> {
    Template::compile(source)?.render(&Input {
        messages: &[Message::new("user", "Hi")],
        tools: None,
        documents: None,
        add_generation_prompt: true,
        bos_token: "<s>",
        eos_token: "</s>",
        variables: &Map::new(),
        now: SystemTime::UNIX_EPOCH,
    })
}

/// Twice the deadline: a template is compiled, then run.
const SOON: Duration = Duration::from_millis(2500);

#[track_caller]
fn check_refused(source: &str) {
    let start = Instant::now();
    let ended = render(source);
    let shown: String = source.chars().take(80).collect();
    assert!(ended.is_err(), "{shown}: {} bytes", ended.unwrap().len());
    assert!(start.elapsed() < SOON, "{shown}: {:?}", start.elapsed());
}

#[test]
fn what_does_not_end_is_ended() {
    for source in [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
        "{% for i in range(100000) %}{% set x = range(100000) | list %}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(90000) %}{% set y = x | length %}{% endfor %}",
    ] {
        check_refused(source);
    }
}

#[test]
fn what_grows_is_stopped() {
    let grows = |how: &str, from: &str| {
        format!(
            "{{% set ns = namespace(x={from}) %}}{{% for i in range(99) %}}{{% set ns.x = {how} %}}{{% endfor %}}{{{{ ns.x }}}}"
        )
    };
    for source in [
        grows("ns.x ~ ns.x", "'a'"),
        grows("ns.x + ns.x", "'a'"),
        grows("ns.x * 2", "'a'"),
        grows("ns.x.replace('a', ns.x)", "'aa'"),
        grows("ns.x | replace('a', ns.x)", "'aa'"),
        grows("ns.x | join(ns.x)", "'aaa'"),
        grows("ns.x.join(ns.x | list)", "'aaa'"),
        grows("ns.x + ns.x", "[1]"),
        grows("[ns.x, ns.x]", "[1]"),
        grows("{'a': ns.x, 'b': ns.x}", "[1]"),
        "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('aaaaaaaaaaaaaaaa') }}".into(),
        "{{ 'a' * 10**9 }}".into(),
        "{{ ('a' * 10**8) ~ ('a' * 10**8) ~ ('a' * 10**8) ~ ('a' * 10**8) }}".into(),
        "{{ '%1000000000d' | format(1) }}".into(),
        "{{ '{:1000000000}'.format(1) }}".into(),
        "{{ 'a' | indent(10**9) }}".into(),
        "{{ [1] | tojson(indent=10**9) }}".into(),
        "{{ ([1] * 10**9) | join }}".into(),
        "{{ [1] | batch(10**9, 'x') | list }}".into(),
        "{{ 'a'.zfill(10**9) }}".into(),
        format!(
            "{{% set x %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endset %}}",
            "a".repeat(5000)
        ),
    ] {
        check_refused(&source);
    }
}

#[test]
fn depth_is_no_danger() {
    for n in [200, 20_000] {
        for (open, inner, close) in
            [("(", "1", ")"), ("[", "", "]"), ("{1:", "1", "}"), ("f(", "1", ")")]
        {
            check_refused(&format!("{{{{ {}{inner}{} }}}}", open.repeat(n), close.repeat(n)));
        }
        let blocks = format!("{}{}", "{% if 1 %}".repeat(n), "{% endif %}".repeat(n));
        check_refused(&blocks);
        // These may be written, so they may as well be read.
        for source in
            [format!("{{{{ {}1 }}}}", "not ".repeat(n)), format!("{{{{ {}1 }}}}", "-".repeat(n))]
        {
            let start = Instant::now();
            let _ = render(&source);
            assert!(start.elapsed() < SOON);
        }
    }
    let nested = "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}";
    check_refused(nested);
    check_refused("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}");
    check_refused(
        "{% set a = namespace() %}{% set b = namespace(x=a) %}{% set a.x = [b] %}{{ a == b }}",
    );
}

#[test]
fn odd_numbers_are_no_danger() {
    for source in [
        "{{ range(0, 10, 0) | list }}",
        "{{ 1 / 0 }}",
        "{{ 1 % 0 }}",
        "{{ 10 ** 40 }}",
        "{{ '%.999999999f' | format(1.5) }}",
        "{{ '%*d' | format(999999999, 1) }}",
    ] {
        check_refused(source);
    }
    assert_eq!(render("{{ [1, 2, 3][::-9223372036854775808] }}{{ [][::-1] }}").unwrap(), "[3][]");
    assert_eq!(render("{{ 1 if nothing is undefined }}{{ nothing }}").unwrap(), "1");
}

#[test]
fn a_template_has_a_longest() {
    let long = Template::compile(&"a".repeat(MAX_TEMPLATE + 1)).unwrap_err();
    assert_eq!(long, TemplateError::TooLong { bytes: MAX_TEMPLATE + 1, limit: MAX_TEMPLATE });
    assert_eq!(render(&"a".repeat(MAX_TEMPLATE)).unwrap().len(), MAX_TEMPLATE);
}

#[test]
fn a_long_conversation_has_room() {
    let template = Template::compile(
        "Begin{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.role %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}",
    );
    let messages: Vec<Message> = (0..3000)
        .map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, &"word ".repeat(200)))
        .collect();
    let text = template.unwrap().render(&Input {
        messages: &messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        bos_token: "<s>",
        eos_token: "</s>",
        variables: &Map::new(),
        now: SystemTime::UNIX_EPOCH,
    });
    assert!(text.unwrap().len() > 3_000_000);
}

/// Pieces of expressions, odd values among them.
const PIECES: [&str; 48] = [
    "messages",
    "messages[0].content",
    "nothing",
    "none",
    "true",
    "0",
    "-1",
    "2.5",
    "1e308",
    "''",
    "'é%s'",
    "[]",
    "[1, 'a']",
    "{}",
    "{'a': 1}",
    "(1,)",
    "range(5)",
    "9223372036854775807",
    "-9223372036854775808",
    "namespace()",
    " + ",
    " - ",
    " * ",
    " / ",
    " // ",
    " % ",
    " ** ",
    " ~ ",
    " == ",
    " < ",
    " in ",
    " and ",
    " if 1 else ",
    "[0]",
    "[::-1]",
    "[1:]",
    "[:-2:3]",
    ".a",
    " | upper",
    " | join",
    " | sort",
    " | tojson",
    " | list",
    " | int",
    " | round(-9)",
    ".split()",
    ".items()",
    " is divisibleby 0",
];

proptest! {
    #[test]
    fn nothing_written_panics(
        parts in prop::collection::vec(prop::sample::select(&PIECES[..]), 1..8),
        block in prop::sample::select(&["{{ @ }}", "{% for i in @ %}{{ i }}{% endfor %}", "{% set x = @ %}{{ x }}"][..]),
    ) {
        let ended = render(&block.replace('@', &parts.concat()));
        let given_up = matches!(&ended, Err(TemplateError::Failed { line: 0, .. } | TemplateError::Endless { line: 0 }));
        prop_assert!(!given_up, "{ended:?}");
    }
}
