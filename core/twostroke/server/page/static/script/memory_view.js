// What the model takes of the device's memory: weights, cache, workspace.

import { h, setText } from "./dom.js";
import { bar, section, setParts } from "./section.js";
import { bytes } from "./words.js";

const PARTS = [
  ["weights", "weights: what it has learnt"],
  ["workspace", "workspace: intermediate results, at most"],
  ["kv", "KV cache: what it remembers of each token"],
  ["kv-free", "what that cache may still grow to"],
];

export class MemoryView {
  constructor() {
    this.bar = bar(...PARTS.map(([kind]) => kind));
    this.deviceBar = bar("taken");
    this.values = PARTS.map(() => h("dd", {}));
    this.whole = h("p", { class: "said" });
    this.own = h("p", { class: "said" });
    const rows = PARTS.map(([kind, label], at) =>
      h("div", {}, h("dt", {}, h("i", { class: `key ${kind}` }), " ", label), this.values[at]),
    );
    this.element = section(
      "5. Where the memory goes",
      "The weights are there once, whoever asks. Each token adds its part to the cache, so that it need not be read again.",
      "neutral",
      this.bar,
      h("dl", { class: "parts" }, ...rows),
      this.own,
      this.whole,
      this.deviceBar,
    );
  }

  draw(record, model) {
    const memory = model?.memory;
    this.element.classList.toggle("idle", !memory);
    if (!memory) return;
    const kv = memory.kv_now_bytes;
    const sizes = [memory.weights_bytes, memory.workspace_bytes, kv, Math.max(0, memory.kv_bytes - kv)];
    const device = model.placement.decode.device_memory_bytes;
    const taken = sizes.reduce((sum, size) => sum + size, 0);
    setParts(this.bar, sizes.map((size) => size / taken));
    setParts(this.deviceBar, [device ? taken / device : 0]);
    this.deviceBar.hidden = !device;
    sizes.forEach((size, at) => setText(this.values[at], bytes(size)));
    const share = device ? `${bytes(taken)} of ${bytes(device)}` : bytes(taken);
    setText(this.whole, `All together at most ${share} on ${model.placement.decode.device}.`);
    const held = record ? record.numPrompt + record.tokens.length : 0;
    const each = memory.kv_bytes_per_token;
    setText(this.own, held ? `This conversation holds ${bytes(held * each)} of the cache: ${held} tokens, ${bytes(each)} each.` : "");
  }
}
