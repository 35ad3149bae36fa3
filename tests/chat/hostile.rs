//! Templates that try to hang or to fill memory end in an error within a limited time.

use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::*;
use serde_json::Map;
use thermocline::chat::{Input, MAX_TEMPLATE, Message, Template, TemplateError};

fn render(source: &str) -> Result<String, TemplateError> {
    render_for(source, &[Message::new("user", "Hi")])
}

fn render_for(source: &str, messages: &[Message]) -> Result<String, TemplateError> {
    Template::compile(source)?.render(&Input {
        messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        bos_token: "<s>",
        eos_token: "</s>",
        variables: &Map::new(),
        now: SystemTime::UNIX_EPOCH,
    })
}

/// Twice the sum of the deadline (900 ms) and its grace period (100 ms), because a template is
/// compiled and then rendered, plus a reserve of 500 ms.
const LIMIT: Duration = Duration::from_millis(2500);

/// Why a template ended without text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    /// The limit on output.
    Output,
    /// The limit on steps.
    Steps,
    /// An error of the template: syntax, depth, numbers.
    Invalid,
    /// The deadline. A template that one of the counters can end must not reach it.
    Deadline,
}

/// Compiles and renders a template. Returns the limit or error that ended it, the time that it
/// took, and the error message or the length of its text.
fn render_timed(source: &str) -> (Option<StopReason>, Duration, String) {
    let start = Instant::now();
    let (reason, what) = match render(source) {
        Ok(text) => (None, format!("{} bytes", text.len())),
        Err(error) => {
            let reason = if matches!(error, TemplateError::TooMuch { .. }) {
                StopReason::Output
            } else if matches!(error, TemplateError::Endless { .. }) {
                StopReason::Steps
            } else if matches!(error, TemplateError::TooSlow { .. }) {
                StopReason::Deadline
            } else {
                StopReason::Invalid
            };
            (Some(reason), error.to_string())
        }
    };
    (reason, start.elapsed(), what)
}

/// Number of attempts per template, because on a busy machine the deadline may end any template.
const TRIES: usize = 5;

#[track_caller]
fn check_refused(source: &str, reason: StopReason) {
    let shown: String = source.chars().take(80).collect();
    let busy = |(found, took, _): &(Option<StopReason>, Duration, String)| {
        *found == Some(StopReason::Deadline) || *took >= LIMIT
    };
    let tries = (1..TRIES).map(|_| render_timed(source)).find(|end| !busy(end));
    let (found, took, what) = tries.unwrap_or_else(|| render_timed(source));
    assert_eq!(found, Some(reason), "{shown}: {what}");
    assert!(took < LIMIT, "{shown}: {took:?}");
}

/// Renders a template that ends soon, several times if the machine was busy.
fn render_soon(
    render: impl Fn() -> Result<String, TemplateError>,
) -> Result<String, TemplateError> {
    let given_up = |ended: &Result<String, TemplateError>| {
        matches!(ended, Err(TemplateError::Failed { line: 0, .. } | TemplateError::TooSlow { .. }))
    };
    (1..TRIES).map(|_| render()).find(|ended| !given_up(ended)).unwrap_or_else(render)
}

#[test]
fn endless_templates_are_stopped() {
    let rounds =
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}";
    check_refused(rounds, StopReason::Steps);
    for source in [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
    ] {
        check_refused(source, StopReason::Invalid);
    }
    for source in [
        "{% for i in range(100000) %}{% set x = range(100000) | list %}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(90000) %}{% set y = x | length %}{% endfor %}",
    ] {
        check_refused(source, StopReason::Output);
    }
}

