// The first stroke: how far the prompt was read, what of it was in the cache, and how long it took.

import { h, setText } from "./dom.js";
import { bar, section, setParts } from "./section.js";
import { count, duration, short } from "./words.js";

export class PrefillView {
  constructor() {
    this.bar = bar("cached", "read");
    this.said = h("p", { class: "said" });
    this.element = section(
      "2. Prefill: it reads the prompt",
      "Many tokens at once: arithmetic, so the processor decides. What an earlier answer has left in the cache is not read again.",
      "in-prefill",
      this.bar,
      h(
        "div",
        { class: "under" },
        this.said,
        h("p", { class: "legend" }, h("i", { class: "key cached" }), "cached", h("i", { class: "key read" }), "read"),
      ),
    );
  }

  draw(record) {
    const progress = record?.progress;
    this.element.classList.toggle("idle", !progress);
    this.element.classList.toggle("now", record?.state === "prefill" || record?.state === "queued");
    const all = progress?.num_prompt_tokens || 1;
    const cached = progress?.num_cached_tokens ?? 0;
    const read = (progress?.num_read_tokens ?? 0) - cached;
    setParts(this.bar, [cached / all, read / all]);
    setText(this.said, progress ? sentence(record, progress, cached, read) : "Nothing to read yet.");
  }
}

function sentence(record, progress, cached, read) {
  if (record.state === "queued") {
    const ahead = progress.num_ahead;
    return ahead ? `It waits: ${count(ahead, "request")} before it.` : "It waits: next in line.";
  }
  const fromCache = cached ? `${cached} from the cache, ` : "";
  const known = record.timings?.prefill;
  const lasted = record.timings?.prefill_ms;
  if (lasted === undefined) return `${fromCache}${read} of ${progress.num_prompt_tokens - cached} read.`;
  const speed = known?.tokens_per_s ? ` (${short(known.tokens_per_s)} a second)` : "";
  const chunks = known?.num_chunks > 1 ? ` in ${known.num_chunks} pieces` : "";
  const waited = record.timings.queued_ms > 5 ? ` It had waited ${duration(record.timings.queued_ms)}.` : "";
  return `${fromCache}${read} read${chunks} in ${duration(lasted)}${speed}.${waited}`;
}
