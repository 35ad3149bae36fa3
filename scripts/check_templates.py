#!/usr/bin/env python3
"""Writes tests/chat/rendered.json: what Python's jinja2 makes of chat templates, for tests/chat/render.rs to equal.

The settings are those with which the `transformers` package renders chat templates: a sandbox without changes to
values, trim_blocks, lstrip_blocks, loop controls, tojson by json.dumps without ASCII escapes, raise_exception and
strftime_now. The time is fixed. Templates: tests/chat/templates, a few real ones beside the repository (only what
they give is kept), and the short ones below, each for one feature.

    pip install jinja2
    python3 scripts/check_templates.py          # writes the file
    python3 scripts/check_templates.py --check  # only compares
"""

import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parent.parent
OWN = ROOT / "tests" / "chat" / "templates"
REAL = ROOT.parent / "shared" / "templates"
OUT = ROOT / "tests" / "chat" / "rendered.json"
NOW = datetime.datetime(2024, 7, 26, 15, 4, 5)


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, id="abcdefghi"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, id="abcdefghi"):
    return {"role": "tool", "content": text, "tool_call_id": id}


SYSTEM = {"role": "system", "content": "You are brief.\nAnswer in \"French\"."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city, in °C <now>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Größe & 'Name'"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "exact": {"type": ["boolean", "null"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "add", "description": "Sum", "parameters": {"type": "object", "properties": {}}},
    },
]
LONG = [m for i in range(12) for m in (user(f"Question {i}?  "), assistant(f" Answer {i}\n"))] + [user("Last?")]
CALLS = [
    user("Weather in Zürich?"),
    assistant(None, tool_calls=[call("get_weather", {"city": "Zürich", "days": [1, 2], "exact": None, "x": 1.5})]),
    tool('{"t": 21.5}'),
    assistant("21.5 °C."),
    user("And the sum of 1 and 2?"),
]
TWO_CALLS = [
    user("Both"),
    assistant("Let me see.", tool_calls=[call("add", {"a": 1}), call("add", {"a": 2}, id="123456789")]),
    tool("1"),
    tool("2", id="123456789"),
]
THINKING = [
    user("One?"),
    assistant("<think>\nHm, <b>.\n</think>\n\nYes."),
    user("Two?"),
    assistant("<think>\nAgain.\n</think>\n\nNo.", reasoning_content=None),
    user("Three?"),
]
CONVERSATIONS = {
    "one": [user("Hi")],
    "system": [SYSTEM, user("  Hi \U0001f600 <|im_end|> ")],
    "turns": [SYSTEM, user("Hi"), assistant("Salut\n"), user("Bye")],
    "long": LONG,
    "calls": CALLS,
    "system_calls": [SYSTEM, *CALLS],
    "two_calls": TWO_CALLS,
    "thinking": THINKING,
    "answered": [user("Hi"), assistant("Hello", thinking="mm")],
    "bad_turns": [assistant("Hi"), user("Hello")],
    "parts": [user([{"type": "text", "text": " Look "}, {"type": "image"}])],
    "none": [],
}
VARIANTS = [
    ("plain", {}),
    ("tools", {"tools": TOOLS}),
    ("no_prompt", {"add_generation_prompt": False}),
    ("no_thinking", {"enable_thinking": False, "reasoning_effort": "low", "tools_in_user_message": False}),
]

