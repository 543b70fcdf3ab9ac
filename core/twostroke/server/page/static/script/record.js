// What is known of one answer while it is made: the lines of its stream, and when they came.

const WINDOW = 8; // tokens that a speed is measured over; single gaps jump

export class Record {
  constructor(messages, now = performance.now()) {
    this.messages = messages; // what was sent
    this.sentAt = now;
    this.firstAt = null;
    this.endedAt = null;
    this.state = "sent"; // sent, queued, prefill, decode, done, stopped, failed
    this.prompt = null; // {token_ids, texts, control}
    this.progress = null; // the last line's
    this.readAt = null; // when reading the prompt began
    this.tokens = []; // {id, text}
    this.arrivals = []; // milliseconds, of each token
    this.speeds = []; // {context, speed}: tokens in the cache, tokens a second
    this.timings = null;
    this.finishReason = null;
    this.problem = null;
  }

  get isRunning() {
    return !["done", "stopped", "failed"].includes(this.state);
  }

  get numPrompt() {
    return this.prompt?.token_ids.length ?? this.progress?.num_prompt_tokens ?? 0;
  }

  /** The time to the first token in ms: the server's measure, until it is known the page's. */
  get ttftMs() {
    return this.timings?.ttft_ms ?? (this.firstAt === null ? null : this.firstAt - this.sentAt);
  }

  /** Tokens a second over the whole answer, or so far; null before the second one. */
  get speed() {
    if (this.timings?.decode_tokens_per_s) return this.timings.decode_tokens_per_s;
    const gaps = this.arrivals.length - 1;
    const lasted = gaps < 1 ? 0 : this.arrivals[gaps] - this.arrivals[0];
    return lasted > 0 ? (gaps * 1000) / lasted : null;
  }

  get lastedMs() {
    return this.timings?.total_ms ?? (this.endedAt ?? performance.now()) - this.sentAt;
  }

  /** Takes a line of the stream; answers the text that it adds. */
  take(line, now = performance.now()) {
    if (line.prompt) this.prompt = line.prompt;
    else if (line.progress) this.#takeProgress(line.progress, now);
    else if (line.done) this.#finish(line, now);
    else this.#takeToken(line, now);
    return line.text ?? "";
  }

  /** The end that is no good one: `state` is "stopped" or "failed". */
  breakOff(state, problem = null, now = performance.now()) {
    this.state = state;
    this.problem = problem;
    this.endedAt = now;
  }

  #takeProgress(progress, now) {
    this.progress = progress;
    this.state = progress.num_ahead === undefined ? "prefill" : "queued";
    if (this.state === "prefill") this.readAt ??= now;
  }

  #takeToken(line, now) {
    // What is held back to the end comes under the number of the last token again.
    if (line.index < this.tokens.length) return void (this.tokens.at(-1).text += line.text);
    this.state = "decode";
    this.firstAt ??= now;
    this.tokens.push({ id: line.token_id, text: line.text });
    this.arrivals.push(now);
    const first = Math.max(0, this.arrivals.length - 1 - WINDOW);
    const gaps = this.arrivals.length - 1 - first;
    const lasted = now - this.arrivals[first];
    if (gaps < Math.min(WINDOW, 3) || lasted <= 0) return;
    this.speeds.push({ context: this.numPrompt + this.tokens.length, speed: (gaps * 1000) / lasted });
  }

  #finish(line, now) {
    this.state = "done";
    this.endedAt = now;
    this.timings = line.timings;
    this.finishReason = line.finish_reason;
  }
}
