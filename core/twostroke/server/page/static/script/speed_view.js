// The second stroke as a line: tokens a second against how much the model has to look back at.

import { h, s, setText } from "./dom.js";
import { section } from "./section.js";
import { count, short } from "./words.js";

const WIDTH = 360;
const HEIGHT = 128;
const LEFT = 34;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 30;
const MOST_POINTS = 240;

export class SpeedView {
  constructor() {
    this.line = s("polyline", { class: "line" });
    this.area = s("polygon", { class: "area" });
    this.dot = s("circle", { class: "dot", r: 4 });
    this.grid = s("g", { class: "grid" });
    this.svg = s(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": "Speed of the answer: nothing yet" },
      this.grid,
      this.area,
      this.line,
      this.dot,
    );
    this.said = h("p", { class: "said" });
    this.element = section(
      "3. Decode: it writes the answer",
      "One token at a time, and for each the whole model is read again: memory decides. The more context, the more to look back at.",
      "in-decode",
      this.svg,
      this.said,
    );
    this.scale = "";
  }

  draw(record) {
    const points = thinned(record?.speeds ?? []);
    this.element.classList.toggle("idle", points.length === 0);
    this.element.classList.toggle("now", record?.state === "decode");
    const first = record?.numPrompt ?? 0;
    const last = Math.max(first + 32, points.at(-1)?.context ?? 0);
    const top = niceTop(Math.max(1, ...points.map((point) => point.speed)));
    const x = (context) => LEFT + ((context - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
    const y = (speed) => HEIGHT - BOTTOM - (speed / top) * (HEIGHT - TOP - BOTTOM);
    this.#drawGrid(first, last, top, y);
    const path = points.map((p) => `${x(p.context).toFixed(1)},${y(p.speed).toFixed(1)}`);
    this.line.setAttribute("points", path.join(" "));
    const end = points.at(-1);
    this.dot.setAttribute("visibility", end ? "visible" : "hidden");
    if (end) {
      this.dot.setAttribute("cx", x(end.context));
      this.dot.setAttribute("cy", y(end.speed));
      const floor = HEIGHT - BOTTOM;
      this.area.setAttribute("points", `${x(points[0].context)},${floor} ${path.join(" ")} ${x(end.context)},${floor}`);
    } else this.area.setAttribute("points", "");
    setText(this.said, sentence(record));
    if (record && !record.isRunning) this.svg.setAttribute("aria-label", `Speed of the answer. ${sentence(record)}`);
  }

  #drawGrid(first, last, top, y) {
    const scale = `${first} ${last} ${top}`;
    if (scale === this.scale) return;
    this.scale = scale;
    const label = (text, at) => s("text", at, text);
    const lines = [0, top / 2, top].flatMap((speed) => [
      s("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(speed), y2: y(speed) }),
      label(short(speed), { x: LEFT - 6, y: y(speed) + 4, "text-anchor": "end" }),
    ]);
    this.grid.replaceChildren(
      ...lines,
      label(String(first), { x: LEFT, y: HEIGHT - 12, "text-anchor": "start" }),
      label(String(last), { x: WIDTH - RIGHT, y: HEIGHT - 12, "text-anchor": "end" }),
      label("tokens in the context", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 12, "text-anchor": "middle" }),
    );
  }
}

function sentence(record) {
  if (!record?.tokens.length) return "Nothing written yet.";
  const speed = record.speed === null ? "" : ` at ${short(record.speed)} tokens a second`;
  const decode = record.timings?.decode;
  const gap = decode?.inter_token_p50_ms ? `, ${short(decode.inter_token_p50_ms)} ms from one to the next` : "";
  const shared = decode?.batch_size_mean > 1.05 ? ` It shared its steps with ${short(decode.batch_size_mean - 1)} other answers.` : "";
  return `${count(record.tokens.length, "token")}${speed}${gap}.${shared}`;
}

function thinned(points) {
  if (points.length <= MOST_POINTS) return points;
  const step = points.length / MOST_POINTS;
  return [...Array.from({ length: MOST_POINTS }, (_, at) => points[Math.floor(at * step)]), points.at(-1)];
}

/** The end of an axis: 1, 2 or 5 times a power of ten, in quarters where that leaves much free. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((n) => n * power).find((top) => top >= value * 1.05) ?? 10 * power;
}
