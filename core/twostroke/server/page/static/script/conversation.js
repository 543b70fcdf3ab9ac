// The conversation: messages in order, and the one answer that may be under way.

import { AskError, generate } from "./api.js";
import { Record } from "./record.js";
import { parted } from "./thoughts.js";

export class Conversation {
  #abort = null;
  #ended = Promise.resolve(); // when the answer under way has

  /** `settings()` gives {key, model, system, isPlain, sampling}. `told` is called with what happens:
   *  "list" (messages came or went), "answer" (more of the last one), "end" (it ended). */
  constructor(settings, told) {
    this.messages = []; // {role, content, record of an answer}
    this.settings = settings;
    this.told = told;
  }

  get isRunning() {
    return this.#abort !== null;
  }

  /** Sends a message and returns when its answer has ended, whichever way. */
  async say(content) {
    if (this.isRunning) return;
    this.messages.push({ role: "user", content });
    await this.#begin();
  }

  /** Writes the answer at `index` anew; what came behind it is dropped, and stopped first. */
  async again(index) {
    await this.#stopped();
    this.messages.length = index;
    await this.#begin();
  }

  /** Puts other words into a message of the user's and answers it; what came behind is dropped. */
  async edit(index, content) {
    await this.#stopped();
    this.messages.length = index;
    await this.say(content);
  }

  stop() {
    this.#abort?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.told("list");
  }

  #stopped() {
    this.stop();
    return this.#ended;
  }

  #begin() {
    this.#ended = this.#answer();
    return this.#ended;
  }

  async #answer() {
    const { key, model, system, isPlain, sampling } = this.settings();
    const said = answered(this.messages);
    const withSystem = system ? [{ role: "system", content: system }, ...said] : said;
    const sent = isPlain ? said.slice(-1) : withSystem; // plain: no template, nothing that was said before
    const asked = isPlain ? { prompt: sent[0].content } : { messages: sent };
    const answer = { role: "assistant", content: "", record: new Record(sent) };
    this.messages.push(answer);
    const abort = (this.#abort = new AbortController());
    this.told("list", answer);
    try {
      for await (const line of generate({ model, ...asked, ...sampling }, key, abort.signal)) {
        answer.content += answer.record.take(line);
        this.told("answer", answer);
      }
    } catch (error) {
      if (error.name === "AbortError") answer.record.breakOff("stopped");
      else answer.record.breakOff("failed", asProblem(error));
    } finally {
      this.#abort = null;
      this.told("end", answer);
    }
  }
}

/** What was said, without thoughts, and without questions that were never answered: templates want
 *  turns that alternate. */
function answered(messages) {
  const said = [];
  for (const { role, content } of messages) {
    const { text } = parted(content);
    if (role === "assistant" && !text) said.pop();
    else said.push({ role, content: role === "user" ? content : text });
  }
  return said;
}

function asProblem(error) {
  return error instanceof AskError ? error : new AskError(`The page has a fault: ${error.message}`);
}
