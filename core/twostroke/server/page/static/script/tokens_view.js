// The prompt as the model is given it: token by token, in colours, with who wrote each.

import { h, setText } from "./dom.js";
import { origins } from "./origins.js";
import { section } from "./section.js";
import { count } from "./words.js";

const MOST = 1200; // tokens that are shown; of a longer prompt the last ones
const COLOURS = 5;
const WHO = {
  control: "a control token: only the template may write it",
  template: "added by the model's chat template",
  system: "from the system message",
  user: "from what you wrote",
  assistant: "from an earlier answer",
  answer: "written by the model",
};

export class TokensView {
  constructor() {
    this.strip = h("div", {
      class: "strip",
      tabindex: 0,
      role: "listbox",
      "aria-label": "Tokens: arrow keys go from one to the next",
      "aria-orientation": "horizontal",
      onkeydown: (event) => this.#step(event),
      onpointerover: (event) => this.#point(event.target),
      onclick: (event) => this.#point(event.target),
    });
    this.readout = h("p", { class: "readout", role: "status" });
    this.element = section(
      "1. Your text becomes tokens",
      "A model knows no letters: it is given pieces of text, each by its number.",
      "neutral",
      this.strip,
      this.readout,
      h(
        "p",
        { class: "legend" },
        h("span", { class: "chip c0 user" }, "yours"),
        h("span", { class: "chip template" }, "the template's"),
        h("span", { class: "chip control" }, "control"),
        h("span", { class: "chip answer" }, "the answer"),
      ),
    );
    this.begin(null);
  }

  begin() {
    this.chips = [];
    this.facts = [];
    this.numAnswer = 0;
    this.current = null;
    this.hasPrompt = false;
    this.strip.replaceChildren();
    setText(this.readout, "");
  }

  draw(record) {
    this.element.classList.toggle("idle", !record?.prompt);
    if (!record?.prompt) return;
    if (!this.hasPrompt) this.#showPrompt(record);
    const shownFrom = record.numPrompt - this.numPrompt;
    const read = record.tokens.length ? Infinity : (record.progress?.num_read_tokens ?? 0);
    this.chips.slice(0, this.numPrompt).forEach((chip, at) => {
      chip.classList.toggle("unread", shownFrom + at >= read);
    });
    for (; this.numAnswer < record.tokens.length; this.numAnswer += 1) {
      const { id, text } = record.tokens[this.numAnswer];
      this.#add(id, text, "answer", record.numPrompt + this.numAnswer);
    }
    if (record.isRunning && this.current === null) this.#follow(read - shownFrom);
    if (!this.current) setText(this.readout, `${count(record.numPrompt, "token")} in the prompt. Point at one for its number.`);
  }

  /** Scrolls to where the prompt is being read, then along with the answer. */
  #follow(read) {
    const chip = this.chips[Math.max(0, Math.min(read, this.chips.length - 1))];
    this.strip.scrollTop = chip.offsetTop - this.strip.clientHeight / 2;
  }

  #showPrompt({ prompt, messages }) {
    this.hasPrompt = true;
    const from = Math.max(0, prompt.texts.length - MOST);
    const whose = origins(prompt, messages);
    if (from) this.strip.append(h("p", { class: "why" }, `${count(from, "token")} before these`));
    for (let at = from; at < prompt.texts.length; at += 1) {
      this.#add(prompt.token_ids[at], prompt.texts[at], whose[at], at);
    }
    this.numPrompt = this.chips.length;
    this.element.classList.toggle("few", this.numPrompt < 200);
  }

  #add(id, text, who, at) {
    const shown = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "…";
    const look = { class: `chip c${at % COLOURS} ${who}`, role: "option", id: `token-${at}` };
    const chip = h("span", { ...look, "aria-label": shown.trim() ? null : "space" }, shown);
    this.chips.push(chip);
    this.facts.push({ id, text, who, at });
    this.strip.append(chip);
  }

  #point(target) {
    const at = this.chips.indexOf(target);
    if (at >= 0) this.#choose(at);
  }

  #step(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (!step || !this.chips.length) return;
    event.preventDefault();
    const next = (this.current === null ? (step > 0 ? -1 : 0) : this.current) + step;
    this.#choose(Math.max(0, Math.min(this.chips.length - 1, next)));
    this.chips[this.current].scrollIntoView({ block: "nearest" });
  }

  #choose(at) {
    if (this.current !== null) this.chips[this.current].removeAttribute("aria-selected");
    this.current = at;
    const { id, text, who, at: position } = this.facts[at];
    this.chips[at].setAttribute("aria-selected", "true");
    this.strip.setAttribute("aria-activedescendant", this.chips[at].id);
    const shown = text ? JSON.stringify(text) : "a part of a character";
    setText(this.readout, `Token ${position + 1}: number ${id}, ${shown}, ${WHO[who]}.`);
  }
}
