// Chats with `fetch` and nothing else: Node 18 or newer, Deno, Bun; browsers with small changes.
//
// Usage: node fetch_client.mjs [URL] [MESSAGE]
// Where the server wants a key, it is taken from TWOSTROKE_KEY.

const [url = "http://127.0.0.1:8080", message = "What is the capital of France?"] =
  process.argv.slice(2);

/** Yields the events of a stream of server-sent events as parsed JSON, up to `[DONE]`. */
async function* events(response) {
  let rest = "";
  for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + piece).split("\n\n");
    rest = blocks.pop(); // the last one may still be on its way
    for (const block of blocks) {
      const line = block.split("\n").find((each) => each.startsWith("data: "));
      if (line === "data: [DONE]") return;
      if (line) yield JSON.parse(line.slice("data: ".length));
    }
  }
  throw new Error("the answer broke off"); // a whole one ends with [DONE]
}

const response = await fetch(`${url}/v1/chat/completions`, {
  method: "POST",
  headers: {
    "Content-Type": "application/json",
    Authorization: `Bearer ${process.env.TWOSTROKE_KEY ?? "none"}`,
  },
  body: JSON.stringify({
    messages: [{ role: "user", content: message }],
    max_completion_tokens: 64,
    stream: true,
    stream_options: { include_usage: true },
  }),
});

if (!response.ok) {
  // Refused before the first token: the error object says what to do.
  console.error((await response.json()).error.message);
  process.exit(1);
}
for await (const event of events(response)) {
  if (event.error) throw new Error(event.error.message);
  process.stdout.write(event.choices[0]?.delta.content ?? "");
  if (event.usage) {
    const { prompt_tokens, completion_tokens } = event.usage;
    process.stdout.write(`\n[${prompt_tokens} + ${completion_tokens} tokens]\n`);
  }
}
