// One message as an element: what was said, and what can be done with it.

import { h, setText } from "./dom.js";
import { copyText, showMarkdown } from "./markdown.js";
import { parted } from "./thoughts.js";
import { count, duration, short } from "./words.js";

const LONG = 1200; // characters

const ENDS = {
  length: "It ended because the most tokens that were asked for, or the context, were reached.",
  stopped: "You stopped it.",
};

export class MessageView {
  /** `does` has what buttons do: edit(text), again(), show(). */
  constructor(message, does) {
    this.message = message;
    this.does = does;
    this.isUser = message.role === "user";
    this.body = h("div", { class: "body" });
    this.words = h("div", { class: "words" });
    this.thought = h("p", { class: "said" });
    this.thoughts = h("details", { class: "thoughts" }, h("summary", {}, "What it thought first"), this.thought);
    this.foot = h("div", { class: "foot" });
    this.element = h(
      "li",
      { class: `message ${message.role}` },
      h("h3", { class: "unseen" }, this.isUser ? "You" : "Answer"),
      this.body,
      this.foot,
    );
    if (this.isUser) this.#showWords();
    else this.draw();
  }

  /** Shows what there is of an answer now. */
  draw() {
    if (this.foot.firstChild) return; // its end is shown, and nothing changes any more
    const { content, record } = this.message;
    this.element.classList.toggle("running", record.isRunning);
    if (content) this.#showAnswer(content);
    else if (record.isRunning) this.body.replaceChildren(h("p", { class: "waiting" }, waitingFor(record)));
    else this.body.replaceChildren();
    if (!record.isRunning) this.#end(record);
  }

  #showAnswer(content) {
    const { thought, text } = parted(content);
    if (!this.words.isConnected) this.body.replaceChildren(this.words);
    if (thought && !this.thoughts.isConnected) this.body.prepend(this.thoughts);
    if (thought) setText(this.thought, thought);
    showMarkdown(this.words, text || (thought ? "Thinking…" : content));
  }

  #end(record) {
    const { problem } = record;
    if (problem) this.body.append(h("p", { class: "problem", role: "alert" }, problem.message));
    else if (!this.message.content && record.state === "done") {
      this.body.append(h("p", { class: "waiting" }, "The model ended its answer at once."));
    }
    const why = ENDS[record.state === "stopped" ? "stopped" : record.finishReason];
    if (why) this.body.append(h("p", { class: "why" }, why));
    const facts = h("span", { class: "facts" });
    setText(facts, factsOf(record));
    this.foot.append(
      button(problem ? "Try again" : "Again", () => this.does.again(), "Write this answer anew"),
      this.#copyButton(),
      button("Its life", () => this.does.show(), "Show how this answer came about"),
      facts,
    );
  }

  #showWords() {
    const { content } = this.message;
    const isLong = content.length > LONG; // then it scrolls, so the keyboard must reach it
    const reached = isLong ? { tabindex: 0, role: "region", "aria-label": "Your long message" } : {};
    this.body.replaceChildren(h("p", { class: isLong ? "said long" : "said", ...reached }, content));
    this.foot.replaceChildren(
      button("Edit", () => this.#edit(), "Edit this message and answer it anew"),
      this.#copyButton(),
    );
  }

  #copyButton() {
    const copy = button("Copy", () => copyText(this.message.content, copy), "Copy this message");
    return copy;
  }

  #edit() {
    const field = h("textarea", { rows: 3, "aria-label": "Your message, edited" });
    field.value = this.message.content;
    const leave = () => {
      this.#showWords();
      this.foot.firstChild.focus();
    };
    const send = () => field.value.trim() && this.does.edit(field.value.trim());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.body.replaceChildren(field);
    this.foot.replaceChildren(button("Send", send), button("Leave as it was", leave));
    field.focus();
  }
}

function button(text, does, title) {
  return h("button", { type: "button", class: "quiet small", title, onclick: does }, text);
}

function waitingFor({ state, progress }) {
  if (state === "queued") {
    const { num_ahead: ahead } = progress;
    return ahead ? `Waiting: ${count(ahead, "request")} before this one` : "Waiting: next in line";
  }
  if (state !== "prefill") return "Sending";
  const { num_read_tokens: read, num_prompt_tokens: all } = progress;
  return all > 64 ? `Reading the prompt: ${read} of ${count(all, "token")}` : "Reading the prompt";
}

function factsOf(record) {
  const number = record.timings ? record.tokens.length : record.tokens.length || null;
  if (number === null) return "";
  const speed = record.speed === null ? "" : `, ${short(record.speed)} a second`;
  return `${count(number, "token")}${speed}, ${duration(record.lastedMs)}`;
}
