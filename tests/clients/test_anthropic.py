"""Anthropic's Python client against a running server; scripts/check_clients sets TEST_API_BASE_URL and TEST_API_KEY."""

import os

import anthropic
import pytest

URL = os.environ["TEST_API_BASE_URL"]
KEY = os.environ["TEST_API_KEY"]
REQUEST = {
    "model": "any",
    "max_tokens": 8,
    "system": "Tell stories.",
    "messages": [{"role": "user", "content": "Tell me of a cat."}],
    # Newer versions of the client have no `temperature` argument.
    "extra_body": {"temperature": 0},
}


@pytest.fixture(scope="module")
def client():
    return anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)


def test_message(client):
    answer = client.messages.create(**REQUEST)
    assert answer.type == "message" and answer.role == "assistant"
    assert answer.content[0].type == "text" and answer.content[0].text
    assert answer.stop_reason == "max_tokens" and answer.usage.output_tokens == 8
    counted = client.messages.count_tokens(**{key: REQUEST[key] for key in ["model", "system", "messages"]})
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_stream_equals_the_whole(client):
    whole = client.messages.create(**REQUEST).content[0].text
    with client.messages.stream(**REQUEST) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole == final.content[0].text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 8


def test_stop_sequence(client):
    text = client.messages.create(**REQUEST | {"max_tokens": 40}).content[0].text
    word = text.split()[3]
    answer = client.messages.create(**REQUEST | {"max_tokens": 40, "stop_sequences": [word]})
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == word


def test_errors(client):
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**REQUEST | {"extra_body": {"temperature": "hot"}})
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    wrong = anthropic.Anthropic(base_url=URL, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        wrong.messages.create(**REQUEST)
