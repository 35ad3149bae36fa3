"""OpenAI's Python client against a running server; scripts/check_clients sets TEST_API_BASE_URL and TEST_API_KEY."""

import os
import time

import httpx
import openai
import pytest

URL = os.environ["TEST_API_BASE_URL"]
KEY = os.environ["TEST_API_KEY"]
MESSAGES = [{"role": "system", "content": "Tell stories."}, {"role": "user", "content": "Tell me of a cat."}]


@pytest.fixture(scope="module")
def client():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)


def ask(client, **more):
    fields = {"model": "any", "messages": MESSAGES, "max_tokens": 8, "temperature": 0} | more
    return client.chat.completions.create(**fields)


def test_models(client):
    models = client.models.list().data
    assert len(models) == 1 and models[0].object == "model"
    assert client.models.retrieve(models[0].id).id == models[0].id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_chat(client):
    answer = ask(client)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer._request_id


def test_chat_stream_equals_the_whole(client):
    whole = ask(client).choices[0].message.content
    text, usage, reasons = "", None, []
    for chunk in ask(client, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            assert chunk.usage is None
            text += chunk.choices[0].delta.content or ""
            reasons.append(chunk.choices[0].finish_reason)
        else:
            usage = chunk.usage
    assert text == whole
    assert reasons[-1] == "length" and not any(reasons[:-1])
    assert usage.completion_tokens == 8


def test_stream_helper_checks_each_chunk(client):
    # The helper treats an answer that the token limit ended as an error, so a stop string ends it.
    word = ask(client, max_tokens=40).choices[0].message.content.split()[3]
    fields = {"model": "any", "messages": MESSAGES, "max_tokens": 40, "temperature": 0, "stop": word}
    with client.chat.completions.stream(**fields, stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == ask(client, **fields).choices[0].message.content
    assert final.usage.completion_tokens > 0


def test_choices(client):
    answer = ask(client, n=3, temperature=1.5, seed=7, extra_body={"top_k": 0})
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    again = ask(client, n=3, temperature=1.5, seed=7, extra_body={"top_k": 0})
    assert texts == [choice.message.content for choice in again.choices]


def test_logprobs(client):
    answer = ask(client, logprobs=True, top_logprobs=5)
    content = answer.choices[0].logprobs.content
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    for token in content:
        assert token.logprob <= 0 and token.bytes is not None and len(token.top_logprobs) == 5


def test_stop(client):
    text = ask(client, max_tokens=40).choices[0].message.content
    word = text.split()[3]
    answer = ask(client, max_tokens=40, stop=[word])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == text.split(word)[0]


def test_completions(client):
    answer = client.completions.create(model="any", prompt="Once upon a time", max_tokens=6, temperature=0)
    assert answer.object == "text_completion" and answer.choices[0].text
    parts = client.completions.create(
        model="any", prompt="Once upon a time", max_tokens=6, temperature=0, stream=True
    )
    assert "".join(part.choices[0].text for part in parts) == answer.choices[0].text
    echoed = client.completions.create(model="any", prompt="Once upon a time", max_tokens=0, echo=True, logprobs=2)
    assert echoed.choices[0].text == "Once upon a time"
    assert len(echoed.choices[0].logprobs.token_logprobs) == echoed.usage.prompt_tokens
    several = client.completions.create(model="any", prompt=["The cat", "The dog"], max_tokens=2, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def test_responses(client):
    answer = client.responses.create(model="any", input="Tell me of a cat.", max_output_tokens=8, temperature=0)
    assert answer.id.startswith("resp_") and answer.output_text
    text, final = "", None
    stream = client.responses.create(
        model="any", input="Tell me of a cat.", max_output_tokens=8, temperature=0, stream=True
    )
    for event in stream:
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            final = event.response
    assert text == answer.output_text == final.output_text
    assert final.usage.output_tokens == 8


def test_embeddings_in_both_encodings(client):
    texts = ["A cat.", "The king has a ship."]
    # By default, this client requests base64 and decodes it.
    coded = client.embeddings.create(model="any", input=texts)
    plain = client.embeddings.create(model="any", input=texts, encoding_format="float")
    assert [item.index for item in coded.data] == [0, 1]
    for a, b in zip(coded.data, plain.data):
        assert a.embedding == pytest.approx(b.embedding, abs=1e-6)
        assert sum(x * x for x in a.embedding) == pytest.approx(1, abs=1e-4)
    assert coded.usage.prompt_tokens > 4


def test_wrong_key():
    wrong = openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0)
    assert wrong.models.list().data, "the list of models needs no key"
    with pytest.raises(openai.AuthenticationError) as refused:
        ask(wrong)
    assert refused.value.type == "authentication_error"


def test_bad_field(client):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, temperature="hot")
    assert refused.value.param == "temperature" and "temperature" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, messages=[{"role": "user", "content": "x " * 5000}])
    assert refused.value.type == "exceed_context_size_error"


def busy_slots():
    slots = httpx.get(f"{URL}/slots", headers={"authorization": f"Bearer {KEY}"}).json()
    return sum(slot["is_processing"] for slot in slots)


def test_abort_in_mid_stream_frees_the_slot(client):
    endless = {"ignore_eos": True}
    stream = ask(client, stream=True, max_tokens=100_000, temperature=1, extra_body=endless)
    for count, _ in enumerate(stream):
        if count == 3:
            break
    stream.close()
    deadline = time.monotonic() + 10
    while busy_slots() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert busy_slots() == 0


def test_reasoning_and_unknown_fields(client):
    answer = ask(client, extra_body={"reasoning_format": "none", "no_such_field": 1}, user="me")
    assert answer.choices[0].message.content
    assert ask(client, reasoning_effort="low").choices[0].message.content


@pytest.mark.asyncio
async def test_many_at_once():
    import asyncio

    client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)

    async def ask_about(topic):
        messages = [{"role": "user", "content": f"Tell me of a {topic}."}]
        answer = await client.chat.completions.create(model="any", messages=messages, max_tokens=8, temperature=0)
        return answer.choices[0].message.content

    topics = ["cat", "dog", "bird", "fish", "tree", "moon", "ship", "king"]
    together = await asyncio.gather(*[ask_about(topic) for topic in topics])
    alone = [await ask_about(topic) for topic in topics]
    assert together == alone
