// Where each stroke really runs: proved by the runtime when the model was loaded, not assumed.

import { h, setText } from "./dom.js";
import { section } from "./section.js";
import { count } from "./words.js";

export class PlacementView {
  constructor() {
    this.lines = { prefill: h("dd", {}), decode: h("dd", {}) };
    this.note = h("p", { class: "why" });
    this.element = section(
      "6. Where it runs",
      "The strokes are two programs, graphs of operations, and may run on different hardware. Where these really are was looked up, not assumed.",
      "neutral",
      h(
        "dl",
        { class: "places" },
        h("dt", { class: "in-prefill" }, "Reading"),
        this.lines.prefill,
        h("dt", { class: "in-decode" }, "Writing"),
        this.lines.decode,
      ),
      this.note,
    );
  }

  draw(record, model) {
    const placement = model?.placement;
    this.element.classList.toggle("idle", !placement);
    if (!placement) return;
    for (const [stroke, line] of Object.entries(this.lines)) setText(line, sentence(placement[stroke]));
    const notes = [model.fallback, model.placement_note].filter(Boolean);
    setText(this.note, notes.map((note) => (/[.!?]$/.test(note) ? note : `${note}.`)).join(" "));
  }
}

function sentence(place) {
  const threads = place.threads ? `, ${count(place.threads.num_threads, "thread")}` : "";
  const all = Object.values(place.nodes).reduce((sum, number) => sum + number, 0);
  const nodes = Object.entries(place.nodes).map(([provider, number]) => `${number} on ${provider}`);
  const which = nodes.length > 1 ? `${count(all, "operation")}, ${nodes.join(", ")}` : `all ${nodes[0]}`;
  const operations = all ? `: ${which}` : "";
  return `${place.precision} on ${place.device} (${place.backend}${threads})${operations}.`;
}
