// How much of what the hardware can do at most each stroke reached (a roofline in two bars).

import { h, setText } from "./dom.js";
import { bar, section, setParts } from "./section.js";
import { bytes, percent, short } from "./words.js";

const LIMITS = [
  { name: "bandwidth", label: "memory", fraction: "fraction_of_bandwidth", rate: "read_bytes_per_s" },
  { name: "compute", label: "arithmetic", fraction: "fraction_of_peak", rate: "ops_per_s" },
];

export class LimitsView {
  constructor() {
    this.strokes = [new Stroke("prefill", "Reading"), new Stroke("decode", "Writing")];
    this.reason = h("p", { class: "why" });
    this.element = section(
      "4. How much of the hardware it used",
      "What a machine can do in a second is limited: bytes it moves, operations it does. A full bar is the limit; the longer bar of the two is what held that stroke up.",
      "neutral",
      ...this.strokes.map((stroke) => stroke.element),
      this.reason,
    );
  }

  draw(record) {
    const roofline = record?.timings?.roofline;
    this.element.classList.toggle("idle", !roofline);
    for (const stroke of this.strokes) stroke.draw(roofline?.[stroke.name]);
    setText(this.reason, roofline?.reason ? `Mind: ${roofline.reason}.` : record ? "" : "Known when an answer is complete.");
    if (record && !roofline && !record.isRunning) setText(this.reason, "Known of complete answers only.");
  }
}

class Stroke {
  constructor(name, label) {
    this.name = name;
    this.rows = LIMITS.map((limit) => ({
      limit,
      bar: bar("used"),
      value: h("span", { class: "value" }),
    }));
    this.element = h(
      "div",
      { class: `meters in-${name}` },
      h("h4", {}, label),
      ...this.rows.map(({ limit, bar: meter, value }) =>
        h("div", { class: "meter" }, h("span", { class: "name" }, limit.label), meter, value),
      ),
    );
  }

  draw(stroke) {
    for (const { limit, bar: meter, value } of this.rows) {
      const fraction = stroke?.[limit.fraction];
      setParts(meter, [fraction ?? 0]);
      meter.classList.toggle("over", fraction > 1);
      const isBound = stroke?.bound_by === limit.name;
      meter.parentElement.classList.toggle("bound", isBound);
      setText(value, stroke ? worded(stroke, limit, fraction) : "–");
    }
  }
}

function worded(stroke, limit, fraction) {
  const rate = stroke[limit.rate];
  const shown = limit.name === "bandwidth" ? `${bytes(rate)}/s` : `${short(rate / 1e9)} Gop/s`;
  return fraction === undefined ? shown : `${percent(fraction)} · ${shown}`;
}
