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

/** Calls `draw` at most once a frame, however often it is asked for. */
export function oncePerFrame(draw) {
  let isAskedFor = false;
  return () => {
    if (isAskedFor) return;
    isAskedFor = true;
    requestAnimationFrame(() => {
      isAskedFor = false;
      draw();
    });
  };
}
