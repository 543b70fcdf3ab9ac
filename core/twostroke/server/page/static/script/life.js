// The life of an answer, beside the chat: one section a stage, each with a sentence on what it means.

import { byId, h, nowAndThen, setText } from "./dom.js";
import { LimitsView } from "./limits_view.js";
import { MemoryView } from "./memory_view.js";
import { PlacementView } from "./placement_view.js";
import { PrefillView } from "./prefill_view.js";
import { SpeedView } from "./speed_view.js";
import { TokensView } from "./tokens_view.js";
import { duration, short } from "./words.js";

const NOTHING = "–";

export class Life {
  /** `model()` is the picked model as /health has it, or null. */
  constructor(model) {
    this.model = model;
    this.record = null;
    this.views = [
      new TokensView(),
      new PrefillView(),
      new SpeedView(),
      new LimitsView(),
      new MemoryView(),
      new PlacementView(),
    ];
    byId("stages").append(...this.views.map((view) => view.element));
    this.tiles = {
      prompt: tile("Prompt", "tokens", "in-prefill"),
      ttft: tile("First token", "after sending", "in-prefill"),
      speed: tile("Speed", "tokens/second", "in-decode"),
      answer: tile("Answer", "tokens", "in-decode"),
    };
    byId("tiles").append(...Object.values(this.tiles).map(({ element }) => element));
    this.redraw = nowAndThen(() => this.draw(), 120);
  }

  /** Shows this record from now on; null shows what there is without one. */
  show(record) {
    this.record = record;
    byId("life").classList.toggle("empty", record === null);
    for (const view of this.views) view.begin?.(record);
    this.draw();
  }

  draw() {
    const { record } = this;
    const model = this.model();
    byId("life-lead").hidden = record !== null;
    byId("life").dataset.state = record?.state ?? "none";
    setText(this.tiles.prompt.value, record?.numPrompt ? String(record.numPrompt) : NOTHING);
    setText(this.tiles.ttft.value, record?.ttftMs ? duration(record.ttftMs) : NOTHING);
    setText(this.tiles.speed.value, record?.speed ? short(record.speed) : NOTHING);
    setText(this.tiles.answer.value, record?.tokens.length ? String(record.tokens.length) : NOTHING);
    for (const view of this.views) view.draw(record, model);
  }
}

function tile(name, unit, kind) {
  const value = h("span", { class: "value" }, NOTHING);
  const element = h(
    "div",
    { class: `tile ${kind}` },
    h("dt", {}, name),
    h("dd", {}, value, " ", h("span", { class: "unit" }, unit)),
  );
  return { element, value };
}
