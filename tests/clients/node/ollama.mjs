// ollama: chat, generate, and what it lists of models.

import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { cell, collect, facts, schema } from "./asking.mjs";

const asking = (key) => new Ollama({ host: facts.url, headers: { Authorization: `Bearer ${key}` } });
const client = asking(facts.key);
const options = { temperature: 0, num_predict: facts.max_tokens };
const chat = { model: facts.model, messages: facts.messages, options };
const generate = { model: facts.model, prompt: facts.prompt, raw: true, options };

function checkFacts(answer, wanted) {
  assert.equal(answer.done, true);
  assert.equal(answer.done_reason, wanted.finish_reason);
  assert.equal(answer.prompt_eval_count, wanted.num_prompt_tokens);
  assert.equal(answer.eval_count, wanted.num_completion_tokens);
  assert.ok(answer.total_duration > 0);
}

const refused = (status, call) => assert.rejects(call, { name: "ResponseError", status_code: status });

await cell("ollama chat", "whole", async () => {
  const answer = await client.chat(chat);
  assert.equal(answer.message.content, facts.chat.text);
  checkFacts(answer, facts.chat);
  const constrained = await client.chat({ ...chat, format: schema });
  assert.ok(["Paris", "London"].includes(JSON.parse(constrained.message.content).city));
  await refused(401, () => asking(facts.wrong_key).chat(chat));
  await refused(404, () => client.chat({ ...chat, model: "no-such-model" }));
});

await cell("ollama chat", "streamed", async () => {
  const parts = await collect(await client.chat({ ...chat, stream: true }));
  assert.equal(parts.map((part) => part.message.content).join(""), facts.chat.text);
  checkFacts(parts.at(-1), facts.chat);
  const messages = [{ role: "user", content: facts.too_long }];
  await refused(400, () => client.chat({ ...chat, messages, stream: true }));
});

await cell("ollama generate", "whole", async () => {
  const answer = await client.generate(generate);
  assert.equal(answer.response, facts.completion.text);
  checkFacts(answer, facts.completion);
  await refused(503, () => client.generate({ ...generate, model: facts.broken }));
});

await cell("ollama generate", "streamed", async () => {
  const parts = await collect(await client.generate({ ...generate, stream: true }));
  assert.equal(parts.map((part) => part.response).join(""), facts.completion.text);
  checkFacts(parts.at(-1), facts.completion);
});

await cell("ollama models", "whole", async () => {
  const { models } = await client.list();
  assert.ok(models.some((model) => model.model === `${facts.model}:latest`));
  assert.ok((await client.show({ model: facts.model })).capabilities.includes("completion"));
  assert.ok((await client.ps()).models.some((model) => model.model.startsWith(facts.model)));
  await refused(404, () => client.show({ model: "no-such-model" }));
});
