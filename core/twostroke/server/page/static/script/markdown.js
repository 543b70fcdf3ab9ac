// Markdown of a model's answer as elements. Nothing of it is trusted: HTML in it is shown as text,
// and what marked makes of the rest goes through DOMPurify with a short list of what may be there.

import hljs from "../vendor/highlight.min.js";
import { marked } from "../vendor/marked.esm.js";
import DOMPurify from "../vendor/purify.es.mjs";
import { h } from "./dom.js";

const PURIFIER = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
    "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "data-language", "href", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

marked.use({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    image: ({ text, href }) => escaped(text || href), // asking for it would tell another server
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6); // below the page's own headings
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    code: ({ text, lang }) => {
      const language = (lang ?? "").split(/\s/)[0].toLowerCase();
      const shown = hljs.getLanguage(language)
        ? hljs.highlight(text, { language, ignoreIllegals: true }).value
        : escaped(text);
      return `<pre data-language="${escaped(language)}"><code>${shown}\n</code></pre>`;
    },
  },
});

/** Shows `text` in `container`. Blocks that are as they were stay: of an answer that grows only
 *  the last one is made anew. */
export function showMarkdown(container, text) {
  const blocks = marked.lexer(text).filter((token) => token.type !== "space");
  blocks.forEach((block, at) => {
    const before = container.children[at];
    if (before?.source === block.raw) return;
    const element = h("div", { class: "block" }, made(block));
    element.source = block.raw;
    if (before) before.replaceWith(element);
    else container.append(element);
  });
  while (container.children.length > blocks.length) container.lastChild.remove();
}

function made(block) {
  const fragment = DOMPurify.sanitize(marked.parser([block]), PURIFIER);
  for (const link of fragment.querySelectorAll("a")) {
    link.rel = "noopener noreferrer nofollow";
    link.target = "_blank";
  }
  for (const pre of fragment.querySelectorAll("pre")) dressCode(pre);
  for (const table of fragment.querySelectorAll("table")) {
    const frame = h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  return fragment;
}

function dressCode(pre) {
  const language = pre.dataset.language || "text";
  const code = pre.textContent;
  const copy = h("button", { type: "button", class: "quiet small" }, "Copy code");
  copy.addEventListener("click", () => copyText(code, copy));
  pre.tabIndex = 0; // it scrolls sideways
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", `Code, ${language}`);
  const figure = h("div", { class: "code" });
  pre.replaceWith(figure);
  figure.append(h("div", { class: "code-head" }, h("span", {}, language), copy), pre);
}

/** Puts text into the clipboard and says so on the button for a moment. */
export async function copyText(text, button) {
  const label = button.textContent;
  const isDone = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  button.textContent = isDone || copyOldWay(text) ? "Copied" : "The browser does not allow it";
  setTimeout(() => (button.textContent = label), 1500);
}

/** Over plain HTTP from another machine browsers have no `navigator.clipboard`. */
function copyOldWay(text) {
  const before = document.activeElement;
  const field = h("textarea", { class: "unseen", readonly: true });
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  before?.focus();
  return isDone;
}

function escaped(text) {
  const signs = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text.replace(/[&<>"']/g, (sign) => signs[sign]);
}
