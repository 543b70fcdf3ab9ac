// Numbers as people read them.

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** 1536 -> "1.5 kB"; decimal units, as in the rest of twostroke. */
export function bytes(number) {
  let rank = 0;
  let value = number;
  while (value >= 999.5 && rank < UNITS.length - 1) {
    value /= 1000;
    rank += 1;
  }
  return `${short(value)} ${UNITS[rank]}`;
}

/** Three digits that matter: 0.123, 1.23, 12.3, 123. */
export function short(number) {
  if (number >= 100 || number === 0) return Math.round(number).toString();
  return number.toPrecision(number >= 1 ? 3 : 2).replace(/\.?0+$/, "");
}

/** 850 -> "850 ms", 1240 -> "1.24 s", 95000 -> "1 min 35 s". */
export function duration(ms) {
  if (ms < 999.5) return `${short(ms)} ms`;
  if (ms < 59_950) return `${short(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

/** 0.614 -> "61 %". */
export function percent(fraction) {
  return fraction > 0 && fraction < 0.01 ? "< 1 %" : `${Math.round(fraction * 100)} %`;
}

/** count(1, "token") -> "1 token", count(2, "token") -> "2 tokens". */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
