// OpenAI's Node client against a running server; scripts/check_clients sets TEST_API_BASE_URL and TEST_API_KEY.

import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const URL = process.env.TEST_API_BASE_URL;
const apiKey = process.env.TEST_API_KEY;
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me of a cat." }];
const ask = (more = {}, options = {}) =>
  client.chat.completions.create({ model: "any", messages, max_tokens: 8, temperature: 0, ...more }, options);

test("models are listed", async () => {
  const { data } = await client.models.list();
  assert.equal(data.length, 1);
});

test("a stream has the text of the whole answer, and usage", async () => {
  const whole = (await ask()).choices[0].message.content;
  let text = "";
  let usage = null;
  for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole);
  assert.equal(usage.completion_tokens, 8);
});

test("the stream helper accepts each chunk", async () => {
  const stream = client.chat.completions.stream({ model: "any", messages, max_tokens: 8, temperature: 0 });
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].finish_reason, "length");
});

test("choices, log-probabilities and stop strings", async () => {
  const answer = await ask({ n: 2, logprobs: true, top_logprobs: 3 });
  assert.equal(answer.choices.length, 2);
  assert.equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 3);
  const text = (await ask({ max_tokens: 40 })).choices[0].message.content;
  const word = text.trim().split(/\s+/)[3];
  const stopped = await ask({ max_tokens: 40, stop: word });
  assert.equal(stopped.choices[0].message.content, text.split(word)[0]);
});

test("responses are streamed", async () => {
  const stream = await client.responses.create({ model: "any", input: "Hi", max_output_tokens: 4, stream: true });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  assert.equal(kinds[0], "response.created");
  assert.equal(kinds.at(-1), "response.completed");
});

test("errors have their classes", async () => {
  const wrong = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(wrong.chat.completions.create({ model: "any", messages }), OpenAI.AuthenticationError);
  await assert.rejects(ask({ temperature: "hot" }), OpenAI.BadRequestError);
});

test("embeddings are decoded", async () => {
  const answer = await client.embeddings.create({ model: "any", input: ["A cat.", "A ship."] });
  const norm = answer.data[1].embedding.reduce((sum, x) => sum + x * x, 0);
  assert.ok(Math.abs(norm - 1) < 1e-4);
});

test("an aborted stream frees its slot", async () => {
  const controller = new AbortController();
  const params = { stream: true, max_tokens: 100000, ignore_eos: true, temperature: 1 };
  const stream = await ask(params, { signal: controller.signal });
  for await (const _ of stream) {
    controller.abort();
    break;
  }
  const deadline = Date.now() + 10000;
  const busy = async () => {
    const slots = await (await fetch(`${URL}/slots`, { headers: { authorization: `Bearer ${apiKey}` } })).json();
    return slots.filter((slot) => slot.is_processing).length;
  };
  while ((await busy()) > 0 && Date.now() < deadline) await new Promise((done) => setTimeout(done, 20));
  assert.equal(await busy(), 0);
});