# Each of one line or so: a feature that templates use, or an edge of it.
FEATURES = [
    "{{ [1, 'a', none, true, 2.0] }}|{{ {'a': 1, 'b': [none]} }}|{{ none }}|{{ true }}|{{ 1.0 }}|{{ 1e20 }}|{{ 7 / 2 }}",
    "{{ nothing }}|{{ messages[9] }}|{{ messages[0].nothing }}|{{ nothing is defined }}",
    "{{ nothing.more }}",
    "{{ nothing + 'a' }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 2.5 }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 7 / 7 }} {{ 1 + 2 * 3 - 4 }}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% else %}none{% endfor %}",
    "{% for i in [] %}{{ i }}{% else %}none{% endfor %}",
    "{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}={{ v }};{% endfor %}{{ {'a': 1}.get('b', 3) }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}",
    "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}",
    "{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}",
    "{% set x %}a{{ 1 }}b{% endset %}[{{ x }}]{{ x | length }}",
    "{% macro f(a, b=2) %}({{ a }},{{ b }}){% endmacro %}{{ f(1) }}{{ f(1, b=3) }}{{ f(a=5) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}in{% endcall %}",
    "{{ 'Abc dEf'.upper() }} {{ 'AbC'.lower() }} {{ 'abc def'.title() }} {{ 'abc'.capitalize() }} {{ ' a '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ 'xxa'.lstrip('x') }} {{ 'axx'.rstrip('x') }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a-b-c'.split('-', 1) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ 'a\nb'.splitlines() }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abcb'.find('b') }} {{ 'abcb'.rfind('b') }} {{ 'abc'.find('z') }} {{ 'abcb'.count('b') }}",
    "{{ 'a-b-c'.replace('-', '+') }} {{ 'a-b-c'.replace('-', '+', 1) }} {{ ','.join(['a', 'b']) }} {{ 'abc'.isdigit() }} {{ '12'.isdigit() }} {{ 'ab1'.isalnum() }}",
    "{{ 'prefix-a'.removeprefix('prefix-') }} {{ 'a.txt'.removesuffix('.txt') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ '7'.zfill(3) }}",
    "{{ '%s and %d' % ('a', 3) }} {{ 'x: {}'.format(3) }} {{ '%05.2f' | format(3.14159) }}",
    "{{ [3, 1, 2] | sort }} {{ [3, 1, 2] | max }} {{ [3, 1, 2] | min }} {{ [1, 2] | sum }} {{ ['b', 'A'] | sort }} {{ [1, 2, 3] | reverse | list }} {{ [1, 1, 2] | unique | list }}",
    "{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', '==', 'user') | list | length }} {{ ['a', 'b'] | map('upper') | list }}",
    "{{ [1, 2, 3, 4] | select('even') | list }} {{ [1, none, 2] | reject('none') | list }} {{ ['', 'a'] | select | list }} {{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ 'abc' | first }}",
    "{{ 'abc'[1] }} {{ 'abc'[::-1] }} {{ 'abcdef'[1:-1] }} {{ [1, 2, 3][-1] }} {{ [1, 2, 3][:2] }} {{ [1, 2, 3, 4][::2] }} {{ 'é€😀'[1:] }} {{ 'é€😀' | length }}",
    "{{ [][::-1] }}{{ ''[::-1] }}{{ 'abcdef'[4:1:-2] }}{{ [1, 2, 3][-1:-9:-3] }}{{ (1, 2, 3)[1:] }}{{ range(9)[2:5] | list }}{{ 'abc'[9:] }}{{ [1, 2, 3][1:3:-1] }}",
    "{{ nothing[1:] }}",
    "{{ none[1:] }}",
    "{{ [1][::0] }}",
    "{{ 6 is divisibleby 3 }}{{ 6 is divisibleby(4) }}",
    "{{ 6 is divisibleby 0 }}",
    "{{ {'a': [1, {'b': none}], 'c': 'é\"\\\\ \n\t<&\\'>', 'd': 1.0, 'e': true} | tojson }}",
    "{{ {'a': [1, {'b': []}], 'c': {}} | tojson(indent=2) }}",
    "{{ {'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ 'é' | tojson(ensure_ascii=true) }}",
    "{{ nothing | tojson }}",
    "{{ nothing | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ none | default('d', boolean=true) }}",
    "{{ 1 is number }} {{ 'a' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ 'a' is iterable }} {{ [] is sequence }} {{ none is none }} {{ true is boolean }} {{ 1 is true }} {{ 4 is divisibleby 2 }} {{ 3 is odd }} {{ 1.5 is float }} {{ 1 is integer }} {{ 'a' is in ['a'] }} {{ 1 is eq 1 }}",
    "{{ 'a' in 'abc' }} {{ 'a' in {'a': 1} }} {{ 3 not in [1, 2] }} {{ not none }} {{ 1 if false }} {{ 'x' if true else 'y' }} {{ none or 'd' }} {{ 0 and 1 }}",
    "{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }} {{ none == false }} {{ 1 < 2 < 3 }} {{ (1, 2) }} {{ (1,) }}",
    "{%- if x is defined %}a{% elif messages %}b{% else %}c{% endif -%}   d",
    "  {% if true %}\n  kept\n  {% endif %}\nend\n",
    "a\n  {#- comment -#}\n  b {{- ' c ' -}} d\n{%+ if true %}e{% endif +%}\nf",
    "{% raw %}{{ no }}{% endraw %}{{ '{{' }}",
    "{{ 'abc' | upper }}{{ ' a ' | trim }}{{ '--a--' | trim('-') }}{{ 'a b' | title }}{{ 'abc' | capitalize }}{{ 'a b' | replace(' ', '_') }}{{ 'ab' | list }}{{ '3' | int + 1 }}{{ 'x' | int(5) }}{{ '1.5' | float }}{{ -3 | abs }}{{ 2.567 | round(1) }}{{ 2.5 | round }}{{ 3 | string + 'a' }}",
    "{{ 'a\nb' | indent(2) }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(width=3, first=false) }}",
    "{{ '<a>' | e }}{{ '<a>' | escape }}{{ '<a>' | safe }}{{ [1, 2, 3] | batch(2) | list }}",
    "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ strftime_now('%A %B %j %y %I %p %a %-d %%') }}",
    "{{ raise_exception('told ' ~ 'so') }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% with c = 3 %}{{ c }}{% endwith %}{{ c }}",
    "{% for i in range(2) %}{% set y = i %}{% endfor %}{{ y }}{% if true %}{% set z = 1 %}{% endif %}{{ z }}",
    "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for i in range(10) if i is even %}{{ i }}{% endfor %}{{ range(2, 8, 3) | list }}",
    "{{ [1] + [2] }} {{ 'ab' * 3 }} {{ [0] * 2 }} {{ dict(a=1) }} {{ ['a', 'b'] | join }} {{ [1, 2] | join(', ') }} {{ [[1, 2], [3]] | sum(start=[]) }}",
    "{{ messages[0]['role'] }} {{ messages[0].role }} {{ messages[-1].content }} {{ messages[0]['nothing'] is undefined }} {{ messages | length }} {{ tools is none }} {{ documents is none }}",
    "{% generation %}kept{% endgeneration %}",
    "{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}",
    "{{ cycler('a', 'b').next() }}{% set j = joiner(',') %}{{ j() }}{{ j() }}",
    "{{ messages.append(1) }}",
    "{{ ''.__class__ }}",
    "{% include 'other' %}",
    "{{ unknown_function() }}",
    "{{ 1 | unknown_filter }}",
    "{% if %}",
    "{{ 'open",
    "{% for x in 5 %}{% endfor %}",
    "{{ 1 / 0 }}",
    "{{ '3' * '4' }}",
    "{{ {'a': 1}.a }}{{ {'items': 1}.items is string }}{{ {'keys': 1}['keys'] }}",
    "{{ 'a' 'b' }}{{ \"\\u00e9\\n\\x41\" }}{{ '\\'' }}",
    "{{ 2 * 3 }}{{ 'ab' * 2 ~ 'c' * 2 }}{{ -2 * 3 }}{{ (1 + 2) * 3 }}{{ [1, 2][0] * 4 }}",
    "{% filter upper %}abc{% endfilter %}{% set t = 'a' | upper ~ 'b' %}{{ t }}",
    "{{ ['a', 'b', 'c'] | join(' | ') }}{{ ({'a': 1}) | length }}{{ 'a' | length == 1 and true }}{{ not 'a' in 'b' }}",
    "{{ [{'n': 2}, {'n': 1}] | sort(attribute='n') | map(attribute='n') | list }}{% for g in [{'k': 'a', 'v': 1}, {'k': 'b', 'v': 2}, {'k': 'a', 'v': 3}] | groupby('k') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}",
]


