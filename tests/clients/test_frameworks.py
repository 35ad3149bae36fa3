"""One conversation each through LangChain and LlamaIndex; skipped where they are not installed."""

import os

import pytest

URL = os.environ["TEST_API_BASE_URL"]
KEY = os.environ["TEST_API_KEY"]


def test_langchain():
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model="any", max_tokens=8, max_retries=0)
    messages = [("system", "Tell stories."), ("user", "Tell me of a cat.")]
    answer = chat.invoke(messages)
    assert answer.content and answer.usage_metadata["output_tokens"] == 8
    turn = chat.invoke([*messages, answer, ("user", "And of a dog?")])
    assert turn.content
    assert "".join(chunk.content for chunk in chat.stream(messages))


def test_llama_index():
    module = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage

    chat = module.OpenAILike(
        api_base=f"{URL}/v1", api_key=KEY, model="any", max_tokens=8, max_retries=0, is_chat_model=True
    )
    messages = [ChatMessage(role="user", content="Tell me of a cat.")]
    answer = chat.chat(messages)
    assert answer.message.content
    turn = chat.chat([*messages, answer.message, ChatMessage(role="user", content="And of a dog?")])
    assert turn.message.content
    assert list(chat.stream_chat(messages))[-1].message.content
    assert chat.complete("Once upon a time").text
