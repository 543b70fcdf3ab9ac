// Making elements. Text is always text: nothing here reads HTML.

export const byId = (id) => document.getElementById(id);

/** An element: `h("p", {class: "a", onclick: f, hidden: true}, "text", otherElement, null)`. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Sets the text only where it changes, so that readers and layout are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Calls `draw` soon after it is asked for, in a frame, and not again for `pauseMs`: the page often
 *  shares its processor with the model. */
export function nowAndThen(draw, pauseMs) {
  let isAskedFor = false;
  let drawnAt = -Infinity;
  const run = () => {
    isAskedFor = false;
    drawnAt = performance.now();
    draw();
  };
  return () => {
    if (isAskedFor) return;
    isAskedFor = true;
    const wait = pauseMs - (performance.now() - drawnAt);
    if (wait <= 0) requestAnimationFrame(run);
    else setTimeout(() => requestAnimationFrame(run), wait);
  };
}