def render(env, source, variables):
    context = {
        "messages": [],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        **variables,
    }
    # What the extension of transformers does with it is of no matter here: the text inside stays.
    for tag, becomes in (("{% generation %}", "{% if true %}"), ("{% endgeneration %}", "{% endif %}")):
        source = source.replace(tag, becomes)
    try:
        return env.from_string(source).render(**context)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, ZeroDivisionError, AttributeError):
        return None


def main():
    env = environment()
    cases = []
    for path in sorted(OWN.glob("*.jinja")) + sorted(REAL.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for talk, messages in CONVERSATIONS.items():
            for variant, variables in VARIANTS:
                text = render(env, source, {"messages": messages, **variables})
                cases.append({"file": path.name, "talk": talk, "variant": variant, "text": text})
    features = [
        {"source": source, "text": render(env, source, {"messages": CONVERSATIONS["turns"]})} for source in FEATURES
    ]
    data = {
        "about": "made by scripts/check_templates.py with jinja2 " + jinja2.__version__ + "; null stands for an error",
        "now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()),
        "conversations": CONVERSATIONS,
        "variants": dict(VARIANTS),
        "cases": cases,
        "features": features,
    }
    text = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
    if "--check" in sys.argv:
        sys.exit(OUT.read_text(encoding="utf-8") != text)
    OUT.write_text(text, encoding="utf-8")
    print(f"{len(cases)} conversations and {len(features)} features in {OUT}")


if __name__ == "__main__":
    main()
