// Who wrote each token of a prompt: the template of the model, or one of the messages.

/** For each token "control", "template", "system", "user" or "assistant".
 *  Messages are looked for in order in the text of all tokens; templates may trim them. */
export function origins(prompt, messages) {
  const starts = [];
  let whole = "";
  for (const text of prompt.texts) {
    starts.push(whole.length);
    whole += text;
  }
  const control = new Set(prompt.control);
  const found = prompt.texts.map((_, at) => (control.has(at) ? "control" : "template"));
  let from = 0;
  let token = 0;
  for (const { role, content } of messages) {
    const sought = content.trim();
    const begin = sought ? whole.indexOf(sought, from) : -1;
    if (begin < 0) continue; // a template that writes it otherwise: it stays the template's
    from = begin + sought.length;
    while (token < starts.length && endOf(token, prompt.texts, starts) <= begin) token += 1;
    for (; token < starts.length && starts[token] < from; token += 1) {
      if (!control.has(token)) found[token] = role;
    }
  }
  return found;
}

// A token without text is a part of the character that a later one completes.
function endOf(token, texts, starts) {
  return starts[token] + Math.max(texts[token].length, 1);
}
