// What may be set: kept in this tab's memory (sessionStorage), the key too, and nowhere else.

import { byId, h } from "./dom.js";

const FIELDS = [
  { name: "key", label: "API key", type: "password", help: "Only where this server wants one. Kept until this tab is closed." },
  { name: "system", label: "System message", type: "area", help: "Stands before the conversation: how the model should behave." },
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, help: "0 always takes the likeliest token; the higher, the more it ventures." },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05, help: "Only the likeliest tokens that together have this probability." },
  { name: "max_tokens", label: "Most tokens", min: 1, step: 1, help: "Where an answer is cut off. Empty: at the end of the context." },
  { name: "seed", label: "Seed", min: 0, step: 1, help: "The same number gives the same answer. Empty: another one each time." },
  { name: "plain", label: "Go on with plain text", type: "checkbox", help: "Without the chat template, and without what was said before: for models that were not made for chats, and to see the difference." },
];
const NUMBERS = FIELDS.filter((field) => field.step).map((field) => field.name);

export class Settings {
  #inputs = {};

  /** `changed` is called when the dialog closes. */
  constructor(changed) {
    this.dialog = byId("settings");
    byId("settings-fields").append(...FIELDS.map((field) => this.#field(field)));
    byId("open-settings").addEventListener("click", () => this.open());
    byId("settings-reset").addEventListener("click", () => this.#reset());
    this.dialog.addEventListener("close", () => {
      byId("key-problem").hidden = true;
      changed();
    });
    this.#restore();
  }

  get key() {
    return this.#inputs.key.value.trim();
  }

  get system() {
    return this.#inputs.system.value.trim();
  }

  /** All of it, for a request. */
  get all() {
    const { key, system, isPlain, sampling } = this;
    return { key, system, isPlain, sampling };
  }

  get isPlain() {
    return this.#inputs.plain.checked;
  }

  /** What was set, by the names of the API; what is empty is the model's own. */
  get sampling() {
    const given = NUMBERS.filter((name) => this.#inputs[name].value !== "");
    return Object.fromEntries(given.map((name) => [name, Number(this.#inputs[name].value)]));
  }

  open() {
    if (!this.dialog.open) this.dialog.showModal();
  }

  /** Opens at the key, and says why. */
  askForKey(why) {
    const problem = byId("key-problem");
    problem.textContent = why;
    problem.hidden = false;
    this.open();
    this.#inputs.key.focus();
  }

  #field({ name, label, type, help, ...limits }) {
    const id = `setting-${name}`;
    const common = { id, name, "aria-describedby": `${id}-help`, autocomplete: "off" };
    const input =
      type === "area"
        ? h("textarea", { ...common, rows: 2 })
        : h("input", { ...common, ...limits, type: type ?? "number", placeholder: type ? null : "model's own" });
    input.addEventListener("change", () => this.#keep());
    this.#inputs[name] = input;
    const explained = h("p", { id: `${id}-help`, class: "help" }, help);
    return h("div", { class: `field ${type ?? "number"}` }, h("label", { for: id }, label), input, explained);
  }

  #reset() {
    for (const name of [...NUMBERS, "system"]) this.#inputs[name].value = "";
    this.#inputs.plain.checked = false;
    this.#keep();
  }

  #keep() {
    const values = Object.entries(this.#inputs).map(([name, input]) => [name, valueOf(input)]);
    try {
      sessionStorage.setItem("settings", JSON.stringify(Object.fromEntries(values)));
    } catch {
      // Storage is switched off: they hold until the page is left.
    }
  }

  #restore() {
    try {
      const kept = JSON.parse(sessionStorage.getItem("settings") ?? "{}");
      for (const [name, input] of Object.entries(this.#inputs)) {
        if (input.type === "checkbox") input.checked = kept[name] === true;
        else input.value = kept[name] ?? "";
      }
    } catch {
      // As above, or written by another version of the page.
    }
  }
}

function valueOf(input) {
  return input.type === "checkbox" ? input.checked : input.value;
}