#[test]
fn growing_values_are_stopped() {
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
        "{{ ('a' * 10**8) ~ ('a' * 10**8) ~ ('a' * 10**8) ~ ('a' * 10**8) }}".into(),
        "{{ '%1000000000d' | format(1) }}".into(),
        "{{ '{:1000000000}'.format(1) }}".into(),
        "{{ 'a' | indent(10**9) }}".into(),
        "{{ [1] | tojson(indent=10**9) }}".into(),
        "{{ [1] | batch(10**9, 'x') | list }}".into(),
        "{{ 'a'.zfill(10**9) }}".into(),
        format!(
            "{{% set x %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endset %}}",
            "a".repeat(5000)
        ),
    ] {
        check_refused(&source, StopReason::Output);
    }
    for source in ["{{ 'a' * 10**9 }}", "{{ ([1] * 10**9) | join }}"] {
        check_refused(source, StopReason::Invalid);
    }
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    for n in [200, 20_000] {
        for (open, inner, close) in
            [("(", "1", ")"), ("[", "", "]"), ("{1:", "1", "}"), ("f(", "1", ")")]
        {
            check_refused(
                &format!("{{{{ {}{inner}{} }}}}", open.repeat(n), close.repeat(n)),
                StopReason::Invalid,
            );
        }
        let blocks = format!("{}{}", "{% if 1 %}".repeat(n), "{% endif %}".repeat(n));
        check_refused(&blocks, StopReason::Invalid);
        // These are valid but deeply nested: they may succeed or fail, but must end within the
        // limit.
        for source in
            [format!("{{{{ {}1 }}}}", "not ".repeat(n)), format!("{{{{ {}1 }}}}", "-".repeat(n))]
        {
            let took = || {
                let start = Instant::now();
                let _ = render(&source);
                start.elapsed()
            };
            assert!((0..TRIES).any(|_| took() < LIMIT), "{n}");
        }
    }
    let nested = "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}";
    check_refused(nested, StopReason::Output);
    check_refused("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", StopReason::Invalid);
    check_refused(
        "{% set a = namespace() %}{% set b = namespace(x=a) %}{% set a.x = [b] %}{{ a == b }}",
        StopReason::Invalid,
    );
}

#[test]
fn invalid_arithmetic_is_an_error() {
    for source in ["{{ range(0, 10, 0) | list }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 10 ** 40 }}"] {
        check_refused(source, StopReason::Invalid);
    }
    for source in ["{{ '%.999999999f' | format(1.5) }}", "{{ '%*d' | format(999999999, 1) }}"] {
        check_refused(source, StopReason::Output);
    }
    let rendered = |source: &str| render_soon(|| render(source)).unwrap();
    assert_eq!(rendered("{{ [1, 2, 3][::-9223372036854775808] }}{{ [][::-1] }}"), "[3][]");
    assert_eq!(rendered("{{ 1 if nothing is undefined }}{{ nothing }}"), "1");
}

#[test]
fn template_length_is_limited() {
    let long = Template::compile(&"a".repeat(MAX_TEMPLATE + 1)).unwrap_err();
    assert_eq!(long, TemplateError::TooLong { bytes: MAX_TEMPLATE + 1, limit: MAX_TEMPLATE });
    let longest = "a".repeat(MAX_TEMPLATE);
    assert_eq!(render_soon(|| render(&longest)).unwrap().len(), MAX_TEMPLATE);
}

#[test]
fn a_long_conversation_is_rendered() {
    let source = "Begin{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.role %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}";
    let messages: Vec<Message> = (0..3000)
        .map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, &"word ".repeat(200)))
        .collect();
    let text = render_soon(|| render_for(source, &messages));
    assert!(text.unwrap().len() > 3_000_000);
}

/// Parts of expressions, including extreme values.
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
    fn no_template_panics(
        parts in prop::collection::vec(prop::sample::select(&PIECES[..]), 1..8),
        block in prop::sample::select(&["{{ @ }}", "{% for i in @ %}{{ i }}{% endfor %}", "{% set x = @ %}{{ x }}"][..]),
    ) {
        let ended = render_soon(|| render(&block.replace('@', &parts.concat())));
        let given_up = matches!(&ended, Err(TemplateError::Failed { line: 0, .. } | TemplateError::TooSlow { .. }));
        prop_assert!(!given_up, "{ended:?}");
    }
}
