// Models that think first write it between two marks; only what follows is their answer.

const OPEN = /^\s*<think>/;
const CLOSE = "</think>";

/** {thought, text}: `thought` is null where there is none. Some templates write the opening mark
 *  into the prompt, so that an answer has the closing one only. */
export function parted(content) {
  const close = content.indexOf(CLOSE);
  const begun = content.replace(OPEN, "");
  if (close >= 0) {
    return { thought: content.slice(0, close).replace(OPEN, "").trim(), text: content.slice(close + CLOSE.length).trimStart() };
  }
  if (begun !== content) return { thought: begun.trim(), text: "" };
  return { thought: null, text: content };
}
