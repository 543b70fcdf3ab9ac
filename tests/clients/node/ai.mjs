// Vercel's ai with @ai-sdk/openai-compatible: text, objects and tools on chat completions, completions.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { cell, collect, facts, refused } from "./asking.mjs";

function provider(changed = {}) {
  const settings = { name: "twostroke", baseURL: `${facts.url}/v1`, apiKey: facts.key };
  const abilities = { includeUsage: true, supportsStructuredOutputs: true };
  return createOpenAICompatible({ ...settings, ...abilities, ...changed });
}

const common = { temperature: 0, maxOutputTokens: facts.max_tokens, maxRetries: 0 };
const chat = { ...common, model: provider()(facts.model), messages: facts.messages };
const Capital = z.object({ city: z.enum(["Paris", "London"]) });
const weather = tool({ description: "the weather of a city", inputSchema: Capital });
const calling = { ...chat, tools: { weather }, toolChoice: "required", maxOutputTokens: 64 };
const quiet = { onError: () => {} }; // it prints what goes wrong in a stream otherwise

function checkUsage(usage, answer) {
  assert.equal(usage.inputTokens, answer.num_prompt_tokens);
  assert.equal(usage.outputTokens, answer.num_completion_tokens);
}

function checkCalls(calls) {
  assert.ok(calls.length);
  for (const call of calls) {
    assert.equal(call.toolName, "weather");
    Capital.parse(call.input);
  }
}

async function refusal(status, call) {
  const error = await refused(APICallError, call);
  assert.equal(error.statusCode, status);
  return error;
}

await cell("chat", "whole", async () => {
  const answer = await generateText(chat);
  assert.deepEqual([answer.text, answer.finishReason], [facts.chat.text, "stop"]);
  checkUsage(answer.usage, facts.chat);
  const output = Output.object({ schema: Capital });
  Capital.parse((await generateText({ ...chat, output })).output);
  checkCalls((await generateText(calling)).toolCalls);
  const stranger = provider({ apiKey: facts.wrong_key })(facts.model);
  await refusal(401, () => generateText({ ...chat, model: stranger }));
  await refusal(404, () => generateText({ ...chat, model: provider()("no-such-model") }));
  const broken = await refusal(503, () => generateText({ ...chat, model: provider()(facts.broken) }));
  assert.ok(broken.isRetryable);
});

await cell("chat", "streamed", async () => {
  const answer = streamText(chat);
  const pieces = await collect(answer.textStream);
  assert.ok(pieces.length > 1);
  assert.equal(pieces.join(""), facts.chat.text);
  assert.equal(await answer.finishReason, "stop");
  checkUsage(await answer.usage, facts.chat);
  const called = streamText(calling);
  await called.consumeStream();
  checkCalls(await called.toolCalls);
  const messages = [{ role: "user", content: facts.too_long }];
  const parts = await collect(streamText({ ...chat, ...quiet, messages }).fullStream);
  const { error } = parts.find((part) => part.type === "error");
  assert.deepEqual([error.statusCode, error.isRetryable], [400, false]);
});

// It writes a prompt as a conversation in text, so only its two ways can be compared.
const completion = { ...common, model: provider().completionModel(facts.model), prompt: facts.prompt };

await cell("completions", "whole", async () => {
  const answer = await generateText(completion);
  assert.equal(answer.usage.outputTokens, facts.max_tokens);
  assert.ok(answer.text.length);
});

await cell("completions", "streamed", async () => {
  const pieces = await collect(streamText(completion).textStream);
  assert.equal(pieces.join(""), (await generateText(completion)).text);
});
