"""Typed answers and tool calls by the Python clients; scripts/check_clients sets TEST_API_BASE_URL and TEST_API_KEY."""

import json
import os
from typing import Literal

import anthropic
import openai
import pydantic
import pytest

URL = os.environ["TEST_API_BASE_URL"]
KEY = os.environ["TEST_API_KEY"]
MESSAGES = [{"role": "user", "content": "How many cats, and of which color?"}]


class Cats(pydantic.BaseModel):
    # Without this, a small model adds properties of its own.
    model_config = pydantic.ConfigDict(extra="forbid")
    count: int = pydantic.Field(ge=0, le=99)
    color: Literal["red", "green"]


def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": Cats.model_json_schema()}}


TOOLS = [tool("count_cats"), tool("count_dogs")]


@pytest.fixture(scope="module")
def client():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)


def ask(client, **more):
    # Greedy sampling: the model was not trained on JSON, and sampled tokens are mostly white space.
    fields = {"model": "any", "messages": MESSAGES, "max_tokens": 350, "temperature": 0} | more
    return client.chat.completions.create(**fields)


def test_parse_gives_a_typed_answer(client):
    answer = client.chat.completions.parse(model="any", messages=MESSAGES, response_format=Cats, max_tokens=200)
    assert isinstance(answer.choices[0].message.parsed, Cats)


def test_json_object(client):
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=400)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].message.content.lstrip().startswith("{")


def test_responses_parse(client):
    answer = client.responses.parse(model="any", input="How many cats?", text_format=Cats, max_output_tokens=200)
    assert isinstance(answer.output_parsed, Cats)


def test_bad_schema(client):
    fields = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "hiccup"}}}
    with pytest.raises(openai.BadRequestError):
        ask(client, response_format=fields)


@pytest.mark.parametrize("stream", [False, True])
def test_required_call(client, stream):
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    if stream:
        settings = {"model": "any", "messages": MESSAGES, "max_tokens": 350, "temperature": 0}
        with client.chat.completions.stream(**settings, **fields) as events:
            for _ in events:
                pass
            choice = events.get_final_completion().choices[0]
    else:
        choice = ask(client, **fields).choices[0]
    assert choice.finish_reason == "tool_calls" and len(choice.message.tool_calls) == 1
    call = choice.message.tool_calls[0]
    assert call.function.name in ["count_cats", "count_dogs"]
    Cats.model_validate_json(call.function.arguments)


def test_parallel_calls(client):
    # The grammar allows several calls. The model chooses their number, and the limit may cut the last one.
    choice = ask(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=True).choices[0]
    calls = choice.message.tool_calls or []
    if choice.finish_reason == "tool_calls":
        assert calls
        for call in calls:
            Cats.model_validate_json(call.function.arguments)
        assert len({call.id for call in calls}) == len(calls)
    else:
        assert choice.finish_reason == "length"


def test_a_conversation_with_a_tool(client):
    named = {"type": "function", "function": {"name": "count_dogs"}}
    message = ask(client, tools=TOOLS, tool_choice=named, parallel_tool_calls=False).choices[0].message
    assert message.tool_calls[0].function.name == "count_dogs"
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "7"}
    turn = ask(client, messages=[*MESSAGES, message, result], tools=TOOLS, tool_choice="none", max_tokens=8)
    assert turn.choices[0].message.content and not turn.choices[0].message.tool_calls


def test_anthropic_tool_use():
    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    fields = {
        "model": "any",
        "max_tokens": 350,
        "extra_body": {"temperature": 0},
        "messages": MESSAGES,
        "tools": [{"name": "count_cats", "input_schema": Cats.model_json_schema()}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    answer = client.messages.create(**fields)
    assert answer.stop_reason == "tool_use"
    Cats.model_validate(answer.content[0].input)
    with client.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    Cats.model_validate(final.content[0].input)
