// What the page asks of its server. Paths are relative, so that it also works below a prefix.

const NDJSON = "application/x-ndjson";

/** An error that can be shown: `message` in words, `status` 0 where the server was not reached. */
export class AskError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }

  get wantsKey() {
    return this.status === 401;
  }
}

const UNREACHABLE = "The server does not answer. Is it running, and is this machine connected to it?";
const BROKEN_OFF = "The connection broke before the answer was complete. Ask again.";

/** The server's state, or null where it is not reached. It has one even while models load. */
export async function health() {
  try {
    const response = await fetch("health", { cache: "no-store" });
    return await response.json();
  } catch {
    return null;
  }
}

/** The names that this key may use; throws an AskError. */
export async function listModels(key) {
  const response = await ask("v1/models", { headers: withKey(key) });
  return (await response.json()).data.map((model) => model.id);
}

/** The lines of an answer, as objects, while they are made; throws an AskError.
 *  Aborting `signal` ends it on the server too. */
export async function* generate(body, key, signal) {
  const headers = { ...withKey(key), "Content-Type": "application/json", Accept: NDJSON };
  const response = await ask("generate", {
    method: "POST",
    headers,
    body: JSON.stringify({ ...body, progress: true, show_prompt: true }),
    signal,
  });
  let isDone = false;
  for await (const line of lines(response)) {
    if (line.error) throw new AskError(line.error.message, response.status, line.error.code);
    isDone ||= line.done === true;
    yield line;
  }
  if (!isDone) throw new AskError(BROKEN_OFF);
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new AskError(UNREACHABLE);
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `The server answered ${response.status}.`;
  throw new AskError(message, response.status, body?.error?.code);
}

async function* lines(response) {
  // Not through a TextDecoderStream: where the connection breaks, a pipe drops what it still holds,
  // and that may be the line which says why.
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new AskError(BROKEN_OFF);
    }
    if (part.done) return;
    const pieces = (held + decoder.decode(part.value, { stream: true })).split("\n");
    held = pieces.pop();
    for (const piece of pieces) if (piece) yield JSON.parse(piece);
  }
}

function withKey(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}
