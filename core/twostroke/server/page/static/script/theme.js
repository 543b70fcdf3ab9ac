// Before the first paint: the colours that were chosen here before. Without a choice the system's.
// (A classic script, since modules wait for the document. It sets nothing but one attribute.)
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is switched off: the system's colours do.
}
