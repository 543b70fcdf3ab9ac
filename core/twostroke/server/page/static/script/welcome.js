// Before the first message: what one might ask.

import { h } from "./dom.js";

const EXAMPLES = [
  ["Explain something", "Explain in three sentences why the sky is blue."],
  ["Write code", "Write a Python function that says whether a number is prime, and show how to use it."],
  ["A list", "Give me five ideas for a rainy Sunday, as a list."],
  ["A story", "Tell a short story about a lighthouse keeper and a very curious seagull."],
];

/** Fills `list`; a chosen example goes to `choose(text)`. */
export function initWelcome(list, choose) {
  list.append(
    ...EXAMPLES.map(([title, text]) =>
      h(
        "li",
        {},
        h("button", { type: "button", onclick: () => choose(text) }, h("strong", {}, title), h("span", {}, text)),
      ),
    ),
  );
}
