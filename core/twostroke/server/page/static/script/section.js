// A section of the life of an answer: a heading, a sentence on what it means, and its content.

import { h } from "./dom.js";

/** An element with `body` below heading and sentence; `kind` gives it a stroke's colour. */
export function section(title, meaning, kind, ...body) {
  return h(
    "section",
    { class: `stage ${kind}` },
    h("h3", {}, title),
    h("p", { class: "meaning" }, meaning),
    ...body,
  );
}

/** A bar whose parts have widths in per cent; set with `setParts`. */
export function bar(...kinds) {
  return h("div", { class: "bar", "aria-hidden": "true" }, ...kinds.map((kind) => h("span", { class: kind })));
}

/** Sets the widths of a bar's parts to fractions of the whole. */
export function setParts(element, fractions) {
  fractions.forEach((fraction, at) => {
    const width = `${Math.max(0, Math.min(1, fraction || 0)) * 100}%`;
    const { style } = element.children[at];
    if (style.width !== width) style.width = width;
  });
}
