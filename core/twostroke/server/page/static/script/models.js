// Which models there are and how they are: the picker, and the notice while one is not ready.

import { health, listModels } from "./api.js";
import { byId, h, setText } from "./dom.js";

const OFTEN_MS = 1000; // while something is not ready
const SELDOM_MS = 20_000;
const OUTAGES = ["unhealthy", "rebuilding", "failed"];

export class Models {
  #timer = null;
  #known = "";

  /** `refused` is called with an AskError where a key is wanted, `changed` after each look. */
  constructor(settings, { refused, changed }) {
    this.settings = settings;
    this.refused = refused;
    this.changed = changed;
    this.all = []; // as /health has them
    this.allowed = null; // names that the key may use; null: not asked yet
    this.isReached = false;
    this.select = byId("model");
    this.select.addEventListener("change", () => this.#show());
  }

  /** The picked one, as /health has it. */
  get picked() {
    return this.all.find((model) => model.name === this.select.value) ?? null;
  }

  get isReady() {
    return this.picked?.status === "ready";
  }

  /** Whether a message can be sent: what is not loaded yet but known is loaded for it. */
  get canAnswer() {
    return this.isReached && this.picked !== null && this.picked.status !== "loading";
  }

  /** Looks at once, and from then on now and then. */
  async look() {
    clearTimeout(this.#timer);
    if (document.hidden) return void (this.#timer = setTimeout(() => this.look(), SELDOM_MS));
    const seen = await health();
    this.isReached = seen !== null;
    if (seen) {
      this.memory = seen.memory;
      this.all = seen.models ?? [];
      const known = this.all.map((model) => model.name).join("\n");
      if (known !== this.#known) this.allowed = null; // the configuration was changed
      this.#known = known;
      if (this.allowed === null) await this.#askWhatIsAllowed();
    }
    this.#show();
    this.#timer = setTimeout(() => this.look(), this.isReady ? SELDOM_MS : OFTEN_MS);
  }

  /** With another key others may be allowed. */
  keyChanged() {
    this.allowed = null;
    return this.look();
  }

  async #askWhatIsAllowed() {
    try {
      this.allowed = await listModels(this.settings.key);
    } catch (error) {
      if (error.wantsKey) {
        this.allowed = [];
        this.refused(error);
      }
    }
  }

  #show() {
    const all = new Set(this.all.map((model) => model.name)); // one that leaves memory is there twice
    const names = [...all].filter((name) => this.#isAllowed(name));
    const shown = [...this.select.options].map((option) => option.value);
    if (names.length && names.join("\n") !== shown.join("\n")) {
      const before = this.select.value;
      this.select.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      if (names.includes(before)) this.select.value = before;
    }
    this.select.disabled = names.length < 2;
    const notice = byId("notice");
    setText(notice, this.#state());
    notice.hidden = !notice.textContent;
    this.changed();
  }

  #isAllowed(name) {
    return !this.allowed?.length || this.allowed.includes(name);
  }

  #state() {
    if (!this.isReached) return "The server does not answer. This page tries again by itself.";
    const model = this.picked;
    if (!model) return "This server has no model.";
    if (model.status === "loading") return `The model is being made ready: ${model.stage ?? "it begins"}. You can write already.`;
    if (OUTAGES.includes(model.status)) return `The model is ${model.status}: ${model.health?.reason ?? model.reason ?? "see the server's log"}`;
    if (model.status === "unloaded") return "This model is not in memory: your first message brings it there.";
    return "";
  }
}
