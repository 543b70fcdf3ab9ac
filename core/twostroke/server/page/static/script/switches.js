// Two switches: dark or light, and on narrow screens the chat or the life of its answer.

import { byId } from "./dom.js";

const VIEWS = ["chat", "life"];

/** Wires them; answers `show(view)`, which on a wide screen moves the focus only. */
export function initSwitches() {
  const columns = document.querySelector(".columns");
  const show = (view) => {
    columns.dataset.view = view;
    for (const each of VIEWS) byId(`view-${each}`).setAttribute("aria-pressed", String(each === view));
    if (view === "life") byId("life").scrollTop = 0;
  };
  for (const view of VIEWS) byId(`view-${view}`).addEventListener("click", () => show(view));
  initTheme(byId("theme"));
  return { show };
}

function initTheme(button) {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // Storage is switched off: it holds until the page is left.
    }
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}
