// @anthropic-ai/sdk: messages, token counts, models; its errors and its retries.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { cell, collect, facts, noting, refused, schema } from "./asking.mjs";

const client = new Anthropic({ baseURL: facts.url, apiKey: facts.key, maxRetries: 0 });
const message = { model: facts.model, messages: facts.messages, max_tokens: facts.max_tokens, temperature: 0 };
const tool = { name: "weather", description: "of a city", input_schema: schema };
const calling = { ...message, max_tokens: 64, tools: [tool], tool_choice: { type: "any" } };

function checkText(answer) {
  assert.equal(answer.content[0].text, facts.chat.text);
  assert.equal(answer.stop_reason, "end_turn");
  const { input_tokens, cache_read_input_tokens, output_tokens } = answer.usage;
  assert.equal(input_tokens + cache_read_input_tokens, facts.chat.num_prompt_tokens);
  assert.equal(output_tokens, facts.chat.num_completion_tokens);
}

function checkCalls(answer) {
  assert.equal(answer.stop_reason, "tool_use");
  for (const block of answer.content) {
    assert.equal(block.name, "weather");
    assert.ok(["Paris", "London"].includes(block.input.city));
  }
}

await cell("messages", "whole", async () => {
  checkText(await client.messages.create(message));
  checkCalls(await client.messages.create(calling));
  const counted = await client.messages.countTokens({ model: facts.model, messages: facts.messages });
  assert.equal(counted.input_tokens, facts.chat.num_prompt_tokens);
  const stranger = client.withOptions({ apiKey: facts.wrong_key });
  await refused(Anthropic.AuthenticationError, () => stranger.messages.create(message));
  const other = { ...message, model: "no-such-model" };
  await refused(Anthropic.NotFoundError, () => client.messages.create(other));
  const broken = { ...message, model: facts.broken };
  await refused(Anthropic.ServiceUnavailableError, () => client.messages.create(broken));
});

await cell("messages", "streamed", async () => {
  const stream = client.messages.stream(message);
  let text = "";
  stream.on("text", (piece) => (text += piece));
  checkText(await stream.finalMessage());
  assert.equal(text, facts.chat.text);
  checkCalls(await client.messages.stream(calling).finalMessage());
  const long = { ...message, messages: [{ role: "user", content: facts.too_long }], stream: true };
  const error = await refused(Anthropic.BadRequestError, () => client.messages.create(long));
  assert.match(error.message, /prompt is too long/);
  await checkRetries();
});

// While a stream of its key runs there is a 429, which is retried when the stream has ended.
async function checkRetries() {
  const one = client.withOptions({ apiKey: facts.one_at_a_time });
  const endless = { ...message, max_tokens: 1000, ignore_eos: true, stream: true };
  const running = await one.messages.create(endless);
  await refused(Anthropic.RateLimitError, () => one.messages.create(message));
  const statuses = [];
  const fetching = noting(statuses, () => running.controller.abort());
  checkText(await one.withOptions({ maxRetries: 4, fetch: fetching }).messages.create(message));
  assert.deepEqual([statuses.at(0), statuses.at(-1)], [429, 200]);
}

await cell("models", "whole", async () => {
  assert.equal((await collect(client.models.list()))[0].id, facts.model);
  assert.equal((await client.models.retrieve(facts.model)).type, "model");
  await refused(Anthropic.NotFoundError, () => client.models.retrieve("no-such-model"));
});
