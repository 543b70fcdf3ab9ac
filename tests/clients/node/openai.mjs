// openai: chat completions, completions, responses, models; its errors and its retries.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { cell, collect, facts, noting, refused, schema } from "./asking.mjs";

const baseURL = `${facts.url}/v1`;
const client = new OpenAI({ baseURL, apiKey: facts.key, maxRetries: 0 });
const stranger = client.withOptions({ apiKey: facts.wrong_key });
const asked = { model: facts.model, temperature: 0 };
const chat = { ...asked, messages: facts.messages, max_completion_tokens: facts.max_tokens };
const completion = { ...asked, prompt: facts.prompt, max_tokens: facts.max_tokens };
const response = { ...asked, input: facts.messages, max_output_tokens: facts.max_tokens, store: false };
const weather = { name: "weather", description: "the weather of a city", parameters: schema };
const tools = { tools: [{ type: "function", function: weather }], tool_choice: "required" };
const Capital = z.object({ city: z.enum(["Paris", "London"]) });

function checkUsage(usage, answer) {
  assert.equal(usage.prompt_tokens, answer.num_prompt_tokens);
  assert.equal(usage.completion_tokens, answer.num_completion_tokens);
}

function checkCalls(calls) {
  assert.ok(calls.length);
  for (const { function: called } of calls) {
    assert.equal(called.name, "weather");
    Capital.parse(JSON.parse(called.arguments));
  }
}

await cell("chat", "whole", async () => {
  const answer = await client.chat.completions.create(chat);
  assert.equal(answer.choices[0].message.content, facts.chat.text);
  checkUsage(answer.usage, facts.chat);
  const format = { response_format: zodResponseFormat(Capital, "capital") };
  const parsed = await client.chat.completions.parse({ ...chat, ...format });
  Capital.parse(parsed.choices[0].message.parsed);
  const called = await client.chat.completions.create({ ...chat, ...tools, max_completion_tokens: 64 });
  checkCalls(called.choices[0].message.tool_calls);
  await refused(OpenAI.AuthenticationError, () => stranger.chat.completions.create(chat));
  const other = { ...chat, model: "no-such-model" };
  await refused(OpenAI.NotFoundError, () => client.chat.completions.create(other));
});

await cell("chat", "streamed", async () => {
  const usage = { stream: true, stream_options: { include_usage: true } };
  const chunks = await collect(await client.chat.completions.create({ ...chat, ...usage }));
  checkUsage(chunks.pop().usage, facts.chat);
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), facts.chat.text);
  const calling = client.chat.completions.stream({ ...chat, ...tools, max_completion_tokens: 64 });
  checkCalls((await calling.finalChatCompletion()).choices[0].message.tool_calls);
  const long = { ...chat, messages: [{ role: "user", content: facts.too_long }], stream: true };
  const error = await refused(OpenAI.BadRequestError, () => client.chat.completions.create(long));
  assert.equal(error.code, "context_length_exceeded");
});

await cell("completions", "whole", async () => {
  const answer = await client.completions.create(completion);
  assert.equal(answer.choices[0].text, facts.completion.text);
  checkUsage(answer.usage, facts.completion);
  const broken = { ...completion, model: facts.broken };
  const error = await refused(OpenAI.InternalServerError, () => client.completions.create(broken));
  assert.equal(error.status, 503);
  assert.ok(Number(error.headers.get("retry-after")) > 0);
});

// While a stream of its key runs there is a 429, which is retried when the stream has ended.
await cell("completions", "streamed", async () => {
  const chunks = await collect(await client.completions.create({ ...completion, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), facts.completion.text);
  const one = client.withOptions({ apiKey: facts.one_at_a_time });
  const endless = { ...completion, max_tokens: 1000, stream: true };
  const running = await one.completions.create(endless);
  await refused(OpenAI.RateLimitError, () => one.completions.create(completion));
  const statuses = [];
  const fetching = noting(statuses, () => running.controller.abort());
  const patient = one.withOptions({ maxRetries: 4, fetch: fetching });
  assert.equal((await patient.completions.create(completion)).choices[0].text, facts.completion.text);
  assert.deepEqual([statuses.at(0), statuses.at(-1)], [429, 200]);
});

await cell("responses", "whole", async () => {
  const answer = await client.responses.create(response);
  assert.equal(answer.output_text, facts.chat.text);
  assert.equal(answer.usage.output_tokens, facts.chat.num_completion_tokens);
  const format = { text: { format: zodTextFormat(Capital, "capital") } };
  Capital.parse((await client.responses.parse({ ...response, ...format })).output_parsed);
  const tool = { type: "function", strict: true, ...weather };
  const required = { tools: [tool], tool_choice: "required", max_output_tokens: 64 };
  const called = await client.responses.create({ ...response, ...required });
  assert.equal(called.output[0].type, "function_call");
  Capital.parse(JSON.parse(called.output[0].arguments));
});

await cell("responses", "streamed", async () => {
  const stream = client.responses.stream(response);
  const events = await collect(stream);
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), facts.chat.text);
  assert.equal((await stream.finalResponse()).output_text, facts.chat.text);
  await refused(OpenAI.AuthenticationError, () => stranger.responses.create({ ...response, stream: true }));
});

await cell("models", "whole", async () => {
  assert.equal((await collect(client.models.list()))[0].id, facts.model);
  assert.equal((await client.models.retrieve(facts.model)).object, "model");
  await refused(OpenAI.NotFoundError, () => client.models.retrieve("no-such-model"));
});
